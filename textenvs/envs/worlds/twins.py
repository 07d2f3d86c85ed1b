"""Twin worlds: which facts a solution must read, proven by other values of them.

A fact is a cell of a record. A twin of a world has another value in it, and is equal in all else, so every observation
that does not show the cell is the same in both, byte for byte. A policy that makes no observation of the cell plays the
same in all twins, and ends in the same state; where the twins require ends that all differ, it is right in one of them
at most. A fact with six such twins is *proven*: whatever a policy is, without reading it it is right in one of seven.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .applications import Field, Value
from .goals import End, Goal, NotMeantError, evaluate
from .view import Cell, View, with_cell
from .world import World

#: Ends that differ, of a proven fact: that of the world itself, and those of its twins.
ENOUGH = 7
#: Values that are tried for a cell; many give no meaning to the program, or the same end. After some of these, a cell
#: with no more than two ends is given up: it decides a condition.
_TRIED, _FIRST = 24, 8


@dataclass(frozen=True)
class Fact:
    """A cell that a solution must read: the values of its twins, of which each requires another end."""

    cell: Cell
    values: tuple[Value, ...]

    @property
    def ends(self) -> int:
        """The number of ends, the world's own included."""
        return 1 + len(self.values)

    @property
    def bound(self) -> float:
        """The largest share of the twins that a policy can solve that does not read the cell."""
        return 1 / self.ends


def facts_of(world: World, goal: Goal, user: str, cells: Sequence[Cell], end: End) -> tuple[Fact, ...]:
    """Return the cells that a solution must read, proven by enough twins.

    Args:
        world: The world; it has the rules.
        goal: The program.
        user: The id of the user's record.
        cells: What :func:`~textenvs.envs.worlds.goals.evaluate` has read.
        end: What it returned.
    """
    facts = []
    for cell in cells:
        ends, values = {without(end, cell)}, []
        candidates = list(_others(world, cell))
        for place, value in enumerate(candidates):
            if len(ends) + len(candidates) - place < ENOUGH or (place == _FIRST and len(ends) <= 2):
                break
            twin = View(world.schema, with_cell(world.schema, world.store, cell, value))
            try:
                other = evaluate(goal, twin, world.rules, user)
            except NotMeantError:
                continue
            if (rest := without(other, cell)) not in ends:
                ends.add(rest)
                values.append(value)
                if len(ends) >= ENOUGH:
                    facts.append(Fact(cell, tuple(values)))
                    break
    return tuple(facts)


def is_proven(world: World, goal: Goal, user: str, fact: Fact, end: End) -> bool:
    """Return whether a fact of a part of a goal is one of the whole goal, which has this end: all twins end apart."""
    ends = {without(end, fact.cell)}
    for value in fact.values:
        twin = View(world.schema, with_cell(world.schema, world.store, fact.cell, value))
        try:
            ends.add(without(evaluate(goal, twin, world.rules, user), fact.cell))
        except NotMeantError:
            return False
    return len(ends) == fact.ends


def without(end: End, cell: Cell) -> End:
    """Return an end without the cell itself: to give it a value that a twin has already is no change there."""
    return replace(end, changed=tuple(one for one in end.changed if one[0] != cell))


def _others(world: World, cell: Cell) -> Iterator[Value]:
    """Yield other values for a cell, in an order that the cell decides."""
    entity, number, name = cell
    field: Field = world.schema.entities[entity].fields[name]
    if field.kind == "name":
        return  # what the user said
    domain: Sequence[Value] = world.ids(field.to) if field.kind == "ref" else field.domain()
    own = world.store.tables[entity][number][world.schema.places[entity][name]]
    start = int.from_bytes(hashlib.sha256("/".join(cell).encode()).digest()[:4], "big")
    step = max(1, len(domain) // _TRIED)
    for place in range(0, min(len(domain), step * _TRIED), step):
        if (value := domain[(start + place) % len(domain)]) != own:
            yield value
