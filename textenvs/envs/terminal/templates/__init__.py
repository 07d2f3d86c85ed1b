"""The templates of projects: each module draws one, from a random generator."""

from collections.abc import Callable, Mapping
from random import Random

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

#: By name.
TEMPLATES: Mapping[str, Callable[[Random], Project]] = {
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
