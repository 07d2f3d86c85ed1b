"""The templates of projects: each module draws one, from a random generator."""

from collections.abc import Callable, Mapping
from random import Random

from ..project import Project
from . import (
    agenda,
    backups,
    interpreter,
    library,
    loghost,
    packages,
    pipeline,
    repository,
    service,
    shop,
    translations,
    website,
)

#: By name.
TEMPLATES: Mapping[str, Callable[[Random], Project]] = {
    "agenda": agenda.draw,
    "backups": backups.draw,
    "interpreter": interpreter.draw,
    "library": library.draw,
    "loghost": loghost.draw,
    "packages": packages.draw,
    "pipeline": pipeline.draw,
    "repository": repository.draw,
    "service": service.draw,
    "shop": shop.draw,
    "translations": translations.draw,
    "website": website.draw,
}
