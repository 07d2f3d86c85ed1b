"""tau2-bench's domains, from its data folder: tools on both sides, scripted or model users, and tau2's reward."""

from .env import Tau2

__all__ = ["Tau2"]
