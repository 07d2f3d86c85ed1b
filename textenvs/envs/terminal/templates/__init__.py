"""The templates of projects: each module draws one, from a random generator."""

from collections.abc import Callable, Mapping
from random import Random

from ..project import Project
from . import pipeline

#: By name.
TEMPLATES: Mapping[str, Callable[[Random], Project]] = {"pipeline": pipeline.draw}
