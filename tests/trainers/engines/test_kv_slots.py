"""The slot table against a naive model, under any sequence of operations."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainers.engines.slots import SlotTable

SESSIONS = st.sampled_from([None, "a", "b", "c", "d"])


class SlotTableMachine(RuleBasedStateMachine):
    """The model: for each slot, who uses it now and whose KV is in it."""

    @initialize(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        self.table = SlotTable(count)
        self.busy: dict[int, str | None] = {}
        self.idle: list[tuple[str, int]] = []  # the one idle for longest first

    @rule(session=SESSIONS)
    def take(self, session: str | None) -> None:
        taken = self.table.take(session)
        if len(self.busy) == self.table.count:
            assert taken is None
            return
        assert taken is not None
        slot, kept = taken
        own = session is not None and session not in self.busy.values()
        mine = [s for name, s in self.idle if name == session and own]
        unused = set(range(self.table.count)) - set(self.busy) - {s for _, s in self.idle}
        if mine:
            assert (slot, kept) == (mine[0], True)
        elif unused:
            assert (slot, kept) == (min(unused), False)
        else:
            assert (slot, kept) == (self.idle[0][1], False)
        self.idle = [(name, s) for name, s in self.idle if s != slot]
        self.busy[slot] = session if own else None

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.busy)))
        self.table.give_back(slot)
        session = self.busy.pop(slot)
        if session is not None:
            self.idle.append((session, slot))

    @rule(session=SESSIONS.filter(bool))
    def release(self, session: str) -> None:
        self.table.release(session)
        self.idle = [(name, s) for name, s in self.idle if name != session]
        self.busy = {s: None if name == session else name for s, name in self.busy.items()}

    @rule()
    def forget_idle(self) -> None:
        self.table.forget_idle()
        self.idle = []

    @invariant()
    def every_slot_is_somewhere(self) -> None:
        assert self.table.idle == len(self.idle)
        assert self.table.free == self.table.count - len(self.idle) - len(self.busy)


SlotTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotTable = SlotTableMachine.TestCase
