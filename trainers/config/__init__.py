"""The settings of a run: sections with types, defaults, ranges and descriptions; nothing here reads arguments."""

from .schema import PPOConfig, SFTConfig

__all__ = ["PPOConfig", "SFTConfig"]
