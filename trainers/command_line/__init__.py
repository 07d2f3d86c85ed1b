"""The configuration of a command, from files and arguments, with errors that help."""

from .load import ConfigError, Flags, check_arguments, load_config, render, resolve

__all__ = ["ConfigError", "Flags", "check_arguments", "load_config", "render", "resolve"]
