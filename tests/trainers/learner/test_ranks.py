"""One, two and four ranks of gloo: the same numbers as one process with plain modules, however the work is cut."""

from __future__ import annotations

import asyncio
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from learner_helpers import caught_gradients
from ranks import TRAJECTORIES, assert_same, make_learner, measure, run_ranks
from torch.distributed.fsdp import FSDPModule
from trajectories import episode_of

from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Sampling
from trainers.engines.torch_engine import TorchEngine

TENSOR, SEQUENCE = "tensor_parallel_size", "ulysses_sequence_parallel_size"
LORA = {"lora_rank": 4, "lora_alpha": 8}
# One forkserver has torch imported for all of them; on a busy machine that alone may take a minute.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("ranks")]


def measured(folder, family="qwen2", trajectories=TRAJECTORIES, **settings):
    learner = make_learner(family, **settings)
    return measure(learner, trajectories)


def after_an_update(folder, family="qwen2", **settings):
    """With adapters whose B is not 0 any more."""
    learner = make_learner(family, **settings)
    learner.update_sft(TRAJECTORIES)
    return measure(learner)


ONE_AT_A_TIME = {"max_tokens_per_micro_batch": 1, "chunk_size": 3}
ALL_AT_ONCE = {"max_tokens_per_micro_batch": 10**6, "chunk_size": 10**6}
PADDED, PACKED = {"share_prefixes": False}, {"share_prefixes": False, "use_remove_padding": True}
#: Four ranks on two cores take a minute.
COUNTS = pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
#: Cases that must all give what plain modules of the family give, or such with adapters, by the number of ranks. As
#: token trees where nothing else is said; each way to cut, to pack and to save memory is with each other somewhere.
CASES = {
    1: {
        "packed, one trajectory at a time, small chunks": {**PACKED, **ONE_AT_A_TIME},
        "lora, all at once, full head": {**LORA, **ALL_AT_ONCE},
    },
    2: {
        "sharded": {},
        "copies": {"fsdp_size": 1},
        "padded, one trajectory at a time, small chunks": {**PADDED, **ONE_AT_A_TIME},
        "all at once, full head, checkpointing": {**ALL_AT_ONCE, "enable_gradient_checkpointing": True},
        "lora, padded, small chunks": {**LORA, "chunk_size": 3, **PADDED},
        "sequence, packed, checkpointing": {SEQUENCE: 2, "enable_gradient_checkpointing": True, **PACKED},
        "llama, tensor": {"family": "llama", TENSOR: 2},
        "bfloat16": {"family": "qwen3", "dtype": "bfloat16", TENSOR: 2},
    },
    4: {
        "hybrid, packed": {"fsdp_size": 2, **PACKED},
        "sequence": {SEQUENCE: 4},
        "sequence, padded": {SEQUENCE: 4, **PADDED},
        "hybrid, tensor, checkpointing": {"fsdp_size": 1, TENSOR: 2, "enable_gradient_checkpointing": True},
        "qwen3, sequence and tensor": {"family": "qwen3", SEQUENCE: 2, TENSOR: 2},
        "lora, tensor": {**LORA, TENSOR: 2},
        "one trajectory": {"trajectories": TRAJECTORIES[1:2]},
        "sharded, one trajectory at a time": ONE_AT_A_TIME,
    },
}


def cases(world):
    return {
        name: partial(after_an_update if "lora_rank" in settings else measured, **({"fsdp": "always"} | settings))
        for name, settings in CASES[world].items()
    }


def sampled_by_an_engine():
    """Trajectories of prompts that the engine went on with, with its own log-probabilities."""

    async def sample():
        engine = TorchEngine(
            make_learner(critic=False, reference=False).actor.lm, TorchEngineSection(max_slots=8, max_context=64)
        )
        try:
            sampling = [Sampling(max_new_tokens=9 + number, ignore_stop=True, seed=number) for number in range(5)]
            prompts = [[(7 * number + at) % 61 for at in range(3 + number)] for number in range(5)]
            return prompts, await asyncio.gather(*map(engine.generate, prompts, sampling))
        finally:
            await engine.close()

    prompts, made = asyncio.run(sample())
    return list(map(episode_of, prompts, made))


def scored(folder, trajectories, **settings):
    learner = make_learner(critic=False, reference=False, fsdp="always", **settings)
    return np.concatenate(learner.logprobs(trajectories))


def engine_cases(world, trajectories):
    sizes = {1: {}, 2: {TENSOR: 2}, 4: {TENSOR: 2, SEQUENCE: 2}}
    ways = {"engine": {}, "engine, packed, cut": {"use_remove_padding": True, **sizes[world]}}
    return {name: partial(scored, trajectories=trajectories, **options) for name, options in ways.items()}


# ------------------ what gloo gets wrong, or lacks


def scaled_sum(folder):
    """Return FSDP2's error for a divisor of 1 without plain sums, and whether our learner uses plain sums."""
    scaled = dist._make_nccl_premul_sum(1.0)
    try:
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(dist.get_world_size()), op=scaled)
        message = None
    except (RuntimeError, ValueError) as error:
        message = str(error)
    groups = [module for module in make_learner(fsdp="always").actor.modules() if isinstance(module, FSDPModule)]
    plain = [module._get_fsdp_state()._fsdp_param_group.force_sum_reduction_for_comms for module in groups]
    return message, len(plain), all(plain)


def summed_pieces(folder):
    """``reduce_scatter`` as FSDP2 uses it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(float(3 * world)) * (rank + 1)
    piece = torch.empty(3)
    dist.reduce_scatter_tensor(piece, numbers)
    return piece.tolist()


def gradient_of_the_same_on_every_rank(folder):
    """The loss is a sum over ranks that are given different trajectories: here, one alone, and the others idle."""
    learner = make_learner(critic=False, reference=False)
    return caught_gradients(learner.actor_optimizer, lambda: learner.update_sft(TRAJECTORIES[1:2]))[0]


def threads_of_a_rank(folder):
    torch.set_num_threads(3)
    make_learner(critic=False, reference=False, threads=1)
    return torch.get_num_threads()


def weights_that_an_engine_gets(folder):
    learner = make_learner(critic=False, reference=False)
    before = np.concatenate(learner.logprobs(TRAJECTORIES))
    weights = learner.weights()
    kinds = {type(value).__name__ for value in weights.values()}
    for value in weights.values():
        value.zero_()  # the engine's own now
    return kinds, bool(np.array_equal(before, np.concatenate(learner.logprobs(TRAJECTORIES))))


TRAPS = {
    function.__name__: function
    for function in (
        summed_pieces,
        gradient_of_the_same_on_every_rank,
        threads_of_a_rank,
        weights_that_an_engine_gets,
        scaled_sum,
    )
}


@pytest.fixture(scope="module")
def sampled():
    return sampled_by_an_engine()


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory, sampled):
    """Return each rank's results for a number of ranks, which are started once."""

    @cache
    def results_of(count):
        every = {**cases(count), **engine_cases(count, sampled), **(TRAPS if count == 2 else {})}
        return run_ranks(count, every, tmp_path_factory.mktemp(f"ranks{count}"))

    return results_of


@pytest.fixture(scope="module")
def plain():
    """The same cases in this process, with plain modules and padded rows, by name."""
    assert not dist.is_initialized()
    return {
        "sharded": measured(None, **PADDED),
        "one trajectory": measured(None, trajectories=TRAJECTORIES[1:2], **PADDED),
        "qwen3": measured(None, family="qwen3", **PADDED),
        "llama": measured(None, family="llama", **PADDED),
        "lora": after_an_update(None, **LORA, **PADDED),
    }


@COUNTS
def test_any_number_of_ranks_is_one(plain, ranks_of, count):
    ranks = ranks_of(count)
    for name in cases(count).keys() - {"bfloat16"}:
        expected = plain.get(name.partition(",")[0], plain["sharded"])
        try:
            assert_same(ranks[0][name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name} on {count} ranks: {error}") from error


def test_bfloat16_is_near_where_it_is_cut(plain, ranks_of):
    cut, whole = ranks_of(2)[0]["bfloat16"], plain["qwen3"]
    for name in ("logprobs", "entropies", "reference"):
        np.testing.assert_allclose(cut[name], whole[name], atol=0.1)
    for name in ("metrics", "value_metrics"):
        assert cut[name]["grad_norm"] == pytest.approx(whole[name]["grad_norm"], rel=0.1)


@COUNTS
def test_all_ranks_get_same_to_last_bit(ranks_of, count):
    ranks = ranks_of(count)
    for other in ranks[1:]:
        for name in cases(count):
            assert_same(other[name], ranks[0][name], 0.0)


@COUNTS
def test_log_probabilities_are_engines(sampled, ranks_of, count):
    ranks = ranks_of(count)
    logprobs = np.concatenate([trajectory.logprobs[trajectory.action_mask] for trajectory in sampled])
    for name in engine_cases(count, sampled):
        np.testing.assert_allclose(ranks[0][name], logprobs, atol=1e-5, err_msg=name)


# ------------------ what gloo gets wrong, or lacks


@pytest.fixture
def two(ranks_of):
    return ranks_of(2)


def test_gloo_is_forced_to_plain_sums(two):
    """FSDP2 makes of a divisor of 1 a ``PREMUL_SUM``, which is NCCL's."""
    for results in two:
        message, groups, plain = results["scaled_sum"]
        assert "PREMUL_SUM" in message
        assert groups == 3, "two layers and the rest"
        assert plain


def test_gloo_reduce_scatter_sums_pieces(two):
    """pytorch#149869."""
    for rank, results in enumerate(two):
        expected = 3 * np.arange(3 * rank, 3 * rank + 3)
        np.testing.assert_allclose(results["summed_pieces"], expected)


def test_gloo_gradients_are_plain_sums(two):
    """pytorch#162338: an average that was a sum."""
    learner = make_learner(critic=False, reference=False)
    alone, _ = caught_gradients(learner.actor_optimizer, lambda: learner.update_sft(TRAJECTORIES[1:2]))
    for results in two:
        for name, gradient in results["gradient_of_the_same_on_every_rank"].items():
            torch.testing.assert_close(gradient, alone[name], rtol=1e-4, atol=1e-6, msg=name)


def test_rank_uses_requested_threads(two):
    """More than one each, where ranks share cores, makes everything several times slower."""
    assert [results["threads_of_a_rank"] for results in two] == [1, 1]


def test_engine_gets_own_unsharded_tensors(two):
    """A sharded module in an engine's thread would communicate beside the thread that trains."""
    for rank, results in enumerate(two):
        kinds, unchanged = results["weights_that_an_engine_gets"]
        assert kinds == ({"Tensor"} if rank == 0 else set())
        assert unchanged
