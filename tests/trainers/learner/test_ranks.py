"""One, two and four ranks of gloo: the same numbers as one process with plain modules, however the work is cut."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import torch.distributed as dist
from ranks import TRAJECTORIES, assert_same, make_learner, measure, run_ranks

from trainers.learner import LoRASettings, Parallel

LORA = LoRASettings(rank=4, alpha=8)
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


#: Cases that must all give what plain modules give, by the number of ranks.
SAME = {
    1: {
        "sharded": {"fsdp": "always"},
        "sharded, checkpointing, full head": {
            "fsdp": "always",
            "gradient_checkpointing": True,
            "chunk_size": 10**6,
        },
        "packed": {"fsdp": "always", "remove_padding": True},
    },
    2: {
        "sharded": {},
        "one trajectory at a time, small chunks": {"max_tokens_per_micro_batch": 1, "chunk_size": 3},
        "all at once, full head, checkpointing": {
            "max_tokens_per_micro_batch": 10**6,
            "chunk_size": 10**6,
            "gradient_checkpointing": True,
        },
        "copies": {"parallel": Parallel(fsdp_size=1)},
        "sequence": {"parallel": Parallel(sequence=2)},
        "sequence, packed, checkpointing": {
            "parallel": Parallel(sequence=2),
            "remove_padding": True,
            "gradient_checkpointing": True,
        },
        "tensor": {"parallel": Parallel(tensor=2)},
    },
    4: {
        "sharded": {},
        "packed, checkpointing": {"remove_padding": True, "gradient_checkpointing": True},
        "hybrid": {"parallel": Parallel(fsdp_size=2)},
        "sequence": {"parallel": Parallel(sequence=4)},
        "sequence and tensor": {"parallel": Parallel(sequence=2, tensor=2)},
        "hybrid, tensor, checkpointing": {
            "parallel": Parallel(fsdp_size=1, tensor=2),
            "gradient_checkpointing": True,
        },
    },
}


def cases(world):
    found = {f"{name}": partial(measured, **settings) for name, settings in SAME[world].items()}
    if world > 1:
        found["one trajectory"] = partial(measured, trajectories=TRAJECTORIES[1:2])
        found["qwen3"] = partial(measured, family="qwen3", parallel=Parallel(tensor=2, sequence=world // 2))
        found["llama"] = partial(measured, family="llama", parallel=Parallel(tensor=2, sequence=world // 2))
        found["lora"] = partial(after_an_update, lora=LORA)
        cut = Parallel(tensor=2, sequence=world // 2)
        found["bfloat16"] = partial(measured, family="qwen3", dtype="bfloat16", parallel=cut)
        found["lora, tensor"] = partial(after_an_update, lora=LORA, parallel=Parallel(tensor=2))
    return found


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory):
    """What each of so many ranks found; they are started once."""

    @cache
    def found(count):
        return run_ranks(count, cases(count), tmp_path_factory.mktemp(f"ranks{count}"))

    return found


@pytest.fixture(scope="module")
def plain():
    """The same cases in this process, with plain modules, by name."""
    assert not dist.is_initialized()
    return {
        "sharded": measured(None),
        "one trajectory": measured(None, trajectories=TRAJECTORIES[1:2]),
        "qwen3": measured(None, family="qwen3"),
        "llama": measured(None, family="llama"),
        "lora": after_an_update(None, lora=LORA),
    }


@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_ranks_is_one(plain, ranks_of, count):
    ranks = ranks_of(count)
    for name in cases(count).keys() - {"bfloat16"}:
        expected = plain.get(name.partition(",")[0], plain["sharded"])
        try:
            assert_same(ranks[0][name], expected)
        except AssertionError as error:
            raise AssertionError(f"{name} on {count} ranks: {error}") from error


@pytest.mark.parametrize("count", [2, 4])
def test_bfloat16_is_near_however_it_is_cut(plain, ranks_of, count):
    ours, theirs = ranks_of(count)[0]["bfloat16"], plain["qwen3"]
    for name in ("logprobs", "entropies", "reference"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=0.1)
    for name in ("metrics", "value_metrics"):
        assert ours[name]["grad_norm"] == pytest.approx(theirs[name]["grad_norm"], rel=0.1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_ranks_get_the_same_to_the_last_bit(ranks_of, count):
    ranks = ranks_of(count)
    for other in ranks[1:]:
        for name, results in other.items():
            assert_same(results, ranks[0][name], 0.0)
