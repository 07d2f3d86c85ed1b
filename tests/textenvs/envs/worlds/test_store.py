"""The store against plain dictionaries: whatever is put, forked and begun anew, both have the same records."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import given

from textenvs.envs.worlds.store import Store, Tables

IDS, VALUES = ("a1", "a2", "a3", "b1"), (0, 1, 2)
RECORDS = st.tuples(*[st.sampled_from(VALUES)] * 2)
TABLES = st.fixed_dictionaries({"x": st.dictionaries(st.sampled_from(IDS[:3]), RECORDS, min_size=1)})
PUTS = st.tuples(st.just("put"), st.sampled_from(IDS), RECORDS)
BEGINS = st.tuples(st.just("begin"), st.sampled_from(IDS[:3]), st.integers(0, 1), st.sampled_from(VALUES))


@given(TABLES, st.lists(st.one_of(PUTS, BEGINS), max_size=8))
def test_store_is_two_dictionaries(tables, steps):
    store, first, now = Store(Tables(tables.__getitem__)), copy.deepcopy(tables["x"]), copy.deepcopy(tables["x"])
    forks = []
    for kind, number, *rest in steps:
        forks.append((store, dict(now)))
        if kind == "put":
            store, now[number] = store.put("x", number, rest[0]), rest[0]
        elif number in first:
            place, value = rest
            store = store.begun_with("x", number, place, value)
            old, new = list(first[number]), list(now[number])
            if new[place] == old[place]:  # nobody has changed it: it follows
                new[place] = value
            old[place] = value
            first[number], now[number] = tuple(old), tuple(new)
        assert {number: store.get("x", number) for number in now} == now
        assert dict(store.records("x")) == now
        assert store.changed == {("x", key): record for key, record in now.items() if first.get(key) != record}
        for values in ({0: 1}, {0: 1, 1: 2}, {}):
            expected = {key: one for key, one in now.items() if all(one[place] == v for place, v in values.items())}
            assert dict(store.matching("x", values)) == expected
    for earlier, records in forks:  # a fork is the store itself
        assert dict(earlier.records("x")) == records


@given(TABLES, st.lists(RECORDS, max_size=4))
def test_new_ids_are_new(tables, records):
    store, made = Store(Tables(tables.__getitem__)), []
    for record in records:
        number = store.new_id("x")
        assert store.get("x", number) is None
        assert number not in made
        store = store.put("x", number, record)
        made.append(number)
    assert [store.get("x", number) for number in made] == records


def test_missing_record_has_no_value():
    assert Store(Tables({"x": {"a1": (1,)}}.__getitem__)).get("x", "a2") is None
    with pytest.raises(KeyError):
        Store(Tables({"x": {"a1": (1,)}}.__getitem__)).get("y", "a1")
