"""examples/collabllm: every stage at its smallest, with scripted users, and with models behind a service."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from textenvs.cli import build_parser
from textenvs.cli import main as textenvs_main
from textenvs.data.files import write_rows
from trainers import ppo, sft
from trainers.models import tiny
from trainers.rollout.demonstrations import read

pytest.importorskip("openai", reason="needs the extra 'chat'")
from fake_service import FakeService, status  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "collabllm"
FAMILIES = ("math", "document", "code")
TALK = [{"role": "user", "content": "Hm."}, {"role": "assistant", "content": "What is it?"}]
TINY = [
    *("model.hidden=32", "model.layers=1", "model.heads=2", "model.kv_heads=1", "model.vocab_size=300"),
    "trainer.threads=1",
]
#: What makes a run of stage 3 small, whatever it is configured for.
SMALL = [
    *("rollout.groups_per_batch=2", "rollout.n=2", "rollout.max_response_length=6", "actor.mini_batches=1"),
    *("engine.max_slots=8", "engine.threads=1", "data.val_size=2", "trainer.threads=1", "trainer.logger=jsonl"),
]
#: What of the full configuration is for GPUs, and for data from elsewhere.
ONE_PROCESS = [
    *("engine.name=torch", "engine.replicas=1", "engine.vllm.gpu_memory_utilization=0.5"),
    *("engine.vllm.sleep_mode=false", "engine.max_context=1024", "cluster.backend=local", "cluster.learner_ranks=1"),
    *("cluster.n_gpus_per_node=null", "trainer.offload=false", "data.train_files=generated:easy"),
    *("model.device=cpu", "model.dtype=float32", "data.val_files=generated:easy"),
]


def program(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"collabllm_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(EXAMPLE))  # as `python examples/collabllm/build_data.py` has it
build_data, compare = program("build_data"), program("compare")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; what a 7B model is to the full configuration."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny.build_tokenizer(["What is it? #### 5"], vocab_size=300)
    made = tiny.build_model(len(tokenizer), hidden=32, layers=1, heads=2, kv_heads=1, max_context=1024)
    tiny.save(folder, made, tokenizer)
    return folder


class Everybody:
    """One service for all three: the assistant, the user and the judge; each knows by its prompt who it is."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> Any:
        rules, last = request["messages"][0]["content"], request["messages"][-1]["content"]
        if "impartial judge" in rules:
            self.calls["judge"] += 1
            code = re.search(r"<data (\w+)>", last)
            assert code is not None
            return {"reasons": "Well.", "score": 0.75, "data_code": code[1]}
        if "You play the human" in rules:
            self.calls["user"] += 1
            count = sum(message["role"] == "user" for message in request["messages"])
            state = "satisfied" if count > 2 else "goes_on"  # the first is the curtain
            return {"thought": "hm", "message": "Well.", "state": state}
        self.calls["assistant"] += 1
        return "What exactly?" if request["seed"] % 2 else "Is it #### 5?"


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


# ------------------ offline


def test_the_miniature_from_data_to_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, before, after = tmp_path / "data", tmp_path / "sft", tmp_path / "ppo"
    script = ["--policy", "expert", "--careless-rate", "0.5", "--future-policy", "expert", "--seed", "1"]
    built = ["textenv/clarify", *script, "--num-tasks", "24", "--out", str(data)]
    assert build_data.main([*built, "--min", "accuracy=0.5"]) == 0
    demonstrations, pairs = rows(data / "sft.parquet"), rows(data / "pairs.parquet")
    assert 0 < len(demonstrations) < 24
    assert all(row["score/accuracy"] == 1.0 for row in demonstrations)
    assert [list(demonstration.messages) for demonstration in read([data / "sft.parquet"])] == [
        row["messages"] for row in demonstrations
    ]
    questions = [pair for pair in pairs if "?" in pair["chosen"][0]["content"]]
    assert questions  # a question was found to be better than a guess
    assert all("####" in pair["rejected"][0]["content"] for pair in questions)
    assert build_data.main(built) == 0  # other limits for the same conversations
    assert len(rows(data / "sft.parquet")) == 24
    assert "24 of 24 conversations are there already" in capsys.readouterr().err

    config = ["--config", f"{EXAMPLE}/miniature/clarify_sft.yaml", *TINY, "sft.steps=2", "sft.batch_size=8"]
    assert sft.main([*config, f"sft.files={data}/sft.parquet", f"trainer.default_local_dir={before}"]) == 0
    config = ["--config", f"{EXAMPLE}/miniature/clarify.yaml", f"model.path={before}/model", *SMALL]
    assert ppo.main([*config, f"trainer.default_local_dir={after}", "trainer.total_iterations=2"]) == 0
    metrics = [json.loads(line) for line in (after / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("reward/multiturn_turns", 0) for row in metrics) >= 8
    (last,) = after.glob("checkpoints/*2/model")
    capsys.readouterr()
    for name, folder in (("before", before / "model"), ("after", last)):
        played = ["--local", str(folder), "--num-tasks", "3", "--max-response-length", "6", "--quiet"]
        assert textenvs_main(["evaluate", "textenv/clarify", "split=test", *played, "--out", str(tmp_path / name)]) == 0
    capsys.readouterr()
    assert compare.main([f"before={tmp_path}/before", f"after={tmp_path}/after"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ +before +after$", printed, re.MULTILINE)
    for row in ("solved", "assistant tokens", "assistant turns"):
        assert re.search(rf"^{row} +\d+\.\d+ \(.*\) +\d+\.\d+ \(.*\)$", printed, re.MULTILINE)
    assert "interactivity" not in printed  # no judge was configured


@pytest.mark.parametrize("family", FAMILIES)
def test_scripted_data_for_each_family(tmp_path: Path, family: str) -> None:
    common = [f"textenv/collab-{family}", "--policy", "expert", "--careless-rate", "0.4", "--num-tasks", "2"]
    command = [*common, "--futures", "1", "--future-policy", "expert", "--format", "jsonl", "--out", str(tmp_path)]
    assert build_data.main(command) == 0
    episodes = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert len(episodes) == 2
    assert all(row["turn_rewards"][-1] == row["reward"] for row in episodes)
    assert len(list(read([tmp_path / "sft.jsonl"]))) == 2


def test_a_model_of_this_machine_as_the_assistant(tmp_path: Path, model: Path) -> None:
    command = [
        "textenv/clarify",
        "--local",
        str(model),
        "--max-response-length",
        "4",
        "--num-tasks",
        "2",
        "--futures",
        "1",
    ]
    assert build_data.main([*command, "--window", "1", "--out", str(tmp_path)]) == 0
    assert len(rows(tmp_path / "sft.parquet")) == 2


# ------------------ models behind a service


def test_data_with_models_as_assistant_user_and_judge(tmp_path: Path) -> None:
    everybody = Everybody()
    with FakeService(everybody) as service:
        spec = json.dumps({"model": "tiny", "base_url": service.url})
        command = ["textenv/collab-document", f"user={spec}", "--judge", spec, "--model", "tiny"]
        options = ["--base-url", service.url, "--num-tasks", "2", "--futures", "2", "--window", "1"]
        assert build_data.main([*command, *options, "--candidates", "3", "--out", str(tmp_path)]) == 0
    demonstrations = rows(tmp_path / "sft.parquet")
    assert [len(row["turn_rewards"]) for row in demonstrations] == [2, 2]
    assert [row["score/interactivity"] for row in demonstrations] == [0.75, 0.75]
    assert all(count > 0 for count in everybody.calls.values())
    assert len(everybody.calls) == 3


def test_broken_service_loses_no_finished_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everybody, remaining = Everybody(), 12

    def breaks(request: dict[str, Any]) -> Any:
        nonlocal remaining
        remaining -= 1
        return everybody(request) if remaining >= 0 else status(400)

    with FakeService(breaks) as service:
        user = f"user={json.dumps({'model': 'tiny', 'base_url': service.url})}"
        command = ["textenv/collab-math", user, "--model", "tiny", "--base-url", service.url, "--futures", "1"]
        command += ["--num-tasks", "4", "--window", "0", "--concurrency", "1", "--max-failures", "2"]
        command += ["--out", str(tmp_path / "data")]
        assert build_data.main(command) == 1
        errors = capsys.readouterr().err
        assert "2 episodes in a row failed" in errors
        assert "of 4 conversations are kept" in errors
        first = rows(tmp_path / "data" / "sft.parquet")
        assert 0 < len(first) < 4
        remaining = 10_000
        assert build_data.main(command) == 0
        assert f"{len(first)} of 4 conversations are there already" in capsys.readouterr().err
    again = rows(tmp_path / "data" / "sft.parquet")
    assert len(again) == 4
    assert [row for row in again if row in first] == first


@pytest.mark.parametrize(
    "family", ["math", *(pytest.param(family, marks=pytest.mark.slow) for family in ("document", "code"))]
)
def test_the_full_configuration_at_toy_size(tmp_path: Path, model: Path, family: str) -> None:
    """Run it as it stands, but for GPUs, sizes and addresses."""
    everybody = Everybody()
    with FakeService(everybody) as service:
        address = [
            *(f"env.kwargs.user.base_url={service.url}", f"env.val_kwargs.judge.base_url={service.url}"),
            f"multiturn_reward.judge_kwargs.model.base_url={service.url}",
        ]
        config = ["--config", f"{EXAMPLE}/full/{family}.yaml", f"model.path={model}", *SMALL, *ONE_PROCESS, *address]
        size = f"trainer.total_iterations={2 if family == 'math' else 1}"
        assert ppo.main([*config, size, f"trainer.default_local_dir={tmp_path}"]) == 0
    assert everybody.calls["user"] > 0
    assert everybody.calls["judge"] > 0
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in metrics if "reward/multiturn_turns" in row]
    assert len(trained) == (2 if family == "math" else 1)
    for row in trained:
        assert row["reward/multiturn_failures"] == 0
        assert row["reward/multiturn_samples"] > row["reward/multiturn_turns"] > 0
    assert metrics[0]["val/terms/interactivity"] == 0.75
    judged = [value for row in trained for name, value in row.items() if name.endswith("terms/interactivity")]
    assert judged
    assert all(value > 0 for value in judged)


def test_the_full_sft_at_toy_size(tmp_path: Path, model: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    (tmp_path / "sft.jsonl").write_text(json.dumps({"messages": TALK}) + "\n")
    config = ["--config", f"{EXAMPLE}/full/sft.yaml", f"model.path={model}", f"sft.files={tmp_path}/sft.jsonl"]
    size = ["model.device=cpu", "model.dtype=float32", "sft.steps=2", "sft.batch_size=1", "trainer.threads=1"]
    assert sft.main([*config, *size, f"trainer.default_local_dir={tmp_path}/run"]) == 0
    assert not list((tmp_path / "run" / "model").glob("adapter*"))  # merged: the next stage starts from it


# ------------------ the page, configurations and mistakes


def commands_of_the_page() -> list[list[str]]:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("words", commands_of_the_page(), ids=lambda words: " ".join(words[1:6]))
def test_the_pages_commands_can_be_given(
    words: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their options exist and go together; what they do is what the other tests do in small."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    if words[:2] == ["python", "examples/collabllm/build_data.py"]:
        build_data.check(build_data.parser().parse_intermixed_args(words[2:]))
    elif words[:2] == ["python", "examples/collabllm/compare.py"]:
        assert compare.main(words[2:]) == 1
        assert "has no summary.json" in capsys.readouterr().err
    elif words[:2] == ["textenvs", "evaluate"]:
        _, rest = build_parser().parse_known_args(words[1:])
        assert rest == ["split=test"]
    else:
        assert words[:2] == ["python", "-m"]
        for word in words:  # what earlier stages wrote
            name, _, path = word.partition("=")
            if name == "sft.files":
                Path(path).parent.mkdir(parents=True)
                write_rows([{"messages": TALK}], Path(path))
            if name == "model.path":
                Path(path).parent.mkdir(parents=True)
                Path(path).symlink_to(model)
        monkeypatch.setattr(ppo, "rehearse", lambda config, machine: "")  # the full examples' tasks are on the hub
        with pytest.raises(SystemExit) as ended:
            {"trainers.sft": sft.main, "trainers.ppo": ppo.main}[words[2]]([*words[3:], "--dry-run"])
        assert ended.value.code == 0


def configurations() -> list[Path]:
    return sorted(EXAMPLE.glob("*/*.yaml"))


# These play before they end; test_the_miniature_from_data_to_a_comparison trains by the first.
REHEARSED = ("clarify", "clarify_alone")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=f"{path.parent.name}/{path.stem}",
            marks=[pytest.mark.slow] * (path.parent.name == "miniature" and path.stem in REHEARSED),
        )
        for path in configurations()
    ],
)
def test_configuration_loads_and_has_its_command(
    path: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = "sft" in yaml.safe_load(path.read_text())
    command = "sft" if supervised else "ppo"
    place = f"examples/collabllm/{path.parent.name}/{path.name}"
    assert f"python -m trainers.{command} --config {place}" in path.read_text()
    (tmp_path / "sft.jsonl").write_text(json.dumps({"messages": TALK}) + "\n")
    settings = [f"sft.files={tmp_path}/sft.jsonl"] if supervised else []
    settings += [f"model.path={model}"] if path.parent.name == "full" else []
    if path.parent.name == "full":  # its tasks are on the hub
        monkeypatch.setattr(ppo, "rehearse", lambda config, machine: "")
    with pytest.raises(SystemExit) as ended:
        (sft if supervised else ppo).main(["--config", str(path), *settings, "--dry-run"])
    assert ended.value.code == 0
    if not supervised:
        assert yaml.safe_load(capsys.readouterr().out)["multiturn_reward"]["enable"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["textenv/clarifi", "--policy", "expert"], "Did you mean 'textenv/clarify'"),
        (["textenv/clarify", "--policy", "expert", "--careless-rate", "2"], "careless_rate should be less than"),
        (["textenv/clarify", "--local", "x", "--careless-rate", "0.5"], "--careless-rate goes with --policy"),
        (["textenv/clarify", "--policy", "expert", "--formula", "paper"], "counts tokens"),
        (["textenv/clarify", "--policy", "expert", "--weight", "accuracy"], "--weight takes NAME=NUMBER"),
        (["textenv/clarify", "--policy", "expert", "--judge", "{model"], "--judge is not JSON"),
        (["textenv/clarify", "--policy", "expert", "--num-tasks", "1", "--min", "acuracy=1"], "there are reward, acc"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert build_data.main([*words, "--out", str(tmp_path / "data")]) in (1, 2)
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


def test_evaluations_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, level in (("one", "easy"), ("other", "medium")):
        command = ["evaluate", "textenv/clarify", f"level={level}", "--policy", "expert", "--num-tasks", "2", "--quiet"]
        assert textenvs_main([*command, "--out", str(tmp_path / name)]) == 0
    assert compare.main([f"one={tmp_path}/one", f"other={tmp_path}/other"]) == 1
    assert "are not comparable: environment is" in capsys.readouterr().err
    assert compare.main([str(tmp_path)]) == 1
    assert "has no summary.json" in capsys.readouterr().err
