"""The texts of this family, which are data: the YAML files beside this module."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

import yaml


@functools.cache
def load(name: str) -> Any:
    """The content of ``<name>.yaml``; shared, so never changed."""
    return yaml.load(files(__package__).joinpath(f"{name}.yaml").read_text("utf-8"), yaml.CSafeLoader)
