"""Configuration: the schema of all keys, and loading it from files and arguments with errors that help."""

from .load import ConfigError, Flags, load_config, render, resolve, show_help
from .schema import PPOConfig, SFTConfig

__all__ = ["ConfigError", "Flags", "PPOConfig", "SFTConfig", "load_config", "render", "resolve", "show_help"]
