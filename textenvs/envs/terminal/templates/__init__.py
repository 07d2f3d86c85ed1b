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
    claims,
    cookbook,
    deploy,
    elections,
    exchange,
    finder,
    fleet,
    genome,
    interpreter,
    ledger,
    library,
    loghost,
    mailroom,
    metering,
    monitoring,
    network,
    packages,
    parcels,
    payroll,
    pipeline,
    referee,
    repository,
    scheduler,
    sensors,
    service,
    shop,
    statements,
    survey,
    tickets,
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
    "claims": claims.draw,
    "cookbook": cookbook.draw,
    "deploy": deploy.draw,
    "elections": elections.draw,
    "exchange": exchange.draw,
    "finder": finder.draw,
    "fleet": fleet.draw,
    "genome": genome.draw,
    "interpreter": interpreter.draw,
    "ledger": ledger.draw,
    "library": library.draw,
    "loghost": loghost.draw,
    "mailroom": mailroom.draw,
    "metering": metering.draw,
    "monitoring": monitoring.draw,
    "network": network.draw,
    "packages": packages.draw,
    "parcels": parcels.draw,
    "payroll": payroll.draw,
    "pipeline": pipeline.draw,
    "referee": referee.draw,
    "repository": repository.draw,
    "scheduler": scheduler.draw,
    "sensors": sensors.draw,
    "service": service.draw,
    "shop": shop.draw,
    "statements": statements.draw,
    "survey": survey.draw,
    "tickets": tickets.draw,
    "timetable": timetable.draw,
    "tournament": tournament.draw,
    "translations": translations.draw,
    "warehouse": warehouse.draw,
    "website": website.draw,
}
