"""The engines of the conformance suite as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sglang_server
import vllm_server
from engine_kits import COMPUTING_KITS, CONTEXT, KITS, SERVED, SERVERS, Kit, MakeKit, lively_model

from trainers.config.engine import VLLM_MIN_TEMPERATURE
from trainers.engines.sglang import SGLangEngine


def _parameters(kits: dict[str, MakeKit]) -> list[Any]:
    # One worker runs all tests of a server (with `--dist loadgroup`), so there is one server. Where a test killed it,
    # the next one starts another, which counts as the test's time; what hangs is found by `Kit.seconds`.
    served = []
    for name in SERVERS:
        marks = [pytest.mark.engines, pytest.mark.xdist_group(name), pytest.mark.timeout(900)]
        served.append(pytest.param(name, marks=marks))
    return [*kits, *served]


@contextmanager
def _kit(request: pytest.FixtureRequest, kits: dict[str, MakeKit]) -> Iterator[Kit]:
    if request.param in SERVERS:
        yield request.getfixturevalue(f"{request.param}_kit")
    else:
        with kits[request.param]() as kit:
            yield kit


@pytest.fixture(scope="session", params=_parameters(KITS))
def kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Every engine, also those with scripted tokens."""
    with _kit(request, KITS) as kit:
        yield kit


@pytest.fixture(scope="session", params=_parameters(COMPUTING_KITS))
def computing_kit(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Every engine that computes a model."""
    with _kit(request, COMPUTING_KITS) as kit:
        yield kit


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sglang_server.Server]:
    """A running SGLang server."""
    with sglang_server.serving(tmp_path_factory.mktemp("sglang"), lively_model(), CONTEXT) as server:
        yield server


@pytest.fixture(scope="session")
def sglang_kit(sglang: sglang_server.Server) -> Kit:
    """SGLang with a Qwen2."""
    return Kit(
        lively_model(),
        lively_model(seed=1),
        sglang.make,
        lambda model: model.state_dict(),
        lambda engine: sglang.kill(),
        death="is gone",
        cause=None,
        counts_in_flight=SGLangEngine.counts_in_flight,
        joint_cuts=SGLangEngine.joint_cuts,
        mixes_cuts=False,
        refuses_min_p=True,  # it is in deterministic mode, so that seeds are honoured
        long=500,
        seconds=300.0,
    )


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[vllm_server.Server]:
    """A running vLLM server."""
    with vllm_server.serving(tmp_path_factory.mktemp("vllm"), lively_model(**SERVED), CONTEXT) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_kit(vllm: vllm_server.Server) -> Kit:
    """vLLM with a Qwen2."""
    return Kit(
        lively_model(**SERVED),
        lively_model(seed=1, **SERVED),
        vllm.make,
        lambda model: model.state_dict(),
        lambda engine: vllm.kill(),
        death="is gone",
        cause=None,
        block=vllm_server.BLOCK,
        counts_in_flight=False,  # half a second late
        coldest=VLLM_MIN_TEMPERATURE,
        long=500,
        seconds=300.0,
    )


#: Of the protocol, what the embedded engine and vLLM's server show by these tests, and SGLang's by those beside them.
SLOW_WITH_SGLANG = {
    "test_samples_follow_the_distribution",  # test_logprobs_equal_a_full_forward and test_cuts
    "test_seeded_requests_are_independent_of_batch",  # test_seeded_requests_with_chunked_prompts
    "test_64_at_once_of_mixed_lengths",  # test_logprobs_equal_a_full_forward
    "test_rewritten_session_reuses_the_common_prefix",  # test_sessions_change_only_the_work
}


#: What replicas leave to the embedded engine, whose own tests show it.
SLOW_WITH_REPLICAS = {
    "test_samples_follow_the_distribution",
    "test_kept_ids_are_reported_or_refused",
    "test_seeded_requests_are_independent_of_batch",
    "test_seeded_requests_with_chunked_prompts",
    "test_greedy_equals_transformers_generate",
    "test_cuts",
    "test_unused_ids_are_never_sampled",
}
SLOW = {"sglang]": SLOW_WITH_SGLANG, "replicas-torch]": SLOW_WITH_REPLICAS}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as slow what `SLOW` names."""
    function, _, parameters = item.name.partition("[")
    if function in SLOW.get(parameters, ()):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)  # after pytest's own order, by the parameters of fixtures
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests that kill their engine last, so that a server is started once."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model for servers."""
    path = tmp_path_factory.mktemp("model")
    lively_model().save_pretrained(path)
    return path
