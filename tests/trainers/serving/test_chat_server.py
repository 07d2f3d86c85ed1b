"""A model of this process as chat completions, and as the user of an environment."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import textenvs
from textenvs.chat import ChatFailure, ChatSpec
from textenvs.chat.local import folders_in, served, with_addresses
from textenvs.cli import main
from textenvs.evaluate.records import Record
from textenvs.messages import user
from trainers.builders import SetupError
from trainers.builders.environments import backend_of, played
from trainers.command_line import load_config
from trainers.models.tiny import build_model, build_tokenizer, save
from trainers.serving.chat_server import ChatServer

pytest.importorskip("openai", reason="needs the extra 'chat'")
pytest.importorskip("aiohttp", reason="needs the extra 'serve'")
pytestmark = pytest.mark.xdist_group("chat server")  # one worker makes the model, and starts the server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [m["content"] for i in range(200) for m in textenvs.make("textenv/clarify").reset(seed=i)[0]]
    tokenizer = build_tokenizer([*texts, "system You are the user."], vocab_size=300)
    path = tmp_path_factory.mktemp("model")
    save(path, build_model(len(tokenizer), hidden=32, layers=2, max_context=4096, seed=1), tokenizer)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ChatServer]:
    started = ChatServer(str(folder))
    yield started
    started.close()


def post(server: ChatServer, **body: Any) -> Any:
    body = {"messages": [user("Book a desk.")], "max_completion_tokens": 8, **body}
    request = urllib.request.Request(
        f"{server.base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request, timeout=60))


def test_seed_decides_answer_despite_concurrent_requests(server: ChatServer) -> None:
    alone = post(server, seed=3)

    async def together() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(post, server, seed=seed) for seed in (1, 3, 5, 3)))

    beside = asyncio.run(together())
    texts = [response["choices"][0]["message"]["content"] for response in (alone, *beside)]
    assert texts[0] == texts[2] == texts[4]
    assert len(set(texts)) > 1
    assert alone["usage"]["completion_tokens"] <= 8
    assert post(server, temperature=0.0)["choices"] == post(server, temperature=0.0, seed=9)["choices"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "without messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "role"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-6}, "0 decodes greedily"),
        ({"response_format": {"type": "json_schema"}}, "structured='none'"),
        ({"messages": [user("word " * 9000)]}, "context length"),
    ],
)
def test_bad_request_is_refused_in_words(server: ChatServer, body: dict[str, Any], message: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, **body)
    assert caught.value.code == 400
    assert message in json.load(caught.value)["error"]["message"]


def test_folder_is_user_served_once_and_repeatable(folder: Path, tmp_path: Path) -> None:
    spec = served(ChatSpec(model=str(folder)))
    assert spec == served(ChatSpec(model=str(folder)))
    assert spec.seed == 0
    model = {"model": str(folder), "prompt": "short", "tries": 8, "max_tokens": 200, "leak_limit": None}
    assert folders_in({"user": model, "judge": "gpt", "level": "easy"}) == {"user": model}
    addressed = with_addresses({"user": model, "level": "easy"})
    assert addressed["user"]["base_url"] == spec.base_url
    played = []
    for kwargs in ({"user": model}, addressed):
        env = textenvs.make("textenv/clarify", ambiguous=1.0, max_assistant_turns=1, **kwargs)
        env.reset(seed=2)
        while not env.state.done:
            *_, info = env.step("What day, what hour, how many?")
        played.append((env.state.messages, info["stop"]))
    assert played[0] == played[1]
    side = info["user_messages"]
    assert [message["role"] for message in side[:3]] == ["system", "user", "assistant"]
    assert env.user_view().goal in side[0]["content"]
    assert side[-1]["role"] == "assistant"
    out = tmp_path / "out"
    words = ["evaluate", "textenv/clarify", "ambiguous=1.0", f"user.model={folder}", "user.prompt=short"]
    words += ["user.max_tokens=200", "user.tries=8", "max_assistant_turns=1", "--policy", "expert"]
    assert main([*words, "--num-tasks", "2", "--out", str(out)]) == 0
    records = [Record.from_json(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(record.user_messages[0]["role"] == "system" for record in records if record.user_messages)
    assert [Record.from_json(record.to_json()) for record in records] == records


def test_model_that_cannot_be_served_fails_episode(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such"}')
    with pytest.raises(ChatFailure, match=str(tmp_path)):
        served(ChatSpec(model=str(tmp_path)))
    env = textenvs.make("textenv/collab-math", user={"model": str(tmp_path)})
    env.reset(seed=0)
    *_, truncated, info = env.step("How many?")
    assert (truncated, info["stop"], info["failed"]) == (True, "user_failed", True)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("inline", marks=pytest.mark.slow),  # test_folder_is_user_served_once_and_repeatable is in process
        "process",
    ],
)
async def test_run_environments_reach_folder_user(folder: Path, kind: str) -> None:
    model = {"model": str(folder), "prompt": "short", "tries": 8, "max_tokens": 200}
    kwargs = {"user": model, "ambiguous": 1.0, "max_assistant_turns": 1}
    words = [f"env.kwargs={json.dumps(kwargs)}", "env.id=textenv/clarify", f"env.backend={kind}", "env.workers=1"]
    config, _ = load_config(words)
    (component,) = played(config)
    async with backend_of(config, component, validation=False) as backend, backend.lease() as env:
        await env.reset(2, {})
        *_, info = await env.step("What day, what hour, how many?")
    assert info["failed"] is False
    assert info["user_messages"][-1]["role"] == "assistant"
    config, _ = load_config([*words[:2], "env.backend=ray", "env.workers=1"])
    with pytest.raises(SetupError, match=r"env.kwargs: user is a folder.*base_url"):
        backend_of(config, component, validation=False)
