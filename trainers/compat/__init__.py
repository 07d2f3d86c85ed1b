"""Configurations of other projects."""
