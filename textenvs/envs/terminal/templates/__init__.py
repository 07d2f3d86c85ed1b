"""The templates of projects: each module draws one, from a random generator."""

from collections.abc import Mapping
from random import Random
from typing import Protocol

from ..project import Project
from . import (
    backups,
    ledger,
    library,
    loghost,
    mailroom,
    monitoring,
    network,
    pipeline,
    repository,
    service,
    shop,
    website,
)


class Template(Protocol):
    """A function that draws a project; ``stated`` is that of :meth:`.variation.Variant.draw`."""

    def __call__(self, rng: Random, stated: Mapping[str, int] | None = None) -> Project: ...


#: By name.
TEMPLATES: Mapping[str, Template] = {
    "backups": backups.draw,
    "ledger": ledger.draw,
    "library": library.draw,
    "loghost": loghost.draw,
    "mailroom": mailroom.draw,
    "monitoring": monitoring.draw,
    "network": network.draw,
    "pipeline": pipeline.draw,
    "repository": repository.draw,
    "service": service.draw,
    "shop": shop.draw,
    "website": website.draw,
}
