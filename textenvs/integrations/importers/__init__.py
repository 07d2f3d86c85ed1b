"""Environments of other libraries as ours."""
