"""The templates of projects: each module draws one, from a random generator."""

from collections.abc import Mapping
from random import Random
from typing import Protocol

from ..project import Project
from . import (
    access,
    agenda,
    archive,
    assembler,
    backups,
    calibration,
    deploy,
    elections,
    finder,
    interpreter,
    ledger,
    library,
    loghost,
    mailroom,
    monitoring,
    network,
    packages,
    payroll,
    pipeline,
    repository,
    sensors,
    service,
    shop,
    statements,
    survey,
    timetable,
    tournament,
    translations,
    warehouse,
    website,
)


class Template(Protocol):
    """A function that draws a project; ``stated`` is that of :meth:`.variation.Variant.draw`."""

    def __call__(self, rng: Random, stated: Mapping[str, int] | None = None) -> Project: ...


#: By name.
TEMPLATES: Mapping[str, Template] = {
    "access": access.draw,
    "agenda": agenda.draw,
    "archive": archive.draw,
    "assembler": assembler.draw,
    "backups": backups.draw,
    "calibration": calibration.draw,
    "deploy": deploy.draw,
    "elections": elections.draw,
    "finder": finder.draw,
    "interpreter": interpreter.draw,
    "ledger": ledger.draw,
    "library": library.draw,
    "loghost": loghost.draw,
    "mailroom": mailroom.draw,
    "monitoring": monitoring.draw,
    "network": network.draw,
    "packages": packages.draw,
    "payroll": payroll.draw,
    "pipeline": pipeline.draw,
    "repository": repository.draw,
    "sensors": sensors.draw,
    "service": service.draw,
    "shop": shop.draw,
    "statements": statements.draw,
    "survey": survey.draw,
    "timetable": timetable.draw,
    "tournament": tournament.draw,
    "translations": translations.draw,
    "warehouse": warehouse.draw,
    "website": website.draw,
}
