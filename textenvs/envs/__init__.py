"""The environments, one folder a family."""
