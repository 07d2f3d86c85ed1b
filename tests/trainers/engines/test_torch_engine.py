"""The torch engine beyond the protocol: supported models, scheduling, threads, its copy of the weights."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_kits import VOCAB, lively_model

from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Generation, Sampling, UpdateMode
from trainers.engines.decoder import SIZE, Decoder, blocks_for
from trainers.engines.module_decoder import ModuleDecoder
from trainers.engines.scheduler import Request, Scheduler, Update
from trainers.engines.torch_engine import TorchEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=12)
SMALL = TorchEngineSection(max_slots=2, threads=1)


def scheduler(
    slots: int = 4,
    budget: int = 1024,
    context: int = 128,
    model: Any = None,
    seed: int = 0,
    threads: int = 1,
    blocks: int | None = None,
) -> Scheduler:
    decoder = Decoder(model or lively_model(), blocks or slots * blocks_for(context), context, threads=threads)
    return Scheduler(decoder, slots, prefill_budget=budget, seed=seed)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def request(prompt: Sequence[int], sampling: Sampling = GREEDY, session: str | None = None) -> Request:
    return Request(np.array(prompt, np.int32), sampling, session)


@torch.inference_mode()
def drain(machine: Scheduler) -> dict[Any, Generation]:
    outcomes: list[Any] = []
    while machine.has_work:
        outcomes += machine.step()
    return dict(outcomes)


# Scheduling


@pytest.mark.parametrize("budget", [1, 2, 7, 64])
def test_chunked_prompts_change_nothing(budget: int) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (1, 2, 3, 30, 31, 57, 100, 5)]
    results = []
    for machine in (scheduler(), scheduler(budget=budget)):
        requests = [request(p, Sampling(max_new_tokens=10, seed=i)) for i, p in enumerate(prompts)]
        for query in requests:
            machine.add(query)
        done = drain(machine)
        results.append([done[query] for query in requests])
    for one, two in zip(*results, strict=True):
        assert one.token_ids.tolist() == two.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-4)


@torch.inference_mode()
def test_freed_memory_changes_no_reply() -> None:
    prompts = [list(range(2, 2 + n)) for n in (20, 40, 40)]
    results = []
    for asleep_after in (None, 3):
        machine = scheduler(slots=3)
        requests = [request(p, Sampling(max_new_tokens=10, seed=i)) for i, p in enumerate(prompts)]
        for query in requests:
            machine.add(query)
        outcomes: list[Any] = []
        while machine.has_work:
            outcomes += machine.step()
            if machine.counters["steps"] == asleep_after:
                machine.free_memory(weights=False)
                held = [x for x in gc.get_objects() if type(x) is torch.Tensor and len(x.shape) == 3]
                assert all(len(x) != 3 * 128 for x in held), "keys and values are gone"
        done = dict(outcomes)
        results.append([done[query].token_ids.tolist() for query in requests])
    assert results[0] == results[1]


@torch.inference_mode()
@pytest.mark.parametrize("kind", [Decoder, ModuleDecoder])
@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_requests_without_weights_wait_for_update(kind: Any, mode: UpdateMode) -> None:
    """Requests in flight wait too, and continue unchanged."""
    weights = lively_model(seed=1).state_dict()
    prompts = [list(range(2, 2 + n)) for n in (20, 40)]
    results = []
    for level in (1, 2):
        decoder = kind(lively_model(), 32, 128, threads=1)
        machine = Scheduler(decoder, 2)
        requests = [request(p, Sampling(max_new_tokens=10, seed=i)) for i, p in enumerate(prompts)]
        machine.add(requests[0])
        outcomes = [*machine.step(), *machine.step()]
        machine.free_memory(weights=level == 2)
        machine.free_memory(weights=level == 2)  # twice is once
        held = {value.untyped_storage().nbytes() for value in decoder.parameters.values()}
        assert (held == {0}) == (level == 2)
        machine.add(requests[1])
        if level == 2:
            assert not machine.has_work
            assert not machine.step()
        machine.add(Update(weights, 1, mode if level == 2 else "keep"))
        while machine.has_work:
            outcomes += machine.step()
        done = dict(outcomes)
        results.append([done[query] for query in requests])
    for one, two in zip(*results, strict=True):
        assert one.token_ids.tolist() == two.token_ids.tolist()
        assert one.weight_version.tolist() == two.weight_version.tolist()


@torch.inference_mode()
def test_siblings_compute_their_prompt_once() -> None:
    rng = np.random.default_rng(0)
    prompt, other = rng.integers(0, VOCAB, 40).tolist(), rng.integers(0, VOCAB, 40).tolist()
    inputs = [(prompt, 0), (prompt, 1), (other, 2), (prompt, 3), (prompt[:-1], 4)]
    expected = []
    for ids, seed in inputs:
        machine = scheduler()
        machine.add(alone := request(ids, Sampling(max_new_tokens=10, seed=seed)))
        expected.append(drain(machine)[alone])
    machine = scheduler(slots=5, budget=16)  # the prompt takes several steps
    requests = [request(ids, Sampling(max_new_tokens=10, seed=seed)) for ids, seed in inputs]
    for query in requests:
        machine.add(query)
    done = drain(machine)
    for query, alone in zip(requests, expected, strict=True):
        assert done[query].token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_allclose(done[query].logprobs, alone.logprobs, atol=1e-4)
    # Whole blocks of 16 are shared, also with the prompt that ends a token earlier.
    assert [done[query].metrics["cached_tokens"] for query in requests] == [0, 32, 0, 32, 32]
    assert machine.counters["prefill_tokens"] == 40 + 40 + 8 + 8 + 7
    assert machine.counters["cached_tokens"] == 3 * 32


@torch.inference_mode()
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_siblings_survive_cancelled_prompt_owner(steps: int) -> None:
    prompt = list(range(40))
    machine = scheduler(budget=16)
    requests = [request(prompt, Sampling(max_new_tokens=10, seed=1)) for _ in range(3)]
    for query in requests:
        machine.add(query)
    for _ in range(steps):
        machine.step()
    machine.cancel(requests[0])
    done = drain(machine)
    assert set(done) == set(requests[1:])
    alone = scheduler()
    alone.add(one := request(prompt, Sampling(max_new_tokens=10, seed=1)))
    expected = drain(alone)[one]
    for query in requests[1:]:
        assert done[query].token_ids.tolist() == expected.token_ids.tolist()


@torch.inference_mode()
def test_siblings_reuse_prompt_of_ended_request() -> None:
    prompt = list(range(40))
    machine = scheduler()
    requests = [request(prompt, Sampling(max_new_tokens=count, seed=i)) for i, count in enumerate((1, 5, 5))]
    for query in requests:
        machine.add(query)
    done = drain(machine)
    assert machine.counters["prefill_tokens"] == 40 + 8 + 8
    for i, query in enumerate(requests):
        alone = scheduler()
        alone.add(again := request(prompt, Sampling(max_new_tokens=len(done[query].token_ids), seed=i)))
        assert drain(alone)[again].token_ids.tolist() == done[query].token_ids.tolist()


@torch.inference_mode()
def test_new_weights_recompute_the_whole_prompt() -> None:
    old, new = lively_model(), lively_model()
    for parameter in new.parameters():
        parameter.mul_(1.1)
    prompt = list(range(40))
    expected = []
    for seed in range(3):
        machine = scheduler(model=new)
        machine.add(alone := request(prompt, Sampling(max_new_tokens=10, seed=seed)))
        expected.append(drain(machine)[alone])
    for steps in (1, 2, 3):
        machine = scheduler(model=old, budget=16)
        requests = [request(prompt, Sampling(max_new_tokens=10, seed=seed)) for seed in range(3)]
        for query in requests:
            machine.add(query)
        for _ in range(steps):
            machine.step()
        sampled = [int(machine._length[query.row]) - 40 for query in requests]
        machine.add(Update(new.state_dict(), 1, "keep"))
        done = drain(machine)
        for query, alone, before in zip(requests, expected, sampled, strict=True):
            if not before:  # nothing was drawn with the old weights
                np.testing.assert_allclose(done[query].logprobs, alone.logprobs, atol=1e-4)
                assert done[query].token_ids.tolist() == alone.token_ids.tolist()
            assert done[query].weight_version.tolist() == [0] * before + [1] * (10 - before)


@torch.inference_mode()
def test_long_prompt_does_not_delay_decoding() -> None:
    machine = scheduler(budget=4)
    short, long = request([1, 2]), request([3] * 100)
    machine.add(short)
    machine.step()
    machine.add(long)
    ended = [machine.step() for _ in range(GREEDY.max_new_tokens - 1)]
    assert [item for outcomes in ended for item, _ in outcomes] == [short]
    assert ended[-1], "a token at every step"


def test_request_joins_at_the_next_step() -> None:
    machine = scheduler()
    first, second = request([1, 2]), request([3])
    with torch.inference_mode():
        machine.add(first)
        machine.step()
        machine.add(second)
        machine.step()
        assert machine.counters["generated_tokens"] == 3
    done = drain(machine)
    assert set(done) == {first, second}
    assert machine.counters["steps"] == GREEDY.max_new_tokens + 1


def test_first_come_first_served() -> None:
    machine = scheduler(slots=2)
    requests = [request([i]) for i in range(9)]
    for query in requests:
        machine.add(query)
    order: list[Any] = []
    with torch.inference_mode():
        while machine.has_work:
            order += [item for item, _ in machine.step()]
    assert order == requests


def test_longest_idle_session_loses_its_blocks() -> None:
    machine = scheduler(blocks=4, context=64)

    def cached(session: str) -> float:
        query = request([ord(session) % VOCAB] * 20, GREEDY, session)  # 32 tokens with what is made: two blocks
        machine.add(query)
        return drain(machine)[query].metrics["cached_tokens"]

    assert [cached(s) for s in ("a", "b", "a", "c", "a", "d", "e", "a", "b")] == [0, 0, 16, 0, 16, 0, 0, 16, 0]


@torch.inference_mode()
def test_conversation_without_session_is_cached() -> None:
    machine = scheduler(slots=2)
    conversation = list(range(20))
    for turn in range(5):
        machine.add(query := request(conversation, GREEDY))
        made = drain(machine)[query]
        reusable = len(conversation) - 4 if turn else 0  # all but the last message, and the token before it
        assert made.metrics["cached_tokens"] == (reusable // SIZE * SIZE if turn else 0)
        conversation += [*made.token_ids.tolist(), 7, 8, 9]


@torch.inference_mode()
def test_alternating_contexts_are_computed_once() -> None:
    """A session that goes to and fro between two conversations computes each of their tokens once, whole blocks."""
    machine = scheduler(slots=2)
    contexts = [list(range(40)), list(range(20, 60))]
    for turn in range(6):
        context = contexts[turn % 2]
        known = len(context) - 4 if turn > 1 else 0  # all but the last message, and the token before it
        machine.add(query := request(context, GREEDY, "episode"))
        made = drain(machine)[query]
        assert made.metrics["cached_tokens"] == known // SIZE * SIZE
        context += [*made.token_ids.tolist(), 7, 8, 9]
    assert machine._pool.sessions == 1
    machine.release("episode")
    assert machine._pool.free == machine._decoder.blocks


@torch.inference_mode()
@pytest.mark.parametrize("size", [2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 1])
def test_released_sibling_keeps_shared_blocks(size: int) -> None:
    machine = scheduler(slots=2)
    ones = [request(list(range(size)), Sampling(max_new_tokens=40, ignore_stop=True, seed=i), f"s{i}") for i in (0, 1)]
    for query in ones:
        machine.add(query)
    conversation = [*range(size), *drain(machine)[ones[1]].token_ids.tolist(), 7]
    machine.release("s0")
    machine.add(later := request(conversation, GREEDY, "s1"))
    assert drain(machine)[later].metrics["cached_tokens"] == (len(conversation) - 2) // SIZE * SIZE


@torch.inference_mode()
def test_forked_conversation_shares_its_past() -> None:
    machine = scheduler(slots=8)
    past = list(range(50))
    machine.add(request(past, GREEDY, "trunk"))
    made = drain(machine)
    (trunk,) = made.values()
    conversation = [*past, *trunk.token_ids.tolist()]
    branches = [
        request([*conversation, i], Sampling(max_new_tokens=40, ignore_stop=True), f"branch {i}") for i in range(7)
    ]
    for query in branches:
        machine.add(query)
    machine.step()
    alone = blocks_for(len(conversation) + 1)
    shared = (len(conversation) - 1) // SIZE  # the last token was never computed
    assert machine._decoder.blocks - machine._pool.free == shared + 7 * (alone - shared)
    done = drain(machine)
    for query in branches:
        assert done[query].metrics["cached_tokens"] == shared * SIZE


@torch.inference_mode()
# Less than a sequence needs, about one, and enough.
@pytest.mark.parametrize("blocks", [8, pytest.param(9, marks=pytest.mark.slow), 13, 30])
def test_too_little_memory_changes_no_token(blocks: int) -> None:
    rng = np.random.default_rng(1)
    common = rng.integers(0, VOCAB, 35).tolist()
    prompts = [[*common, *rng.integers(0, VOCAB, n).tolist()] for n in (0, 3, 20, 0, 60, 0, 3, 90, 1, 12)]
    queries = [request(p, Sampling(max_new_tokens=40, seed=i), f"s{i % 4}") for i, p in enumerate(prompts)]
    plenty = scheduler(slots=1)
    expected = []
    for i, prompt in enumerate(prompts):
        plenty.add(one := request(prompt, Sampling(max_new_tokens=40, seed=i)))
        expected.append(drain(plenty)[one])
    machine = scheduler(slots=8, blocks=blocks, budget=48)
    for query in queries:
        machine.add(query)
    made = drain(machine)
    for query, alone in zip(queries, expected, strict=True):
        assert made[query].token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_allclose(made[query].logprobs, alone.logprobs, atol=1e-4)
    assert (machine.counters["preemptions"] > 0) == (blocks < 30)
    for session in {query.session for query in queries}:
        machine.release(str(session))
    assert machine._pool.free == blocks, "nothing is left behind"
    assert not machine._coming
    assert not machine._pool._named


def test_enough_memory_means_no_preemption() -> None:
    machine = scheduler(slots=4, context=64)
    queries = [request([i] * (40 + i), Sampling(max_new_tokens=60, ignore_stop=True)) for i in range(8)]
    for query in queries:
        machine.add(query)
    with torch.inference_mode():
        for _ in range(12):
            machine.step()
            assert machine.gauges()["running"] == 4
    assert all(len(made.token_ids) == 64 - len(query.prompt) for query, made in drain(machine).items())
    assert machine.counters["preemptions"] == 0


def test_too_little_memory_for_one_request_is_refused() -> None:
    with pytest.raises(ValueError, match=r"room for 0 positions.*max_context=128; give at least"):
        TorchEngine(lively_model(), TorchEngineSection(max_context=128, kv_cache_gib=1e-9))


def test_memory_is_allocated_on_use() -> None:
    decoder = Decoder(lively_model(), 4096, 128)
    assert all(not kv[-1].any() and kv.dtype == decoder.dtype for kv in decoder._kv)
    before = resident_bytes()
    decoder = Decoder(lively_model(), 2**18, 128)
    held = sum(kv.nbytes for kv in decoder._kv)
    assert held >= 2**30
    assert resident_bytes() - before < held / 10


@pytest.mark.parametrize("way", ["gathered", "in place", "as on a GPU"])
def test_slots_of_any_length_are_read_correctly(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("trainers.engines.decoder._GROUP_ROWS", 3)
    alone = scheduler(slots=1)
    expected = {}
    for i in range(16):
        query = request([i] * (1 + i * 7 % 16), Sampling(max_new_tokens=(3, 40)[i % 5 == 0], seed=i))
        alone.add(query)
        expected[i] = drain(alone)[query]
    machine = scheduler(slots=16, threads=2 if way == "in place" else 1)
    if way == "as on a GPU":  # large groups, and more keys than there are tokens
        machine._decoder._group_rows, machine._decoder._keys_step = 256, 24
    requests = [
        request([i] * (1 + i * 7 % 16), Sampling(max_new_tokens=(3, 40)[i % 5 == 0], seed=i)) for i in range(16)
    ]
    for query in requests:
        machine.add(query)
    done = drain(machine)
    for i, query in enumerate(requests):
        assert done[query].token_ids.tolist() == expected[i].token_ids.tolist()
        np.testing.assert_allclose(done[query].logprobs, expected[i].logprobs, atol=1e-4)


def test_engine_seed_repeats_unseeded_requests() -> None:
    def tokens(seed: int) -> list[list[int]]:
        machine = scheduler(seed=seed)
        requests = [request([1], Sampling(max_new_tokens=8)) for _ in range(3)]
        for query in requests:
            machine.add(query)
        done = drain(machine)
        return [done[query].token_ids.tolist() for query in requests]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert len(set(map(tuple, tokens(1)))) == 3


def test_aborted_generation_can_be_continued() -> None:
    machine = scheduler()
    whole = request([1, 2, 3], Sampling(max_new_tokens=20, seed=9))
    machine.add(whole)
    tokens = drain(machine)[whole].token_ids.tolist()
    rest = request([1, 2, 3, *tokens[:7]], Sampling(max_new_tokens=13, seed=9))
    machine.add(rest)
    assert drain(machine)[rest].token_ids.tolist() == tokens[7:]


@torch.inference_mode()
def test_updates_are_ordered_and_can_be_withdrawn() -> None:
    machine = scheduler()
    weights = lively_model(seed=1).state_dict()
    running = request([1])
    machine.add(running)
    machine.step()
    first, withdrawn, second = (Update(weights, v, "wait") for v in (1, 2, 3))
    late = request([1])
    for update in (first, withdrawn, second):
        machine.add(update)
    machine.add(late)
    machine.cancel(withdrawn)
    outcomes = []
    while machine.has_work:
        outcomes += machine.step()
    assert [item for item, _ in outcomes] == [running, first, second, late]
    assert set(dict(outcomes)[late].weight_version) == {3}


def test_output_that_is_not_finite_ends_the_engine() -> None:
    machine = scheduler()
    machine._decoder._norm.fill_(float("nan"))
    machine.add(request([1]))
    with pytest.raises(RuntimeError, match="not finite"):
        drain(machine)


# Weights, threads


async def test_engine_has_its_own_weights() -> None:
    model = lively_model()
    engine = TorchEngine(model, SMALL)
    before = await engine.generate([1, 2], GREEDY)
    weights = {name: value.clone() for name, value in lively_model(seed=1).state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = await engine.generate([1, 2], GREEDY)
    assert before.token_ids.tolist() == after.token_ids.tolist()
    await engine.update_weights(weights, 1)
    new = await engine.generate([1, 2], GREEDY)
    for value in weights.values():
        value.zero_()
    assert (await engine.generate([1, 2], GREEDY)).token_ids.tolist() == new.token_ids.tolist()
    await engine.close()


async def test_tied_weights_must_be_equal() -> None:
    engine = TorchEngine(lively_model(), SMALL)
    weights = dict(lively_model(seed=1).state_dict())
    once = {name: value for name, value in weights.items() if name != "lm_head.weight"}
    await engine.update_weights(once, 1)
    first = await engine.generate([1], GREEDY)
    await engine.update_weights(weights | {"lm_head.weight": weights["lm_head.weight"].clone()}, 2)
    second = await engine.generate([1], GREEDY)
    assert first.token_ids.tolist() == second.token_ids.tolist()
    with pytest.raises(ValueError, match="tied"):
        await engine.update_weights(weights | {"lm_head.weight": weights["lm_head.weight"] + 1}, 3)
    await engine.close()


async def test_engine_stop_tokens_apply_to_all_requests() -> None:
    plain = TorchEngine(lively_model(), SMALL)
    tokens = (await plain.generate([1, 2], GREEDY)).token_ids.tolist()
    await plain.close()
    engine = TorchEngine(lively_model(), SMALL, stop_token_ids=[tokens[4]])
    made = await engine.generate([1, 2], GREEDY)
    assert made.token_ids.tolist() == tokens[: tokens.index(tokens[4]) + 1]
    assert made.finish_reason == "stop"
    await engine.close()


def engine_threads() -> int:
    return sum(thread.name == "torch-engine" for thread in threading.enumerate())


async def test_no_thread_outlives_its_engine() -> None:
    before = engine_threads()
    engine = TorchEngine(lively_model(), SMALL)
    await engine.generate([1], GREEDY)
    assert engine_threads() == before + 1
    await engine.close()
    assert engine_threads() == before
    engine = TorchEngine(lively_model(), SMALL)
    del engine
    gc.collect()
    assert engine_threads() == before


def test_closed_event_loop_does_not_affect_others() -> None:
    engine = TorchEngine(lively_model(), TorchEngineSection(max_slots=4, threads=1))
    tasks: list[asyncio.Future[Generation]] = []  # asyncio itself keeps only weak references

    async def abandon() -> None:
        tasks.append(asyncio.ensure_future(engine.generate([1], Sampling(max_new_tokens=300, ignore_stop=True))))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    loop.close()

    async def rest() -> Generation:
        made = await engine.generate([1], Sampling(max_new_tokens=400, ignore_stop=True))
        await engine.close()
        return made

    assert len(asyncio.run(rest()).token_ids) == 400


def test_thread_setting_is_local() -> None:
    before = torch.get_num_threads()

    async def run() -> None:
        engine = TorchEngine(lively_model(), TorchEngineSection(max_slots=2, threads=before + 1))
        await engine.generate([1], GREEDY)
        await engine.close()

    asyncio.run(run())
    assert torch.get_num_threads() == before


def test_kv_use_counts_only_computing_blocks() -> None:
    machine = scheduler(slots=5, blocks=4, context=64)
    for i in range(6):
        machine.add(request([i], Sampling(max_new_tokens=2 + i, ignore_stop=True), session=f"s{i}"))
    seen = []
    while machine.has_work:
        with torch.inference_mode():
            machine.step()
        seen.append(tuple(machine.gauges()[name] for name in ("kv_use", "running", "waiting")))
    assert seen[0] == (1.0, 4, 2), "one waits for a row, and one for a block"
    assert (0.25, 1, 0) in seen
    assert seen[-1] == (0.0, 0, 0), "a session that is kept computes nothing"


async def test_cancelled_close_does_not_block_the_loop() -> None:
    engine, resumed, outcome = TorchEngine(lively_model(), SMALL), threading.Event(), []

    def hang(*_: object) -> None:
        outcome.append(resumed.wait(60))
        raise MemoryError("injected")

    engine._scheduler._decoder.logits = hang  # type: ignore[method-assign, assignment]
    request = asyncio.ensure_future(engine.generate([1], GREEDY))
    while not engine.stats()["requests"]:
        await asyncio.sleep(0.001)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await engine.close()
    resumed.set()
    await engine.close()
    engine._thread.join(60)  # the first close waits for it in the background
    assert outcome == [True], "loop and engine continued"
    await asyncio.gather(request, return_exceptions=True)
