"""The environments, one file a family."""
