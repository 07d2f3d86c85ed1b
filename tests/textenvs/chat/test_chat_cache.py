"""The cache: what is kept is found again, by other processes too; what is not a cache stays as it is."""

import logging
import os
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.chat.cache import AnswerCache, request_key
from textenvs.chat.errors import CacheError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=3), st.randoms(use_true_random=False))
def test_keys_do_not_depend_on_order(request_, random):
    items = list(request_.items())
    random.shuffle(items)
    assert request_key(dict(items)) == request_key(request_)


def typed(value):
    """Return a value that is equal only for equal JSON: in Python 1 == True, and dicts ignore order."""
    if isinstance(value, dict):
        return {name: typed(item) for name, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)


@given(json_values, json_values)
def test_different_requests_have_different_keys(one, two):
    assert (request_key({"x": one}) == request_key({"x": two})) == (typed(one) == typed(two))


def test_what_is_put_is_found_again(tmp_path):
    path = tmp_path / "new" / "folder" / "cache.db"
    cache = AnswerCache(path)
    assert cache.get("a") is None
    cache.put("a", "ä\n")
    cache.put("b", "1")
    cache.put("b", "2")
    assert (cache.get("a"), cache.get("b")) == ("ä\n", "2")
    assert AnswerCache(path).get("b") == "2"


# One interpreter that forks: importing in each would take most of the time.
PROCESSES = """
import os, sys
from textenvs.chat.cache import AnswerCache

path, workers, count = sys.argv[1], 3, 8

def wait_for_children():
    assert all(os.waitpid(child, 0)[1] == 0 for child in children), "a child failed"

def fill(worker, cache):
    for i in range(count):
        cache.put(f"shared {i}", str(i))
        cache.put(f"{worker} {i}", str(i))
        assert cache.get(f"shared {i}") == str(i)

def fork(work):
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child

# From the very start: the file is not there yet.
children = [fork(lambda: fill(worker, AnswerCache(path))) for worker in range(workers)]
wait_for_children()
cache = AnswerCache(path)
assert all(cache.get(f"{worker} {i}") == str(i) for worker in range(workers) for i in range(count))

# With a cache that was used before the fork.
def child_of_a_used_cache():
    cache.put("child", "2")
    assert cache.get("0 0") == "0"
children = [fork(child_of_a_used_cache), fork(child_of_a_used_cache)]
wait_for_children()
cache.put("after", "3")
assert (cache.get("child"), cache.get("after")) == ("2", "3")
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_several_processes_share_one_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(tmp_path / "c.db")], capture_output=True, text=True, timeout=100
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def foreign_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")


def marked_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id = 7")


def later_version(path):
    AnswerCache(path).put("a", "1")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_bytes(b"my notes, not a database " * 100), "not a database"),
        (foreign_database, "another program's"),
        (marked_database, "another program's"),
        (later_version, "version 99"),
        (lambda path: path.mkdir(), "unable to open"),
    ],
)
def test_foreign_file_is_refused_unchanged(tmp_path, make, why):
    path = tmp_path / "file.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    for use in (lambda cache: cache.get("a"), lambda cache: cache.put("a", "1")):
        with pytest.raises(CacheError, match=why) as caught:
            use(AnswerCache(path))
        assert str(path) in str(caught.value)
        assert "move or delete it" in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_damaged_file_is_refused(tmp_path):
    path = tmp_path / "cache.db"
    cache = AnswerCache(path)
    for i in range(30):
        cache.put(str(i), "x" * 2000)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    damaged = AnswerCache(path)
    with pytest.raises(CacheError, match="cannot be used"):
        [damaged.get(str(i)) for i in range(30)]


def test_failed_write_warns_once(tmp_path, caplog, monkeypatch):
    cache = AnswerCache(tmp_path / "cache.db")
    cache.put("a", "1")
    monkeypatch.setattr("textenvs.chat.cache._BUSY_S", 0.01)
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # a writer that does not end
    with caplog.at_level(logging.WARNING, "textenvs"):
        cache.put("b", "2")
        cache.put("c", "3")
    other.close()
    assert caplog.text.count("cannot be cached") == 1
    assert cache.get("a") == "1"
