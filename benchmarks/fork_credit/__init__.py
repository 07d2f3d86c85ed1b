"""Tokens to a score with ``algorithm.adv_estimator=fork`` and with other estimators; see ``__main__.py``."""
