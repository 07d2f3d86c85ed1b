"""The books: never more reserved than there is, everything settled once, and nobody refused who may still fit."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from textenvs.chat import Budget, BudgetExceeded, ChatSpec, reset_budgets
from textenvs.chat.budget import Amount, Ledger, ledger_of


class Books(RuleBasedStateMachine):
    """A ledger, and the same books kept the simple way."""

    LIMIT = 100

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Budget(tokens=self.LIMIT))
        self.loop = asyncio.new_event_loop()
        self.open = []  # bookings under way
        self.spent = 0

    def teardown(self):
        self.loop.close()

    @rule(tokens=st.integers(0, 60))
    def reserve(self, tokens):
        reserved = sum(worst for _, _, worst in self.open)

        if self.spent + tokens > self.LIMIT:
            with pytest.raises(BudgetExceeded, match=f"{self.spent} are spent"):
                self.loop.run_until_complete(self.ledger.reserve(Amount(tokens)))
        elif self.spent + reserved + tokens > self.LIMIT:
            task = self.loop.create_task(self.ledger.reserve(Amount(tokens)))
            self.loop.run_until_complete(asyncio.sleep(0))
            assert not task.done()  # it waits: what is under way may turn out cheaper
            task.cancel()
            self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        else:
            booking = self.ledger.booking(self.loop.run_until_complete(self.ledger.reserve(Amount(tokens))))
            self.open.append((booking, booking.__enter__(), tokens))

    @rule(which=st.integers(0, 9), share=st.none() | st.floats(0, 1))
    def settle(self, which, share):
        if not self.open:
            return
        booking, reservation, worst = self.open.pop(which % len(self.open))
        actual = worst if share is None else int(worst * share)
        reservation.actual = None if share is None else Amount(actual)
        booking.__exit__(None, None, None)
        self.spent += actual

    @invariant()
    def the_books_agree(self):
        reserved = sum(worst for _, _, worst in self.open)
        assert (self.ledger.spent.tokens, self.ledger.reserved.tokens) == (self.spent, reserved)
        assert self.spent + reserved <= self.LIMIT


TestBooks = Books.TestCase


async def spend(ledger, worst, actual, started=None, go_on=None):
    with ledger.booking(await ledger.reserve(Amount(worst))) as reservation:
        if started:
            started.set()
            await go_on.wait()
        reservation.actual = Amount(actual)


async def test_who_may_still_fit_waits_and_who_cannot_is_refused():
    ledger = Ledger(Budget(tokens=100))
    started, go_on = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(spend(ledger, 80, 10, started, go_on))
    await started.wait()
    second = asyncio.create_task(spend(ledger, 80, 30))
    with pytest.raises(BudgetExceeded):
        await ledger.reserve(Amount(101))
    assert not second.done()
    go_on.set()
    await asyncio.gather(first, second)
    assert ledger.spent.tokens == 40
    with pytest.raises(BudgetExceeded, match="40 are spent.*up to 80"):
        await ledger.reserve(Amount(80))


async def test_what_nobody_knows_costs_the_most_it_can():
    ledger = Ledger(Budget(tokens=100))
    with pytest.raises(RuntimeError), ledger.booking(await ledger.reserve(Amount(60))):
        raise RuntimeError("the connection broke")
    assert (ledger.spent.tokens, ledger.reserved.tokens) == (60, 0)


async def test_a_booking_that_ends_in_the_garbage_collector_while_the_lock_is_held(monkeypatch):
    """The collector may close an abandoned coroutine anywhere, inside of our own critical section, too."""
    ledger = Ledger(Budget(tokens=100))
    abandoned = ledger.booking(await ledger.reserve(Amount(80)))
    abandoned.__enter__().actual = Amount(10)
    over = ledger._over

    def collected_here(worst, reserved):
        monkeypatch.undo()
        abandoned.__exit__(None, None, None)
        return over(worst, reserved)

    monkeypatch.setattr(ledger, "_over", collected_here)
    await asyncio.wait_for(ledger.reserve(Amount(80)), 30)
    assert (ledger.spent.tokens, ledger.reserved.tokens, len(ledger.under_way)) == (10, 80, 1)


async def test_dollars_count_too():
    ledger = Ledger(Budget(tokens=10**9, dollars=1.0))
    with ledger.booking(await ledger.reserve(Amount(10, 0.9))):
        pass
    with pytest.raises(BudgetExceeded, match="dollars"):
        await ledger.reserve(Amount(10, 0.2))
    await ledger.reserve(Amount(10, 0.1))


def test_one_ledger_for_several_loops_and_threads():
    ledger = Ledger(Budget(tokens=1000))
    refused = []

    async def many():
        for _ in range(40):
            try:
                await spend(ledger, 100, 7)
            except BudgetExceeded:
                refused.append(1)

    async def together():
        await asyncio.gather(*(many() for _ in range(3)))

    threads = [threading.Thread(target=asyncio.run, args=(together(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "somebody waits for ever"
    # 360 attempts at 7 each; the last that fits starts at 900 or below.
    assert refused
    assert 900 < ledger.spent.tokens <= 907
    assert ledger.reserved == Amount()


def test_whose_ledger_it_is():
    alone = ChatSpec.of({"model": "a", "budget": {"tokens": 5}})
    assert ledger_of(alone) is ledger_of(ChatSpec.of(alone.to_dict()))
    assert ledger_of(alone) is not ledger_of(ChatSpec.of(alone, model="b"))
    shared = {"tokens": 5, "name": "test_whose_ledger_it_is"}
    one, two = (ChatSpec.of({"model": model, "budget": shared}) for model in "ab")
    assert ledger_of(one) is ledger_of(two)
    with pytest.raises(ValueError, match="in use with other limits"):
        ledger_of(ChatSpec.of({"model": "c", "budget": {**shared, "tokens": 6}}))


async def test_a_new_run_starts_with_nothing_spent():
    ledger = ledger_of(ChatSpec.of({"model": "test_a_new_run", "budget": {"tokens": 5}}))
    await spend(ledger, 5, 5)
    reset_budgets()
    await spend(ledger, 5, 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_what_its_parent_has_under_way():
    code = (
        "import asyncio, os\n"
        "from textenvs.chat import Budget\n"
        "from textenvs.chat import budget\n"
        "budget._ledgers['x'] = ledger = budget.Ledger(Budget(tokens=10))\n"
        "asyncio.run(ledger.reserve(budget.Amount(9)))\n"
        "if (child := os.fork()) == 0:\n"
        "    asyncio.run(asyncio.wait_for(ledger.reserve(budget.Amount(9)), 5))\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
