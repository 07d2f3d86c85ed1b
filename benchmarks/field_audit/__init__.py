"""Audit environments that others published, as they were published: `python -m benchmarks.field_audit`."""
