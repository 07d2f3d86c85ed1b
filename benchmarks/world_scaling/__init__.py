"""Policies trained on 1 to 1,000 generated worlds, played in worlds that none was trained on; see ``__main__.py``."""
