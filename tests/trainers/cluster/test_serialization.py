"""What travels between processes arrives as it was, is written once, and cannot be mixed up."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cluster_helpers import VOCAB, tiny_model, trajectories
from hypothesis import given
from hypothesis import strategies as st

from trainers.cluster.buckets import Collected, WeightsError, cut
from trainers.cluster.lazy_factory import LazyFactory
from trainers.cluster.serialization import pack, unpack

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    return torch.arange(count).reshape(shape).to(dtype)


SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
TENSORS = st.dictionaries(st.text(max_size=5), st.builds(tensor, st.sampled_from(DTYPES), SHAPES), max_size=6)


@given(TENSORS, st.lists(st.integers(0, 3000), max_size=3))
def test_tensors_and_arrays_arrive_as_they_were(tensors, lengths):
    arrays = [np.arange(length, dtype=np.float64) for length in lengths]
    got, others = unpack(pack((tensors, arrays)))
    assert got.keys() == tensors.keys()
    for name, value in tensors.items():
        assert got[name].dtype == value.dtype
        assert torch.equal(got[name], value)
    for ours, theirs in zip(others, arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_is_large_is_not_in_the_pickle_and_views_bring_no_more_than_themselves():
    base = torch.zeros(1000, 1000)
    parcel = pack({"row": base[3], "column": base[:, 3], "grad": base.clone().requires_grad_()})
    assert len(parcel.head) < 2000
    assert [buffer.nbytes for buffer in parcel.buffers] == [4000, 4000, 4_000_000]
    assert unpack(parcel)["grad"].requires_grad


def test_a_model_arrives_whole_with_what_is_tied():
    model = tiny_model()
    other = unpack(pack(model))
    ids = torch.arange(8)[None] % VOCAB
    assert torch.equal(model(ids).logits, other(ids).logits)
    assert other.get_output_embeddings().weight is other.get_input_embeddings().weight


def test_readers_of_the_store_do_not_see_what_others_write():
    parcel = pack(torch.zeros(5000))
    for buffer in parcel.buffers:
        buffer.flags.writeable = False
    one, two = unpack(parcel), unpack(parcel)
    one += 1
    assert not two.any()


def test_trajectories_arrive_equal():
    assert unpack(pack(trajectories())) == trajectories()


def test_what_cannot_be_sent_says_so():
    with pytest.raises(ValueError, match="importable by name"):
        pack(lambda: None)


def test_a_recipe_is_pickled_by_what_makes_it():
    made = pickle.loads(pickle.dumps(LazyFactory(sorted_by, [3, 1])))
    assert made(2) == [1, 2, 3]
    assert made(9) == [1, 3, 9]


def sorted_by(settings: list[int]) -> Any:
    return lambda value: sorted([*settings, value])


# ------------------ buckets


def put_together(buckets: list[Any]) -> dict[str, torch.Tensor]:
    collected = Collected(buckets[0].publication, len(buckets))
    for bucket in buckets:
        collected.add(bucket)
    return collected.weights()


@given(TENSORS, st.integers(1, 5000))
def test_buckets_hold_every_tensor_once(tensors, size):
    buckets = list(cut(tensors, size))
    got = put_together(buckets)
    assert got.keys() == tensors.keys()
    for name, value in tensors.items():
        assert got[name].dtype == value.dtype
        assert torch.equal(got[name], value)
    assert all(len(bucket.entries) == 1 or bucket.data.nbytes <= size + 64 for bucket in buckets)
    for bucket, after in itertools.pairwise(buckets):
        assert bucket.data.nbytes + after.entries[0].size > size, "what begins the next one had no room here"


def test_tied_weights_travel_once():
    weights = tiny_model().state_dict(keep_vars=True)
    buckets = list(cut(weights, 10_000))
    assert len(buckets) > 2
    assert sum(len(bucket.entries) for bucket in buckets) == len({id(value) for value in weights.values()})
    got = put_together(buckets)
    assert got["lm_head.weight"] is got["model.embed_tokens.weight"]


def test_buckets_that_are_damaged_missing_or_of_others_are_refused():
    weights = tiny_model().state_dict()
    buckets, others = list(cut(weights, 10_000)), list(cut(weights, 10_000))
    collected = Collected(buckets[0].publication, len(buckets))
    for bucket in buckets[1:]:
        collected.add(bucket)
    with pytest.raises(WeightsError, match=r"buckets \[0\] of \d+ did not come"):
        collected.weights()
    with pytest.raises(WeightsError, match="is not of publication"):
        put_together([buckets[0], others[1]])
    with pytest.raises(WeightsError, match="came twice"):
        put_together([buckets[0], buckets[0]])
    data = buckets[0].data.copy()
    data[7] ^= 1
    with pytest.raises(WeightsError, match="its checksum is wrong"):
        put_together([replace(buckets[0], data=data)])
