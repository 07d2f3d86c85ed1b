"""verl's launch commands run, for two iterations with a tiny model's files, on every engine.

The commands are those of `test_config_verl`; further keys cut their batches, lengths and machines.
"""

from pathlib import Path

import pytest
from ppo_runs import training_of
from test_config_verl import MULTI_TURN, WITH_CRITIC

from textenvs.data.files import write_parquet
from textenvs.data.word_problems import GeneratedMath
from trainers import ppo
from trainers.models import tiny

ROOT = Path(__file__).resolve().parents[3]
_ROLLOUT = "actor_rollout_ref.rollout."

#: What is written behind a command, so that two iterations take seconds on a CPU.
SHORT = [
    *("data.train_batch_size=2", "data.max_prompt_length=384", "data.max_response_length=64"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.total_training_steps=2", "trainer.test_freq=-1"),
    *("trainer.n_gpus_per_node=1", "trainer.device=cpu", "trainer.logger=[file]", "data.val_max_samples=2"),
    *(f"{_ROLLOUT}max_num_seqs=8", "trainer.save_freq=-1", "rollout.max_response_length=8"),
]
COMMANDS = {"grpo": [*MULTI_TURN, *SHORT, f"{_ROLLOUT}n=4"], "ppo": [*WITH_CRITIC, *SHORT]}


def python_of(name):
    return ROOT / f".venv-{name}" / "bin" / "python"


def _case(command, name, ranks):
    marks = [] if name == "torch" else [pytest.mark.engines, pytest.mark.xdist_group(name), pytest.mark.timeout(900)]
    # Both commands run on the embedded engine; test_conformance.py updates the weights of each server and compares its
    # log-probabilities, and test_config_verl_commands.py shows which server a command means.
    if name != "torch":
        marks.append(pytest.mark.slow)
    return pytest.param(command, name, ranks, marks=marks)


#: Commands, engines, and on how many tensor-parallel ranks these are.
CASES = [
    *(_case(command, "torch", 1) for command in COMMANDS),
    _case("ppo", "vllm", 1),
    *(_case(command, name, 2) for command in COMMANDS for name in ("vllm", "sglang")),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verl_runs")
    tasks = {split: GeneratedMath("easy", seed=0, split=split) for split in ("train", "test")}
    tokenizer = tiny.build_tokenizer(["What is the answer? A natural number, after ####."])
    model = tiny.build_model(len(tokenizer), hidden=64, layers=2, heads=2, kv_heads=2, max_context=512)
    tiny.save(folder / "model", model, tokenizer)
    for split, rows in tasks.items():
        write_parquet(rows, folder / f"{split}.parquet", count=20)
    (folder / "interaction.yaml").write_text(
        "interaction:\n- {name: gsm8k, class_name: verl.interactions.gsm8k_interaction.Gsm8kInteraction, config: {}}\n"
    )
    return folder


@pytest.mark.parametrize(("command", "engine", "ranks"), CASES)
def test_command_trains_for_two_iterations(files, tmp_path, monkeypatch, command, engine, ranks):
    """On a server of its own: after every update its ranks' checksums and log-probabilities are the learner's."""
    monkeypatch.chdir(files)
    python = [] if engine == "torch" else [f"engine.{engine}.python={python_of(engine)}"]
    overrides = [f"{_ROLLOUT}name={engine}", f"{_ROLLOUT}tensor_model_parallel_size={ranks}", *python]
    assert ppo.main([*COMMANDS[command], *overrides, "actor.lr=0.01", f"trainer.default_local_dir={tmp_path}"]) == 0
    rows = training_of(tmp_path)
    assert len(rows) == 2
    assert all(row["actor/rollout_kl"] < 1e-5 for row in rows)
    assert list((tmp_path / "checkpoints").glob("iteration_*2"))
