"""The pool of blocks against a naive model, under any sequence of operations."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainers.engines.block_pool import ROOT, BlockPool

SESSIONS = st.sampled_from(["a", "b", "c"])


class Holder:
    """A holder of a sequence of blocks: their contents, and the number with names."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.past: list[bytes] = []
        self.parents = [ROOT]


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: the references to each block, and the sequence of contents that ends in it."""

    @initialize(total=st.integers(1, 8))
    def start(self, total: int) -> None:
        self.pool = BlockPool(total)
        self.holders: list[Holder] = []
        self.kept: list[tuple[str, list[int]]] = []  # what sessions keep, the one idle for longest first
        self.contents: dict[int, tuple[bytes, ...]] = {}

    def references(self) -> Counter[int]:
        held = [block for holder in self.holders for block in holder.blocks]
        return Counter(held + [block for _, blocks in self.kept for block in blocks])

    @rule()
    def begin(self) -> None:
        self.holders.append(Holder())

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), content=st.sampled_from([b"x", b"y"]))
    def extend(self, data: st.DataObject, content: bytes) -> None:
        """Share the block with this content after this past, or take and fill one."""
        holder = data.draw(st.sampled_from(self.holders))
        name, past = (holder.parents[-1], content), (*holder.past, content)
        before, free = self.references(), self.pool.free
        entry = self.pool.find(name)
        if entry is not None:
            block, number = entry
            assert self.contents[block] == past, "a block is found by all of its past"
            assert before[block] > 0
        else:
            allocated = self.pool.take(1)
            idle = {block for _, blocks in self.kept for block in blocks}
            busy = {block for one in self.holders for block in one.blocks}
            if allocated is None:
                assert not free
                assert not idle - busy
                self.kept.clear()
                return
            (block,) = allocated
            while not free:  # sessions were forgotten in their order, until there was one
                _, evicted = self.kept.pop(0)
                free = sum(not self.references()[index] for index in evicted)
            assert not self.references()[block]
            self.contents[block] = past
            number = self.pool.name(block, name)
        holder.blocks.append(block)
        holder.past.append(content)
        holder.parents.append(number)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.pool.give_back(holder.blocks)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), session=SESSIONS)
    def keep(self, data: st.DataObject, session: str) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.pool.keep(session, list(holder.blocks))
        # Of sequences that extend one another the longest remains, used just now; other sequences stay as they are.
        own = [blocks for owner, blocks in self.kept if owner == session] + [holder.blocks]
        longest = max((blocks for blocks in own if blocks[: len(holder.blocks)] == holder.blocks), key=len)
        others = [kept for kept in self.kept if kept[0] != session or longest[: len(kept[1])] != kept[1]]
        self.kept = [*others, *([(session, longest)] if longest else [])][-self.pool.total :]

    @rule(session=SESSIONS)
    def release(self, session: str) -> None:
        self.pool.release(session)
        self.kept = [kept for kept in self.kept if kept[0] != session]

    @rule()
    def forget(self) -> None:
        """Forget everything, as after new weights: running requests have returned their blocks."""
        for holder in self.holders:
            self.pool.give_back(holder.blocks)
        self.holders.clear()
        self.pool.forget()
        self.kept.clear()
        assert self.pool.free == self.pool.total
        assert self.pool.find((ROOT, b"x")) is None

    @invariant()
    def what_nothing_refers_to_is_free(self) -> None:
        assert self.pool.sessions == len({session for session, _ in self.kept})
        assert self.pool.free == self.pool.total - len(self.references())


BlockPoolMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestBlockPool = BlockPoolMachine.TestCase
