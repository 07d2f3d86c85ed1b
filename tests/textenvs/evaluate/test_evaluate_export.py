"""`textenvs export` without Inspect: whatever a model wrote, there is a log."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from textenvs.evaluate.inspect_log import export
from textenvs.evaluate.records import Folder, Record
from textenvs.messages import clean_text

CONFIGURATION = {
    "environment": {"id": "mine:Guess", "version": None, "options": {}},
    "tasks": {"name": "numbers", "count": 1, "fingerprint": "f"},
    "samples": 1,
    "seed": 0,
    "policy": {"script": "expert"},
}
values = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)


def refused(name):
    raise AssertionError(f"{name} is not JSON")


@given(st.text().map(clean_text) | st.dictionaries(st.text(), values).map(json.dumps))
@example('{"x": NaN}')
@example('{"x": 1e999}')
@example('{"x": "\\ud800"}')
@example("[" * 100_000)
@example('{"x": ' + "9" * 5000 + "}")
def test_any_arguments_can_be_exported(tmp_path_factory, arguments):
    call = {"id": "call_0", "type": "function", "function": {"name": "search", "arguments": arguments}}
    messages = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": (call,)})
    path = tmp_path_factory.mktemp("export")
    with Folder(path, CONFIGURATION) as folder:
        folder.add(Record(0, 0, seed=1, task_index=0, task_key="k", data_source="s", stop="wrong", messages=messages))
    log = json.loads(export(path, path / "log.json").read_text("utf-8"), parse_constant=refused)
    (made,) = log["samples"][0]["messages"][1]["tool_calls"]
    assert isinstance(made["arguments"], dict)
    assert made.get("parse_error", arguments) == arguments
