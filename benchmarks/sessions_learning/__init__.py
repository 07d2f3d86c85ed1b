"""A tiny policy that learns what is worth keeping in a notebook; see ``__main__.py``."""
