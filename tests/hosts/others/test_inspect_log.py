"""`textenvs export`, read by Inspect itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inspect_ai.log import read_eval_log, read_eval_log_sample

from textenvs.cli import main
from textenvs.evaluate.records import Folder, Record, read_folder
from textenvs.evaluate.summary import summarize

ROOT = Path(__file__).parents[3]
CONFIGURATION = {
    "environment": {"id": "mine:Guess", "version": None, "options": {"level": "easy"}},
    "tasks": {"name": "numbers", "count": 2, "fingerprint": "f"},
    "samples": 2,
    "seed": 3,
    "policy": {"model": "small", "base_url": "http://localhost:8000/v1", "temperature": None},
}
CALL = {"id": "call_0", "type": "function"}


def exported(folder, tmp_path):
    out = tmp_path / "logs" / "log.json"
    assert main(["export", str(folder), "-o", str(out)]) == 0
    return read_eval_log(str(out)), out


def test_evaluation_reads_back(tmp_path):
    command = [sys.executable, "-m", "textenvs", "evaluate", "textenv/gsm8k-tool", "level=easy", "--policy", "careless"]
    command += ["--num-tasks", "4", "--samples", "2", "--quiet", "--out", "run"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=100)
    manifest, records = read_folder(tmp_path / "run")
    log, path = exported(tmp_path / "run", tmp_path)
    assert (log.status, log.eval.task, log.eval.model) == ("success", "textenv/gsm8k-tool", "careless")
    assert (log.eval.config.epochs, log.results.total_samples, log.results.completed_samples) == (2, 8, 8)
    assert log.eval.dataset.name == manifest["tasks"]["name"]
    by_place = {(sample.id, sample.epoch): sample for sample in log.samples}
    for record in records:
        sample = by_place.pop((record.task_index, record.sample + 1))
        assert [message.role for message in sample.messages] == [message["role"] for message in record.messages]
        assert [message.text for message in sample.messages] == [message["content"] for message in record.messages]
        assert (
            sample.output.completion
            == record.messages[-1 if sample.messages[-1].role == "assistant" else -2]["content"]
        )
        assert sample.scores["success"].value == ("C" if record.success else "I")
        assert sample.scores["return"].value == pytest.approx(record.total)
        assert {name: sample.scores[f"term/{name}"].value for name in record.terms} == record.terms
    assert not by_place
    summary = summarize(records)["all"]
    scores = {
        score.name: {name: metric.value for name, metric in score.metrics.items()} for score in log.results.scores
    }
    assert scores["success"]["accuracy"] == summary["success"]["value"]
    assert scores["return"]["ci95_low"] == summary["return"]["low"]
    assert read_eval_log_sample(str(path), id=records[0].task_index, epoch=2).epoch == 2


def test_tools_images_reasoning_limits_and_failures_read_back(tmp_path):
    def call(arguments):
        return {**CALL, "function": {"name": "search", "arguments": arguments}}

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = (
        {"role": "system", "content": "Use tools."},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "What is this?"}, image]},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call('{"q": 1}'), call("{q")]},
        {"role": "tool", "content": "A cat.", "tool_call_id": "call_0", "name": "search"},
        {"role": "assistant", "content": "<script>A cat.</script>\x1b[31m"},
    )
    common = {"seed": 1, "data_source": "s", "prompt_tokens": 7, "completion_tokens": 5, "cost": 0.5}
    stopped = {"truncated": True, "stop": "max_assistant_turns", "assistant_turns": 2}
    with Folder(tmp_path / "run", CONFIGURATION) as folder:
        folder.add(Record(0, 0, task_index=4, task_key="cat", messages=messages, **stopped, **common))
        folder.add(
            Record(1, 0, task_index=9, task_key="dog", failed=True, failure="no user", stop="user_failed", **common)
        )
        folder.add(Record(1, 1, task_index=9, task_key="dog", success=True, terminated=True, stop="solved", **common))
    log, _ = exported(tmp_path / "run", tmp_path)
    assert log.status == "cancelled", "one of four episodes is not played yet"
    assert (log.results.total_samples, log.results.completed_samples) == (4, 2)
    cat, failed, dog = log.samples
    assert [message.role for message in cat.input] == ["system", "user"]
    assert cat.messages[1].content[1].image == image["image_url"]["url"]
    assert cat.messages[2].content[0].reasoning == "Hm."
    good, bad = cat.messages[2].tool_calls
    assert (good.function, good.arguments, good.parse_error) == ("search", {"q": 1}, None)
    assert (bad.arguments, bad.parse_error) == ({}, "{q")
    assert (cat.messages[3].tool_call_id, cat.messages[3].function) == ("call_0", "search")
    assert cat.output.completion == messages[-1]["content"]
    assert (cat.limit.type, cat.limit.limit) == ("turn", 2)
    assert failed.error.message == "user_failed: no user"
    assert failed.scores is None
    assert dog.scores["success"].value == "C"
    usage = log.stats.model_usage["small"]
    assert (usage.input_tokens, usage.output_tokens, usage.total_cost) == (21, 15, 1.5)
