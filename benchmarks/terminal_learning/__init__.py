"""A tiny policy that learns to repair five kinds of faults in a real shell; see ``__main__.py``."""
