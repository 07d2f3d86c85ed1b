"""The text spaces as Gymnasium uses them."""

import copy
import json
import pickle

import pytest
from gymnasium import spaces
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st
from test_messages import messages

from textenvs import AssistantTurn, Conversation, Unicode
from textenvs.messages import assistant, user

kinds = pytest.mark.parametrize("kind", [Conversation, AssistantTurn, Unicode])


@kinds
def test_samples_are_members_and_follow_the_seed(kind):
    space, again = kind(seed=3), kind(seed=3)
    samples = [space.sample() for _ in range(200)]
    assert samples == [again.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert any(not str(sample).isascii() for sample in samples)
    assert samples != [kind(seed=4).sample() for _ in range(200)]


def test_actions_are_sampled_as_text_and_as_messages():
    samples = [AssistantTurn(seed=i).sample() for i in range(40)]
    assert {isinstance(sample, str) for sample in samples} == {True, False}


@kinds
def test_json_round_trip_of_samples(kind):
    space = kind(seed=0)
    samples = [space.sample() for _ in range(50)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(iter(samples))))) == samples


@given(st.lists(st.lists(messages, max_size=3).map(tuple), max_size=3))
def test_json_round_trip_of_any_conversation(conversations):
    space = Conversation()
    assert all(conversation in space for conversation in conversations)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(conversations)))) == conversations


def test_members():
    assert () in Conversation()
    assert (user("\ud800 数"),) in Conversation()
    assert [user("a list")] not in Conversation()
    assert "text" not in Conversation()
    assert "" in AssistantTurn()
    assert assistant("x") in AssistantTurn()
    assert user("x") not in AssistantTurn()
    assert None not in AssistantTurn()
    assert 3 not in AssistantTurn()


@kinds
def test_equality_hash_repr_and_pickle(kind):
    assert kind(seed=1) == kind(seed=2) != spaces.Discrete(2)
    assert Conversation() != AssistantTurn()
    assert len({kind(), kind()}) == 1
    assert eval(repr(kind())) == kind()
    moved = pickle.loads(pickle.dumps(kind(seed=5)))
    assert moved.sample() == kind(seed=5).sample()


@kinds
def test_gymnasium_can_batch_them(kind):
    space = kind(seed=0)
    batch = batch_space(space, 3)
    items = batch.sample()
    assert len(items) == 3
    assert items in batch
    assert list(iterate(batch, items)) == list(items)
    assert concatenate(space, list(items), create_empty_array(space, 3)) == items
    assert not space.is_np_flattenable


@pytest.mark.parametrize("kind", [Conversation, Unicode])
def test_observations_in_shared_memory_are_those_last_written(kind):
    space = kind(seed=0)
    memory = create_shared_memory(space, 3)
    view = read_from_shared_memory(space, memory, 3)
    assert all(observation in space for observation in copy.deepcopy(view))
    items = [space.sample() for _ in range(3)]
    for i in (2, 0, 1, 2):
        write_to_shared_memory(space, i, items[i], pickle.loads(pickle.dumps(memory)))
    assert copy.deepcopy(view) == tuple(items) == tuple(view)
    assert view[-1] == items[2]
    with pytest.raises(IndexError):
        view[3]


@kinds
def test_masks_are_refused(kind):
    with pytest.raises(ValueError, match="mask"):
        kind().sample(mask=(1,))
    with pytest.raises(ValueError, match="probability"):
        kind().sample(probability=(1,))
