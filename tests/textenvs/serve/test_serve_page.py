"""docs/serving.md: requests are answered as documented, and every option is documented."""

import json
import re
import uuid
from pathlib import Path

import pytest
from served import ask, registered, running

import textenvs
from textenvs.cli import build_parser
from textenvs.serve.protocol import OPS, STATUS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
REQUEST = re.compile(
    r"```sh\n(?:SESSION=\S*\n)?curl -s localhost:8123/v1/(\w+) .*?-d '(.*?)'\n```\s+```json\n(.*?)```", re.DOTALL
)


def shape(value):
    """Return the structure of a value, with the page's placeholders as anything."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


def test_the_requests_of_the_page():
    examples = REQUEST.findall(PAGE)
    assert [op for op, *_ in examples] == ["open", "step"]
    with running(registered("textenv/gsm8k-interact")) as server:
        for _ in range(2):  # two users, two sessions
            follow(server, examples)
        assert server.metrics()["opened"] == 2


def follow(server, examples):
    """Send the requests of the page, and compare the answers."""
    session = str(uuid.uuid4())
    for op, body, expected in examples:
        status, _, answer = ask(server, op, **json.loads(body.replace("'$SESSION'", session)))
        expected = json.loads(expected.replace("SESSION", session))
        compared = {**answer, "info": {name: answer["info"][name] for name in expected["info"]}}
        assert status == 200
        assert shape(compared) == shape(expected)
        assert [m["role"] for m in compared["messages"]] == [m["role"] for m in expected["messages"]]
        for name in ("session", "turn", "seed", "reward", "terminated", "truncated"):
            assert compared.get(name) == expected.get(name)


@pytest.mark.parametrize("name", [*OPS, *STATUS, "GET /health", "GET /metrics"])
def test_it_speaks_of_everything(name):
    assert f"`{name}`" in PAGE or f"{name}`" in PAGE


def test_page_documents_every_option():
    commands = next(action for action in build_parser()._actions if action.dest == "command").choices
    for action in commands["serve"]._actions:
        for option in action.option_strings:
            if option.startswith("--") and option not in ("--help", "--traceback", "--bind"):
                assert option in PAGE, option
    spec = textenvs.describe("textenv/remote")
    assert spec.requires == ("url",)
    assert spec.id in textenvs.list_environments(with_arguments=True)
    assert spec.id not in textenvs.list_environments()
    for name in ("url", "env", "token", "timeout_s", "retry_s", "render_mode"):
        assert f"| `{name}`" in PAGE
