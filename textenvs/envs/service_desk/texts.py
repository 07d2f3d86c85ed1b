"""The texts of this family, which are data: the YAML files beside this module."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

import yaml


@functools.cache
def load(name: str) -> Any:
    """The content of ``<name>.yaml``; shared, so never changed."""
    text = importlib.resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
