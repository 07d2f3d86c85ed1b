"""The applications of one world: what is left of each where others that it refers to are not there."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .applications import Application, Entity, applications

#: Every world has it: the others refer to its people.
ALWAYS = "personnel"
PERSON = f"{ALWAYS}.person"
#: The most references in a row that are counted.
FARTHEST = 3


@dataclass(frozen=True)
class Schema:
    """Applications, and the entities of all of them by key."""

    applications: Mapping[str, Application]
    entities: Mapping[str, Entity]  # by key, of all applications

    @functools.cached_property
    def name_count(self) -> int:
        """The number of names that a skin draws."""
        values = sum(len(field.values) for entity in self.entities.values() for field in entity.fields.values())
        parts = sum(1 + len(entity.fields) + len(entity.verbs) for entity in self.entities.values())
        return len(self.applications) + parts + values

    @functools.cached_property
    def references(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """The fields that refer to each entity, with the entities that have them; copies are none."""
        fields_by_target: dict[str, list[tuple[str, str]]] = {key: [] for key in self.entities}
        for key, entity in self.entities.items():
            for field in entity.own_fields.values():
                if field.kind == "ref":
                    fields_by_target[field.to].append((key, field.name))
        return fields_by_target

    @functools.cached_property
    def distances(self) -> Mapping[str, int]:
        """The number of references in a row that lead to each entity's records, at most :data:`FARTHEST`."""
        lengths = dict.fromkeys(self.entities, 0)
        for _ in range(FARTHEST):
            lengths = {key: max((1 + lengths[of] for of, _ in self.references[key]), default=0) for key in lengths}
        return lengths

    @functools.cached_property
    def places(self) -> Mapping[str, Mapping[str, int]]:
        """The place of each field in the records of each entity."""
        return {key: {name: place for place, name in enumerate(one.fields)} for key, one in self.entities.items()}


@functools.lru_cache(maxsize=4096)
def schema_of(names: tuple[str, ...], kinds: frozenset[str] | None = None) -> Schema:
    """Return the schema of some applications: without references to others, and without what needs these.

    Args:
        names: The applications.
        kinds: Keys of the entities that are kept, and with them the applications that have any; ``None`` for all.
    """
    every = applications()
    if kinds is not None:
        names = tuple(name for name in names if kinds & every[name].entities.keys())
    chosen = {name: every[name] for name in names}
    keys = {key for one in chosen.values() for key in one.entities if kinds is None or key in kinds}
    entities = {
        key: _without(entity, keys) for one in chosen.values() for key, entity in one.entities.items() if key in keys
    }
    return Schema(chosen, entities)


def _without(entity: Entity, keys: Sequence[str] | set[str]) -> Entity:
    fields = {name: one for name, one in entity.fields.items() if one.kind != "ref" or one.to in keys}
    fields = {name: one for name, one in fields.items() if one.copy_of is None or one.copy_of[0] in fields}
    verbs = {
        name: replace(verb, gives=tuple(name for name in verb.gives if name in fields))
        for name, verb in entity.verbs.items()
    }
    verbs_kept = {name: verb for name, verb in verbs.items() if verb.kind != "change" or verb.gives}
    return replace(entity, fields=fields, verbs=verbs_kept)
