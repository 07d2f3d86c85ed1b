"""A model of this machine behind `textenvs evaluate --local`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import textenvs
from textenvs.cli import main
from textenvs.evaluate.policies import OutOfContext
from trainers.models.tiny import build_model, build_tokenizer, save
from trainers.serving.local_policy import LocalPolicy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [m["content"] for i in range(200) for m in textenvs.make("textenv/gsm8k-interact").reset(seed=i)[0]]
    tokenizer = build_tokenizer(texts, vocab_size=512)
    path = tmp_path_factory.mktemp("model")
    save(path, build_model(len(tokenizer), hidden=32, layers=2, max_context=256, seed=1), tokenizer)
    return path


async def talk(policy: LocalPolicy, seed: int, turns: int = 3) -> list[tuple[str, int, int]]:
    env = textenvs.make("textenv/gsm8k-interact", level="easy")
    seen, _ = env.reset(seed=3)
    player, replies = policy.start(env, seed), []
    for _ in range(turns):
        reply = await player(seen, ())
        replies.append((str(reply.action), reply.prompt_tokens or 0, reply.completion_tokens or 0))
        seen, *_ = env.step(reply.action)
    return replies


async def test_seed_decides_replies_and_prompts_are_exact(folder: Path) -> None:
    policy = LocalPolicy(str(folder), max_response_length=12)
    try:
        first, again, other = [await talk(policy, seed) for seed in (0, 0, 1)]
        assert first == again
        assert [reply for reply, *_ in first] != [reply for reply, *_ in other]
        opening = textenvs.make("textenv/gsm8k-interact", level="easy").reset(seed=3)[0]
        assert first[0][1] == len(policy._policy.renderer.render(opening))
        for (_, prompt, written), (_, following, _) in zip(first, first[1:], strict=False):
            assert prompt + written < following, "what was said before is read as it was sampled"
            assert 1 <= written <= 12
    finally:
        await policy.aclose()


async def test_other_sampling_shares_the_model(folder: Path) -> None:
    policy = LocalPolicy(str(folder), max_response_length=12)
    try:
        longer = policy.with_sampling(temperature=0.0, max_response_length=20)
        assert longer._policy.engine is policy._policy.engine
        first, other = [await talk(longer, seed, turns=1) for seed in (0, 1)]
        assert first == other, "greedy replies do not depend on the seed"
        assert (await talk(policy, 0, turns=1))[0][2] <= 12 < first[0][2] <= 20
    finally:
        await policy.aclose()


async def test_conversation_that_outgrows_model_says_so(folder: Path) -> None:
    policy = LocalPolicy(str(folder), max_response_length=500)
    try:
        with pytest.raises(OutOfContext, match="room for 256"):
            await talk(policy, 0)
    finally:
        await policy.aclose()


async def test_variables_of_template_reach_model(folder: Path, tmp_path: Path) -> None:
    greeting = "{% if greet is defined %}{{ greet }}{% endif %}"
    copied = shutil.copytree(folder, tmp_path / "model")
    template = copied / "chat_template.jinja"
    template.write_text(greeting + template.read_text())
    prompts = {}
    for greet in (None, "Hello, hello, hello."):
        kwargs = None if greet is None else {"greet": greet}
        policy = LocalPolicy(str(copied), max_response_length=2, chat_template_kwargs=kwargs)
        try:
            prompts[greet] = (await talk(policy, 0, turns=1))[0][1]
        finally:
            await policy.aclose()
    assert prompts["Hello, hello, hello."] > prompts[None]
    words = ["evaluate", "textenv/gsm8k-interact", "--local", str(folder), "--num-tasks", "1", "--quiet"]
    assert main([*words, "--chat-template", "greet=Hi", "--max-response-length", "2"]) == 2, (
        "this template has no such thing"
    )


def test_evaluate_command_records_and_resumes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "textenv/gsm8k-interact", "level=easy", "--local", str(folder), "--max-response-length", "8"]
    words += ["--num-tasks", "4", "--samples", "2", "--out", str(tmp_path / "out"), "--quiet"]
    assert main(words) == 0
    recorded = (tmp_path / "out/episodes.jsonl").read_text()
    assert len(recorded.splitlines()) == 8
    assert all(json.loads(line)["completion_tokens"] > 0 for line in recorded.splitlines())
    assert main(words) == 0
    assert (tmp_path / "out/episodes.jsonl").read_text() == recorded
    assert "completion tokens" in capsys.readouterr().out


def test_local_model_plays_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = textenvs.make("textenv/agent", level="easy")
    tokenizer = build_tokenizer([m["content"] for i in range(50) for m in env.reset(seed=i)[0]], vocab_size=512)
    env.close()
    save(tmp_path / "model", build_model(len(tokenizer), hidden=32, layers=2, max_context=2048, seed=1), tokenizer)
    words = ["evaluate", "textenv/agent", "level=easy", "--local", str(tmp_path / "model"), "--num-tasks", "2"]
    words += ["--max-response-length", "4", "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*words, "max_assistant_turns=2"]) == 0
    episodes = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    assert all(not episode["failed"] for episode in episodes)
    assert all(episode["assistant_turns"] == 2 and episode["completion_tokens"] for episode in episodes)


@pytest.mark.parametrize(
    ("option", "message"),
    [("tools_in_prompt=false", "does not show the tools"), ("call_format=native", "its calls would never be seen")],
)
def test_unshown_tools_stop_the_evaluation(
    option: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "textenv/gsm8k-tool", option, "--local", str(folder), "--num-tasks", "2", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "out")]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--local", "/nowhere/model"], "no such folder"),
        (
            ["--local", "run"],
            "no config.json; this is a run's folder, whose newest model is run/checkpoints/iteration_",
        ),
        (["--local", "x", "--policy", "expert"], "one of the three"),
        (["--policy", "expert", "--chat-template", "x=1"], "--chat-template goes with --local"),
        (["--local", "x", "--base-url", "http://localhost"], "--base-url goes with --model"),
    ],
)
def test_local_policy_errors_are_reported(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "run/checkpoints/iteration_000012/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["evaluate", "textenv/gsm8k", *arguments])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err
