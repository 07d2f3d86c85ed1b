"""Policies trained on one kind of user, or on all, played with each; see ``__main__.py``."""
