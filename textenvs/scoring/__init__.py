"""Answer checks."""
