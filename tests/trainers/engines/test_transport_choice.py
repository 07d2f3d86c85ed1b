"""The choice of a transport: its order, its reasons, and on fake servers the tests that it depends on."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_kits import lively_model
from hypothesis import given
from hypothesis import strategies as st
from served_engines import serving

from trainers.engines.base import EngineDeadError, EngineError, Sampling
from trainers.engines.transport_choice import ORDER, Facts, choose, reasons_against

SHARED = Facts("the server", ["cpu:here"], ["cpu:here"], shares=True)
APART = replace(SHARED, workers=["cpu:there"], shares=False)

TEXTS = st.none() | st.sampled_from(["one reason", "another"])
FACTS = st.builds(
    Facts,
    server=st.just("the server"),
    senders=st.just(("cpu:here",)),
    workers=st.none() | st.just(("cpu:there",)),
    shares=st.booleans(),
    no_room=TEXTS,
    unreached=TEXTS,
    unseen=TEXTS,
)


@given(FACTS)
def test_auto_is_the_first_that_works(facts: Facts) -> None:
    choice, reasons = choose("auto", facts), reasons_against(facts)
    place = ORDER.index(choice.transport)
    assert choice.transport not in reasons
    assert choice.excluded == {name: reasons[name] for name in ORDER[:place]}
    line = choice.line(facts.server)
    assert "\n" not in line
    assert line.startswith(f"weights go to the server by {choice.transport}")
    assert all(f"not by {name}: {reason}" in line for name, reason in choice.excluded.items())


@given(FACTS, st.sampled_from(ORDER))
def test_explicit_choice_holds_or_is_an_error(facts: Facts, name: Any) -> None:
    reason = reasons_against(facts).get(name)
    if reason is None or (name == "ipc" and facts.shares):
        assert choose(name, facts) == (name, {})
        return
    with pytest.raises(EngineError) as caught:
        choose(name, facts)
    best = choose("auto", facts).transport
    assert str(caught.value) == f"engine.weight_transport={name}: {reason}; take {best}"


@pytest.mark.parametrize(
    ("facts", "transport"),
    [
        (SHARED, "ipc"),
        (replace(SHARED, no_room="small"), "process_group"),
        (APART, "process_group"),
        (replace(APART, workers=None), "process_group"),
        (replace(APART, unreached="refused"), "disk"),
        (replace(APART, unreached="refused", unseen="another machine"), "http"),
        (replace(SHARED, unreached="refused", unseen="another machine"), "ipc"),
    ],
)
def test_order_of_auto(facts: Facts, transport: str) -> None:
    assert choose("auto", facts).transport == transport


ELSEWHERE: dict[str, Any] = {"described": {"place": "cpu:elsewhere"}}
REFUSED = {**ELSEWHERE, "connection_problem": "Connection refused"}


@pytest.mark.parametrize(
    ("faults", "transport", "line"),
    [
        ({}, "ipc", r"by ipc$"),
        (
            REFUSED,
            "disk",
            r"by disk; .*not by process_group: its workers cannot connect .*127.0.0.1 \(Connection refus",
        ),
        (REFUSED | {"sees_files": False}, "http", r"by http; .*not by disk: it does not see update_folder=.*new$"),
    ],
)
async def test_run_says_transport_and_reasons(
    faults: Any, transport: str, line: str, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and the weights really go that way."""
    caplog.set_level(logging.INFO, "trainers")
    async with serving("vllm", folder, faults, update_folder=str(tmp_path / "new")) as (_, engine):
        for version in (1, 2):
            await engine.update_weights(lively_model(seed=version).state_dict(), version)
            made = await engine.generate([1, 2], Sampling(max_new_tokens=2))
            assert set(made.weight_version) == {version}
    (record,) = [record for record in caplog.records if "weights go to" in record.message]
    assert re.search(line, record.message)
    assert record.levelno == (logging.INFO if transport == "ipc" else logging.WARNING)


@pytest.mark.parametrize(
    ("transport", "faults", "message"),
    [
        ("ipc", ELSEWHERE, "weight_transport=ipc: .* share no memory; take process_group"),
        ("process_group", REFUSED, r"weight_transport=process_group: its workers cannot connect .*; take disk"),
        ("disk", {"sees_files": False}, "weight_transport=disk: it does not see this machine's temporary files, .*; t"),
    ],
)
async def test_impossible_choice_ends_the_start(transport: str, faults: Any, message: str, folder: Path) -> None:
    """Before a request or an update: a server that runs already gets the run's weights first."""
    weights = lively_model().state_dict()
    async with serving("vllm", folder, faults, transport=transport, weights=weights) as (_, engine):
        with pytest.raises(EngineDeadError, match=message):
            await engine.ready()
