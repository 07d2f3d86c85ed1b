"""Configuration: the schema of all keys, and loading it from files and arguments with errors that help."""

from .load import ConfigError, Flags, check_arguments, load_config, render, resolve
from .schema import PPOConfig, SFTConfig

__all__ = ["ConfigError", "Flags", "PPOConfig", "SFTConfig", "check_arguments", "load_config", "render", "resolve"]
