"""Every command passes refusals on: the exit status, the words, and nothing written; likewise with ``--dry-run``.

The rules are tested where they are: `test_config_refusals`, `test_dry_run`, and the tests of each part.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from ppo_runs import MODEL, QUICK, arguments
from pyarrow import parquet

from textenvs.messages import assistant, user
from trainers import evaluate, generate, ppo, sft
from trainers.models import tiny

RESULTS = ("safetensors", "parquet", "jsonl")
#: Arguments that have no effect with a key.
REPLACED = {
    "model.path": [word.partition("=")[0] for word in MODEL],
    "sft.files": ["sft.demonstrations", "sft.mistake_rate"],
    "warm_start.files": ["warm_start.demonstrations", "warm_start.mistake_rate", "warm_start.enable"],
}


def command_of(name: str, folder: Path, run: Path) -> list[str]:
    """Arguments with which a command would run, and write into the folder `run`."""
    rows = folder / "rows.parquet"
    if name == "ppo":
        return arguments(run, *QUICK)
    if name == "sft":
        small = ["sft.demonstrations=8", "sft.steps=1", "sft.batch_size=4", "sft.mistake_rate=0", "trainer.threads=1"]
        return [*MODEL, *small, f"trainer.default_local_dir={run}"]
    if name == "generate":
        where = [f"model.path={folder}/model", f"data.path={rows}", f"data.output_path={run}/out.parquet"]
        return [*where, "rollout.max_response_length=6", "rollout.max_prompt_length=64"]
    return [f"data.path={rows}", f"report.output_path={run}/scores.jsonl"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    tokenizer = tiny.build_tokenizer(["a b"])
    for name, file in (("model", None), ("wordless", "tokenizer.json"), ("shapeless", "config.json")):
        tiny.save(folder / name, tiny.build_model(len(tokenizer), hidden=16, layers=1), tokenizer)
        if file is not None:
            (folder / name / file).write_text("{")
    talks = [[user("a"), assistant("b")], [user("a")]]
    tasks = [{"question": "2 + 2?", "answer": answer} for answer in ("#### 4", "#### 4", "four")]
    for name, rows in (("talks", [{"messages": talk} for talk in talks]), ("tasks", tasks)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    replies = pa.table({"prompt": [[user("a")]], "data_source": ["a"], "reward_model": [{"ground_truth": "1"}]})
    parquet.write_table(
        replies.append_column("responses", pa.array([[]], pa.list_(pa.string()))), folder / "rows.parquet"
    )
    return folder


@pytest.mark.parametrize(
    ("command", "options", "message", "code"),
    [
        ("ppo", "actor.lrr=1 rollout.m=3 actor.lr=-1 trainer.resume_mode=yes", "the configuration has 4 problems", 2),
        ("sft", "sft.stepps=3", "sft.stepps: unknown key; did you mean sft.steps", 2),
        ("generate", "rollout.n=2 data.n_samples=3", "rollout.n: is 2", 2),
        ("evaluate", "data.pth=x", "data.pth: unknown key; did you mean data.path?", 2),
        (
            "ppo",
            "cluster.colocate=false model.device=cpu",
            "cannot be placed:\n  cluster.colocate=false has",
            2,
        ),
        ("ppo", "env.id=textenv/gsm8k env.kwargs.levl=easy", "has no option 'levl'; did you mean level?", 2),
        (
            "ppo",
            "env.id=program_envs:tests/wordy rollout.max_response_length=190",
            "does not fit engine.max_con",
            2,
        ),
        (
            "ppo",
            "env.id=textenv/gsm8k data.train_files=FOLDER/tasks.jsonl",
            "row 3: column 'answer' has no '#### N'",
            2,
        ),
        ("sft", "env.id=textenv/gsm9k", "env.id=textenv/gsm9k", 2),
        ("ppo", "env.id=program_envs:tests/silent warm_start.enable=true", "Silent has no scripted demonstrations", 1),
        ("sft", "env.id=program_envs:tests/silent", "Silent has no scripted demonstrations", 1),
        ("sft", "model.device=cuda", "torch sees no GPU", 1),
        ("ppo", "model.path=FOLDER/wordless", "tokenizer.json", 1),
        ("sft", "model.path=FOLDER/wordless", "tokenizer.json", 1),
        ("sft", "model.path=FOLDER/shapeless", "config.json", 1),
        ("generate", "model.path=FOLDER/wordless", "tokenizer.json", 1),
        ("generate", "model.path=FOLDER/shapeless", "config.json", 1),
        ("ppo", "data.chat_template_kwargs.enable_thinking=false", "template never reads enable_thinking", 1),
        ("sft", "data.chat_template_kwargs.enable_thinking=false", "template never reads enable_thinking", 1),
        ("ppo", "warm_start.files=FOLDER/talks.jsonl", "talks.jsonl row 2: ", 1),
        ("sft", "sft.files=FOLDER/talks.jsonl", "talks.jsonl row 2: ", 1),
        ("generate", "data.prompt_key=question", "no column 'question'", 1),
        ("evaluate", "", "row 1: column 'responses'", 1),
    ],
)
def test_command_refuses_and_writes_nothing(folder, tmp_path, capsys, monkeypatch, command, options, message, code):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    mains = {"ppo": ppo.main, "sft": sft.main, "generate": generate.main, "evaluate": evaluate.main}
    options = options.replace("FOLDER", str(folder)).split()
    replaced = [word.partition("=")[0] for word in options]
    for key in replaced.copy():
        replaced += REPLACED.get(key, ())
    usual = command_of(command, folder, tmp_path / "run")
    argv = [*(word for word in usual if word.partition("=")[0] not in replaced), *options]
    for dry_run in (True, False):
        try:
            status = mains[command]([*argv, *["--dry-run"] * dry_run])
        except SystemExit as ended:
            status = ended.code
        output = capsys.readouterr().err
        assert status == (2 if dry_run else code), output
        assert message in output
        assert "Traceback" not in output
        results = [
            path for kind in RESULTS for path in tmp_path.rglob(f"*.{kind}") if path.is_file() and path.stat().st_size
        ]
        assert not (list(tmp_path.iterdir()) if dry_run else results)
        assert "Nothing was started" in output or not dry_run
