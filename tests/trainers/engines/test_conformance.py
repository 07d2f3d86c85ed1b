"""The protocol of ``trainers.engines.base`` as tests, for every engine.

References come from the transformers model itself, computed the slow way: whole sequences, no cache.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from engine_kits import CONTEXT, SERVED, VOCAB, Kit, lively_model
from transformers import PreTrainedModel

from trainers.engines.base import Engine, EngineDeadError, Generation, RequestError, Sampling

GREEDY = Sampling(temperature=0.0, max_new_tokens=24)


@asynccontextmanager
async def running(kit: Kit, model: PreTrainedModel | None = None, **options: Any) -> AsyncIterator[Engine]:
    engine = await kit.make(model or kit.model, **options)
    try:
        async with asyncio.timeout(kit.seconds):
            yield engine
    finally:
        await engine.close()


def prompts(count: int, seed: int = 0, low: int = 1, high: int = 60) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(low, high)).tolist() for _ in range(count)]


@torch.no_grad()
def forward(
    model: PreTrainedModel, prompt: Sequence[int], new: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Compute log-probs over the vocabulary at each new token, from one full forward: ``[len(new), vocab]``."""
    ids = torch.tensor([[*prompt, *map(int, new)]])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1)


def picked(logprobs: torch.Tensor, tokens: Sequence[int]) -> np.ndarray:
    return logprobs[torch.arange(len(tokens)), torch.as_tensor(np.array(tokens), dtype=torch.long)].numpy()


def check_shapes(generation: Generation) -> None:
    count = len(generation.token_ids)
    assert generation.token_ids.dtype == np.int32
    assert generation.logprobs.dtype == np.float32
    assert generation.weight_version.dtype == np.int32
    assert len(generation.logprobs) == len(generation.weight_version) == count
    assert np.isfinite(generation.logprobs).all()
    if generation.sampled_logprobs is not None:
        assert generation.sampled_logprobs.dtype == np.float32
        assert len(generation.sampled_logprobs) == count


async def until_tokens(kit: Kit, engine: Engine, count: int) -> None:
    """Wait until ``count`` tokens were generated since the start."""
    if not kit.counts_in_flight:  # batches are continuous: by the end of a request the others have come as far
        await engine.generate([1], Sampling(max_new_tokens=max(count // 4, 8), ignore_stop=True))
        return
    while engine.stats()["generated_tokens"] < count:
        await asyncio.sleep(0.0005)


async def ask_until_it_fails(engine: Engine, prompt: Sequence[int]) -> None:
    """Send requests one after another, so that a fault always meets one in flight."""
    while True:
        await engine.generate(prompt, Sampling(max_new_tokens=700, ignore_stop=True))


def common_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def reusable(kit: Kit, prompt: Sequence[int], computed: Sequence[Sequence[int]]) -> int:
    """Return the reusable KV of a prompt: its longest known prefix, in whole blocks, without its last token."""
    longest = max((common_prefix(prompt[:-1], sequence) for sequence in computed), default=0)
    return longest // kit.block * kit.block


# Numbers


async def test_greedy_equals_transformers_generate(computing_kit: Kit) -> None:
    kit = computing_kit
    async with running(kit) as engine:
        for prompt in prompts(4):
            made = await engine.generate(prompt, GREEDY)
            ids = torch.tensor([prompt])
            expected = kit.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
            assert made.token_ids.tolist() == expected[0, len(prompt) :].tolist()
            assert made.finish_reason == "length"
            check_shapes(made)


async def test_logprobs_equal_a_full_forward(computing_kit: Kit) -> None:
    temperatures = [0.0, 0.6, 1.0, 1.7] * 4  # in one batch
    async with running(computing_kit) as engine:
        inputs = prompts(16, seed=1)
        made = await asyncio.gather(
            *(
                engine.generate(p, Sampling(temperature=temperature, max_new_tokens=20, seed=i))
                for i, (p, temperature) in enumerate(zip(inputs, temperatures, strict=True))
            )
        )
    for prompt, temperature, generation in zip(inputs, temperatures, made, strict=True):
        full = forward(computing_kit.model, prompt, generation.token_ids, temperature or 1.0)
        np.testing.assert_allclose(generation.logprobs, picked(full, generation.token_ids), atol=1e-4)
        if generation.sampled_logprobs is not None:
            expected = np.zeros_like(generation.logprobs) if temperature == 0 else generation.logprobs
            np.testing.assert_allclose(generation.sampled_logprobs, expected, atol=1e-6)


def cut_by_hand(probs: np.ndarray, top_k: int, top_p: float, min_p: float, joint: bool) -> dict[int, float]:
    """Return the distribution after the cuts, token by token, from the definitions in ``base``.

    With ``joint``, ``top_p`` is a share of the whole, not of what ``top_k`` left.
    """
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    candidates = order[: top_k or None]
    total, nucleus = sum(probs[token] for token in (order if joint else candidates)), []
    for token in candidates:
        nucleus.append(token)
        if sum(probs[t] for t in nucleus) >= top_p * total:
            break
    survivors = [token for token in nucleus if probs[token] >= min_p * probs[nucleus[0]]]
    mass = sum(probs[token] for token in survivors)
    return {token: probs[token] / mass for token in survivors}


#: ``top_k``, ``top_p``, ``min_p``.
CUTS = [(1, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.2), (8, 0.8, 0.0), (10, 0.9, 0.1)]


async def test_cuts(computing_kit: Kit) -> None:
    inputs = prompts(24, seed=2)
    async with running(computing_kit) as engine:
        if computing_kit.refuses_min_p:
            with pytest.raises(RequestError, match="min_p"):
                await engine.generate(inputs[0], Sampling(temperature=1.3, min_p=0.1))
        cuts = [cut for cut in CUTS if not (cut[2] and computing_kit.refuses_min_p)]
        rows = [(prompt, *cuts[i % len(cuts)]) for i, prompt in enumerate(inputs)]
        plain = asyncio.gather(*(engine.generate(p, Sampling(max_new_tokens=12)) for p in inputs[:12]))  # without cuts
        made = await asyncio.gather(
            *(
                engine.generate(p, Sampling(1.3, top_p, top_k, min_p, max_new_tokens=12, seed=i))
                for i, (p, top_k, top_p, min_p) in enumerate(rows)
            )
        )
        await plain
    for (prompt, *cut), generation in zip(rows, made, strict=True):
        full = forward(computing_kit.model, prompt, generation.token_ids, 1.3)
        np.testing.assert_allclose(generation.logprobs, picked(full, generation.token_ids), atol=1e-4)
        for at, token in enumerate(generation.token_ids.tolist()):
            allowed = cut_by_hand(full[at].double().exp().numpy(), *cut, computing_kit.joint_cuts)
            assert token in allowed, cut
            if generation.sampled_logprobs is not None:
                assert generation.sampled_logprobs[at] == pytest.approx(np.log(allowed[token]), abs=1e-4), cut


async def test_kept_ids_are_reported_or_refused(computing_kit: Kit) -> None:
    inputs, sampling = prompts(6, seed=5), {"temperature": 1.3, "top_k": 8, "top_p": 0.8, "max_new_tokens": 7}
    async with running(computing_kit) as engine:
        if not computing_kit.reports_kept:
            with pytest.raises(RequestError, match="return_kept"):
                await engine.generate(inputs[0], Sampling(**sampling, return_kept=True))
            return
        made = await asyncio.gather(
            *(engine.generate(p, Sampling(**sampling, return_kept=i > 0, seed=i)) for i, p in enumerate(inputs))
        )
        again = await engine.generate(inputs[1], Sampling(**sampling, seed=1))
        (greedy,) = await asyncio.gather(engine.generate(inputs[0], Sampling(temperature=0, return_kept=True)))
    assert made[0].kept_ids is made[0].kept_counts is None
    assert again.token_ids.tolist() == made[1].token_ids.tolist(), "it changes nothing"
    assert greedy.kept_counts is not None
    assert not greedy.kept_counts.any()
    for prompt, generation in zip(inputs[1:], made[1:], strict=True):
        assert generation.kept_ids is not None
        assert generation.kept_counts is not None
        full = forward(computing_kit.model, prompt, generation.token_ids, 1.3)
        sets = np.split(generation.kept_ids, np.cumsum(generation.kept_counts)[:-1])
        for at, some in enumerate(sets):
            assert set(some.tolist()) == set(cut_by_hand(full[at].double().exp().numpy(), 8, 0.8, 0.0, False))


async def test_unused_ids_are_never_sampled(computing_kit: Kit) -> None:
    unused = [2, 3, *range(VOCAB // 2, VOCAB)]
    samplings = [Sampling(temperature=t, top_k=k, max_new_tokens=16, seed=1) for t in (0.0, 0.7, 2.0) for k in (0, 5)]
    inputs = prompts(len(samplings), seed=8)
    async with running(computing_kit, unused=unused) as engine:
        made = await asyncio.gather(*(engine.generate(*arguments) for arguments in zip(inputs, samplings, strict=True)))
    for prompt, sampling, generation in zip(inputs, samplings, made, strict=True):
        full = forward(computing_kit.model, prompt, generation.token_ids, sampling.temperature or 1.0)
        full[:, unused] = -torch.inf
        rest = full.log_softmax(-1)
        np.testing.assert_allclose(generation.logprobs, picked(rest, generation.token_ids), atol=1e-4)
        if not sampling.temperature:
            assert generation.token_ids.tolist() == rest.argmax(-1).tolist()
    async with running(computing_kit) as engine:  # the next engine is not bound by the one before
        free = await engine.generate(inputs[4], Sampling(temperature=2.0, max_new_tokens=60, seed=1))
    assert not set(unused).isdisjoint(free.token_ids.tolist())


async def test_samples_follow_the_distribution(kit: Kit) -> None:
    if not kit.computes:
        pytest.skip("its tokens are made up")
    prompt, count = [3, 1, 4], 1500
    async with running(kit, max_slots=256) as engine:
        made = await asyncio.gather(
            *(engine.generate(prompt, Sampling(max_new_tokens=1, temperature=1.5, seed=seed)) for seed in range(count))
        )
    drawn = np.bincount([int(generation.token_ids[0]) for generation in made], minlength=VOCAB)
    expected = count * forward(kit.model, prompt, [0], 1.5)[0].double().exp().numpy()
    order = np.argsort(-expected)
    bins = [order[i : i + 1] for i in range(15)] + [order[15:]]  # the rare ones together
    observed, expected_counts = (np.array([side[which].sum() for which in bins]) for side in (drawn, expected))
    assert expected_counts.min() > 5
    chi_square = ((observed - expected_counts) ** 2 / expected_counts).sum()
    assert chi_square < 37.7  # 15 degrees of freedom: p > 0.001


# Ends


async def test_stop_tokens_end_and_stay_in_generations(kit: Kit) -> None:
    async with running(kit) as engine:
        prompt = prompts(1)[0]
        free = await engine.generate(prompt, GREEDY)
        tokens = free.token_ids.tolist()
        stop = tokens[-1]
        sampling = Sampling(temperature=0.0, max_new_tokens=24, stop_token_ids=(stop,))
        stopped = await engine.generate(prompt, sampling)
        first = tokens.index(stop)
        assert stopped.token_ids.tolist() == tokens[: first + 1]
        assert stopped.finish_reason == "stop"
        check_shapes(stopped)
        ignoring = Sampling(temperature=0.0, max_new_tokens=24, stop_token_ids=(stop,), ignore_stop=True)
        on = await engine.generate(prompt, ignoring)
        assert (on.token_ids.tolist(), on.finish_reason) == (tokens, "length")


async def test_requests_have_their_own_stops_and_limits(kit: Kit) -> None:
    async with running(kit) as engine:
        prompt = prompts(1, seed=3)[0]
        tokens = (await engine.generate(prompt, GREEDY)).token_ids.tolist()
        made = await asyncio.gather(
            *(
                engine.generate(prompt, Sampling(temperature=0.0, max_new_tokens=limit, stop_token_ids=stops))
                for limit in (1, 2, 24)
                for stops in ((), (tokens[1],), (tokens[5], tokens[3], tokens[8]))
            )
        )
    stop_sets = ((), tokens[1:2], tokens[3:9:5] + tokens[5:6])
    ends = [min((tokens.index(stop) + 1 for stop in stops), default=99) for stops in stop_sets]
    for generation, (limit, end) in zip(made, [(limit, end) for limit in (1, 2, 24) for end in ends], strict=True):
        assert generation.token_ids.tolist() == tokens[: min(limit, end)]
        assert generation.finish_reason == ("stop" if end <= limit else "length")


async def test_context_limit_ends_a_generation(kit: Kit) -> None:
    async with running(kit) as engine:
        made = await engine.generate([1] * (CONTEXT - 3), Sampling(max_new_tokens=50, ignore_stop=True))
        assert (len(made.token_ids), made.finish_reason) == (3, "length")
        check_shapes(made)
        assert engine.max_context == CONTEXT


# Batching


async def test_seeded_requests_are_independent_of_batch(kit: Kit) -> None:
    inputs = prompts(12, seed=4)
    async with running(kit, max_slots=8) as engine:
        for cuts in [(1.0, 0.9)] if kit.mixes_cuts else [(1.0,), (0.9,)]:
            samplings = [
                Sampling(temperature=1.0, top_p=cuts[i % len(cuts)], max_new_tokens=8 + i, seed=i) for i in range(12)
            ]
            alone = [await engine.generate(p, s) for p, s in zip(inputs, samplings, strict=True)]
            together = await asyncio.gather(*(engine.generate(p, s) for p, s in zip(inputs, samplings, strict=True)))
            backwards = await asyncio.gather(*(engine.generate(inputs[i], samplings[i]) for i in reversed(range(12))))
            for one, two, three in zip(alone, together, reversed(backwards), strict=True):
                assert one.token_ids.tolist() == two.token_ids.tolist() == three.token_ids.tolist()
                np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-4)


async def test_different_seeds_and_unseeded_calls_differ(computing_kit: Kit) -> None:
    async with running(computing_kit) as engine:
        for seeds in ([0, 1, 2, -1, 2**70 + 5], [None] * 5):
            made = [
                await engine.generate([5], Sampling(temperature=2.0, max_new_tokens=12, seed=seed)) for seed in seeds
            ]
            assert len({tuple(generation.token_ids.tolist()) for generation in made}) == len(seeds)


async def test_64_at_once_of_mixed_lengths(kit: Kit) -> None:
    inputs = prompts(64, seed=5, high=120)
    lengths = np.random.default_rng(5).integers(1, 40, 64).tolist()
    async with running(kit, max_slots=16) as engine:
        made = await asyncio.gather(
            *(
                engine.generate(p, Sampling(max_new_tokens=n, ignore_stop=True, seed=n))
                for p, n in zip(inputs, lengths, strict=True)
            )
        )
        stats = engine.stats()
    assert stats["requests"] == 64
    assert stats["generated_tokens"] == sum(lengths)
    assert stats["running"] == 0
    for prompt, length, generation in zip(inputs, lengths, made, strict=True):
        assert len(generation.token_ids) == length
        check_shapes(generation)
        if kit.computes:
            full = forward(kit.model, prompt, generation.token_ids)
            np.testing.assert_allclose(generation.logprobs, picked(full, generation.token_ids), atol=1e-4)


async def test_seeded_requests_with_chunked_prompts(kit: Kit) -> None:
    """An engine that reads a prompt in chunks discards samples before the last; seeded replies are unaffected."""
    inputs = prompts(12, seed=15, low=700, high=740)
    samplings = [Sampling(max_new_tokens=4, seed=i) for i in range(12)]
    async with running(kit, max_slots=12) as engine:
        together = await asyncio.gather(*(engine.generate(p, s) for p, s in zip(inputs, samplings, strict=True)))
        for one, prompt, sampling in list(zip(together, inputs, samplings, strict=True))[::5]:
            alone = await engine.generate(prompt, sampling)
            assert one.token_ids.tolist() == alone.token_ids.tolist()


# Sessions


async def test_sessions_change_only_the_work(kit: Kit) -> None:
    async def episode(engine: Engine, session: str | None, first: list[int]) -> list[Generation]:
        history, made = list(first), []
        for turn in range(4):
            generation = await engine.generate(history, Sampling(max_new_tokens=10, seed=turn), session)
            history += [*generation.token_ids.tolist(), *first[: 3 + turn]]
            made.append(generation)
        return made

    async with running(kit) as engine:
        starts = prompts(8, seed=6, low=4)
        plain = await asyncio.gather(*(episode(engine, None, start) for start in starts))
        with_session = await asyncio.gather(*(episode(engine, f"s{i}", start) for i, start in enumerate(starts)))
        assert engine.stats()["cached_tokens"] > 0
        for one, two, start in zip(plain, with_session, starts, strict=True):
            size = len(start)
            for turn, (a, b) in enumerate(zip(one, two, strict=True)):
                assert a.token_ids.tolist() == b.token_ids.tolist()
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
                assert turn == 0 or (size - 11) // kit.block * kit.block <= b.metrics["cached_tokens"] < size
                size += len(b.token_ids) + len(start[: 3 + turn])
        await engine.release("s0")
        await engine.release("never heard of")


async def test_rewritten_session_reuses_the_common_prefix(kit: Kit) -> None:
    async with running(kit) as engine:
        start = prompts(1, seed=7, low=30)[0]
        held = [[*start, *(await engine.generate(start, GREEDY, "s")).token_ids.tolist()]]
        changed = [*start[:20], (start[20] + 1) % VOCAB, *start[21:]]
        for history in (changed, changed[:9], changed[:9], start, [start[0] ^ 1]):
            least, most = reusable(kit, history, held[-1:]), reusable(kit, history, held)
            with_session = await engine.generate(history, GREEDY, "s")
            plain = await engine.generate(history, GREEDY)
            assert with_session.token_ids.tolist() == plain.token_ids.tolist()
            np.testing.assert_allclose(with_session.logprobs, plain.logprobs, atol=1e-4)
            assert least <= with_session.metrics["cached_tokens"] <= most
            held.append([*history, *with_session.token_ids.tolist()])


async def test_concurrent_and_surplus_sessions_work(kit: Kit) -> None:
    async with running(kit, max_slots=4) as engine:
        inputs, sampling = prompts(8, seed=8), Sampling(temperature=0.0, max_new_tokens=12)
        plain = [await engine.generate(p, sampling) for p in inputs]
        for names in (["same"] * 8, [f"s{i}" for i in range(8)], [f"s{i % 3}" for i in range(8)]):
            for _ in range(2):
                made = await asyncio.gather(
                    *(engine.generate(p, sampling, s) for p, s in zip(inputs, names, strict=True))
                )
                for a, b in zip(plain, made, strict=True):
                    assert a.token_ids.tolist() == b.token_ids.tolist()


# Weights


async def test_update_leaves_no_stale_kv(kit: Kit) -> None:
    async with running(kit) as engine:
        prompt = prompts(1, seed=9, low=20)[0]
        old = await engine.generate(prompt, GREEDY, "s")
        await engine.update_weights(kit.weights(kit.other), 7)
        assert engine.version == 7
        new = await engine.generate([*prompt, *old.token_ids.tolist()], GREEDY, "s")
        assert new.metrics["cached_tokens"] == 0
        assert set(old.weight_version) == {0}
        assert set(new.weight_version) == {7}
        if kit.computes:
            full = forward(kit.other, [*prompt, *old.token_ids.tolist()], new.token_ids)
            np.testing.assert_allclose(new.logprobs, picked(full, new.token_ids), atol=1e-4)


async def interrupted(kit: Kit, mode: Any) -> tuple[list[list[int]], list[Generation], list[Generation]]:
    """Update during 8 generations, with 4 requests that come after the update was requested."""
    inputs = prompts(12, seed=10, low=20)
    async with running(kit) as engine:
        long = [
            asyncio.create_task(
                engine.generate(p, Sampling(max_new_tokens=kit.long, ignore_stop=True, seed=i), f"s{i}")
            )
            for i, p in enumerate(inputs[:8])
        ]
        await until_tokens(kit, engine, 8 * 20)
        update = asyncio.create_task(engine.update_weights(kit.weights(kit.other), 3, mode))
        await asyncio.sleep(0)
        later = [asyncio.create_task(engine.generate(p, GREEDY)) for p in inputs[8:]]
        await update
        assert engine.version == 3
        return inputs, await asyncio.gather(*long), await asyncio.gather(*later)


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
async def test_update_during_generations(kit: Kit, mode: str) -> None:
    for _ in range(20):  # again where the update came before a request had begun, or after it had ended
        inputs, long, later = await interrupted(kit, mode)
        if mode == "wait" or all(
            {0, 3} == set(reply.weight_version) or 0 < len(reply.token_ids) < kit.long for reply in long
        ):
            break
    for prompt, generation in zip(inputs, [*long, *later], strict=True):
        check_shapes(generation)
        versions, tokens = generation.weight_version, generation.token_ids
        assert (np.diff(versions) >= 0).all()
        if kit.computes:  # every token agrees with the weights that its version names
            for version, model in ((0, kit.model), (3, kit.other)):
                which = versions == version
                full = picked(forward(model, prompt, tokens), tokens)
                np.testing.assert_allclose(generation.logprobs[which], full[which], atol=1e-4)
    for generation in later:
        assert set(generation.weight_version) == {3}
        assert len(generation.token_ids) == 24
    for generation in long:
        if mode == "keep":
            assert set(generation.weight_version) == {0, 3}
        else:
            assert set(generation.weight_version) == {0}
        if mode == "abort":
            assert generation.finish_reason == "abort"
            assert 1 <= len(generation.token_ids) < kit.long
        else:
            assert (generation.finish_reason, len(generation.token_ids)) == ("length", kit.long)


async def test_refused_update_changes_nothing(kit: Kit) -> None:
    async with running(kit) as engine:
        await engine.update_weights(kit.weights(kit.model), 5)
        prompt = prompts(1)[0]
        before = await engine.generate(prompt, GREEDY)
        for version in (5, 4):
            with pytest.raises(ValueError, match="greater than 5"):
                await engine.update_weights(kit.weights(kit.other), version)
        after = await engine.generate(prompt, GREEDY)
        assert engine.version == 5
        assert before.token_ids.tolist() == after.token_ids.tolist()
        assert set(after.weight_version) == {5}


async def test_unsuitable_weights_are_refused_entirely(computing_kit: Kit) -> None:
    kit, name = computing_kit, "model.layers.1.mlp.down_proj.weight"
    weights = {key: value.clone() for key, value in kit.other.state_dict().items()}
    nan = torch.full_like(weights[name], float("nan"))
    faults: dict[str, dict[str, Any]] = {
        "missing": {key: value for key, value in weights.items() if key != name},
        "unknown": weights | {"model.layers.9.mlp.down_proj.weight": weights[name]},
        "shape": weights | {name: weights[name].T},
        "nan": weights | {name: nan},
        "not a tensor": weights | {name: 3},
    }
    async with running(kit) as engine:
        before = await engine.generate([1, 2], GREEDY)
        for fault, bad in faults.items():
            with pytest.raises(ValueError, match=r"mlp\.down_proj\.weight"):
                await engine.update_weights(bad, 1)
            after = await engine.generate([1, 2], GREEDY)
            assert engine.version == 0, fault
            assert before.token_ids.tolist() == after.token_ids.tolist(), fault
        await engine.update_weights(kit.weights(kit.other), 1)


# Failures


async def test_cancelling_frees_the_requests_resources(kit: Kit) -> None:
    async with running(kit, max_slots=4) as engine:
        survivor = asyncio.create_task(
            engine.generate([9, 8, 7], Sampling(max_new_tokens=kit.long, ignore_stop=True, seed=1))
        )
        rng = np.random.default_rng(0)
        for round_ in range(10):  # 10 cancellations each: running, queued, or not yet seen
            session = f"s{round_}" if round_ % 2 else None
            tasks = [
                asyncio.create_task(engine.generate([1, 2, 3], Sampling(max_new_tokens=700, ignore_stop=True), session))
                for _ in range(10)
            ]
            await asyncio.sleep(float(rng.choice([0.0, 0.001, 0.003])))
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert len((await survivor).token_ids) == kit.long
        made = await asyncio.gather(*(engine.generate([1, i], GREEDY) for i in range(4)))
        assert [len(generation.token_ids) for generation in made] == [24] * 4
        assert engine.stats()["running"] == 0
        assert engine.stats().get("waiting", 0) == 0


async def test_invalid_requests_do_not_stop_the_engine(kit: Kit) -> None:
    bad: list[Any] = [[], [VOCAB], [-1], [1, 2**40], [0.5], [[1, 2]], "text", [1] * CONTEXT]
    async with running(kit) as engine:
        other = asyncio.create_task(engine.generate([1], Sampling(max_new_tokens=100, ignore_stop=True)))
        for token_ids in bad:
            with pytest.raises(RequestError):
                await engine.generate(token_ids, GREEDY)
        for sampling in (
            Sampling(stop_token_ids=(VOCAB,)),
            Sampling(stop_token_ids=(-1,)),
            Sampling(temperature=1e-30),
            Sampling(temperature=kit.coldest * 0.99),
        ):
            with pytest.raises(RequestError):
                await engine.generate([1], sampling)
        with pytest.raises(ValueError, match="mode"):
            await engine.update_weights(kit.weights(kit.other), 1, "now")  # type: ignore[arg-type]
        min_p = 0.0 if kit.refuses_min_p else 1.0
        odd = Sampling(
            temperature=kit.coldest, top_k=2**80, min_p=min_p, top_p=1e-9, max_new_tokens=2**80, stop_token_ids=(1,)
        )
        # A long prompt, so that the context ends the reply soon where the stop token does not come.
        prompt = np.array([1, 2] * (CONTEXT // 2 - 10), np.int64)
        assert 1 <= len((await engine.generate(prompt, odd)).token_ids) <= CONTEXT - len(prompt)
        assert len((await other).token_ids) == 100


@pytest.mark.last
async def test_dead_engine_fails_all_waiters(kit: Kit) -> None:
    async with running(kit, max_slots=4) as engine:
        tasks = [asyncio.create_task(ask_until_it_fails(engine, [i])) for i in range(8)]
        await until_tokens(kit, engine, 8)
        waiting = asyncio.create_task(engine.update_weights(kit.weights(kit.other), 1, "wait"))
        await asyncio.sleep(0)
        kit.kill(engine)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*tasks, waiting, return_exceptions=True)
        for result in results:
            assert isinstance(result, EngineDeadError)
            assert re.search(kit.death, str(result))
            assert kit.cause is None or isinstance(result.__cause__, kit.cause)
        with pytest.raises(EngineDeadError, match=kit.death):
            await engine.generate([1], GREEDY)
        with pytest.raises(EngineDeadError, match=kit.death):
            await engine.update_weights(kit.weights(kit.other), 1)
        await engine.release("s")


async def test_close_ends_running_requests(kit: Kit) -> None:
    async with running(kit) as engine:
        tasks = [asyncio.create_task(ask_until_it_fails(engine, [i])) for i in range(8)]
        await until_tokens(kit, engine, 8)
        await engine.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) and "closed" in str(result) for result in results)
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.generate([1], GREEDY)
        await engine.close()


def test_it_is_an_engine(kit: Kit) -> None:
    async def check() -> None:
        async with running(kit) as engine:
            assert isinstance(engine, Engine)

    asyncio.run(check())


@pytest.mark.parametrize("shape", [{}, SERVED, {"family": "qwen3", **SERVED}])
def test_models_of_this_suite_are_lively(shape: dict[str, Any]) -> None:
    """Parity means little on flat distributions: the reference must be peaked, at different tokens."""
    model = lively_model(**shape)
    probs = forward(model, [1, 2, 3], list(range(20))).exp()
    assert 0.1 < probs.max(-1).values.mean() < 0.95
    assert len(set(probs.argmax(-1).tolist())) > 5
