"""Models, adapters and tokenizers of others: no code and no pickle of theirs runs when they are read."""

from __future__ import annotations

import ast
import json
import os
import pickle
from pathlib import Path

import pytest

from trainers import doctor
from trainers.command_line import ConfigError, resolve
from trainers.config import PPOConfig
from trainers.config.model import ModelSection
from trainers.config.reward_model import ClassifierSection
from trainers.learner import Learner
from trainers.models import tiny
from trainers.models.hub import read_adapter
from trainers.models.policy import PolicyError, load
from trainers.rewards.backends.classifier import classifier_problems
from trainers.rewards.backends.conversation import load_tokenizer

TRAINERS = Path(__file__).parents[2] / "trainers"
#: Where pickles are read that processes of one run send each other.
BETWEEN_OUR_PROCESSES = {"rewards/function_worker.py", "cluster/rank.py"}


def calls_of(path: Path) -> list[tuple[str, dict[str, object]]]:
    """Every call in a file: the last part of what is called, and its keywords."""
    calls = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            named = {k.arg: k.value.value for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)}
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            calls.append((f"{owner}.{node.func.attr}", named))
    return calls


#: Classes that read JSON and text.
WITHOUT_WEIGHTS = ("AutoConfig", "AutoTokenizer", "GenerationConfig", "PreTrainedTokenizerFast")
SOURCES = sorted(path for path in TRAINERS.rglob("*.py"))


def test_loading_calls_forbid_foreign_code():
    """The next one that is written must, too."""
    seen = 0
    for path in SOURCES:
        for name, keywords in calls_of(path):
            owner, _, method = name.rpartition(".")
            if method in ("from_pretrained", "from_config"):
                seen += 1
                assert (
                    keywords.get("trust_remote_code") is False or method == "from_config" and path.name == "tiny.py"
                ), f"{path}: {name} needs trust_remote_code=False"
                if method == "from_pretrained" and owner not in WITHOUT_WEIGHTS:
                    assert keywords.get("use_safetensors") is True, f"{path}: {name} needs use_safetensors=True"
            if str(path.relative_to(TRAINERS)) not in BETWEEN_OUR_PROCESSES:
                assert name not in ("pickle.load", "pickle.loads", "torch.load"), f"{path}: {name} reads a pickle"
    assert seen >= 10


class Attack:
    """Its pickle writes a file when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return Path.touch, (self.proof,)


@pytest.fixture
def model(tmp_path):
    """A model folder that would run code in every way that transformers has, were it let."""
    folder, proof = tmp_path / "model", tmp_path / "proof"
    tokenizer = tiny.build_tokenizer(["How many? 12 apples."] * 3, 300)
    tiny.save(folder, tiny.build_model(len(tokenizer), hidden=32, layers=1), tokenizer)
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(proof)!r}).touch()\n")
    for name, entries in (
        ("config.json", {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}),
    ):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, "auto_map": entries}))
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Attack(proof)))
    return folder


def test_code_and_pickles_in_models_are_ignored(model, tmp_path):
    section = ModelSection(path=str(model))
    policy = load(section, lambda: (), max_context=64, seed=0)
    assert type(policy.model).__name__ == "Qwen2ForCausalLM"
    assert type(Learner(str(model)).actor.lm).__name__ == "Qwen2ForCausalLM"
    load_tokenizer(str(model))
    (model / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="transformers cannot load it"):
        load(section, lambda: (), max_context=64, seed=0)
    with pytest.raises(OSError, match="safetensors"):
        Learner(str(model))
    assert not (tmp_path / "proof").exists()


def test_model_needing_custom_code_is_refused(model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "evil", "architectures": ["Evil"]}))
    with pytest.raises(PolicyError, match="transformers cannot load it"):
        load(ModelSection(path=str(model)), lambda: (), max_context=64, seed=0)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../model-1.safetensors", "/model-1.safetensors", 7, None])
def test_weight_index_names_only_local_safetensors(model, tmp_path, shard):
    (model / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    with pytest.raises(PolicyError, match=r"index\.json names .* no safetensors file"):
        load(ModelSection(path=str(model)), lambda: (), max_context=64, seed=0)
    with pytest.raises(ValueError, match="no safetensors file"):
        Learner(str(model))


@pytest.mark.parametrize(
    "entries", [{"_attn_implementation": "evil/kernel"}, {"text_config": {"attn_implementation": "e/k@v1:f"}}]
)
def test_configuration_names_no_kernel_of_hub(model, entries):
    """With the package ``kernels``, transformers downloads and imports it, whatever trust_remote_code says."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **entries}))
    with pytest.raises(PolicyError, match="code of the hub"):
        load(ModelSection(path=str(model)), lambda: (), max_context=64, seed=0)
    with pytest.raises(ValueError, match="code of the hub"):
        Learner(str(model))
    ((key, message), *_) = classifier_problems(ClassifierSection(path=str(model)))
    assert (key, "code of the hub" in message) == ("path", True)


def test_pickles_beside_adapter_are_not_read(tmp_path):
    proof = tmp_path / "proof"
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    (tmp_path / "adapter_model.bin").write_bytes(pickle.dumps(Attack(proof)))
    with pytest.raises(ValueError, match=r"has no adapter_model\.safetensors"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(pickle.dumps(Attack(proof)))
    with pytest.raises(ValueError, match="cannot be read"):
        read_adapter(tmp_path).tensors()
    assert not proof.exists()


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
CONFIGS = {
    "bomb": BOMB,
    "deep": "actor: " + "[" * 50_000,
    "list": "- 1",
    "list for a section": "trainer: [1, 2]",
    "number for a folder": "trainer: {default_local_dir: 3}",
    "number of base 60": "actor: {lr: " + "1:" * 50_000 + "1}",
    "date": "trainer: {seed: 2020-99-99}",
    "own alias": "trainer: &a [*a]",
    "bytes": "\udcff\udcfe",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_hostile_configurations_are_refused_in_words(name, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGS[name], encoding="utf-8", errors="surrogateescape")
    if name != "number for a folder":  # which is a name as good as any on a command line
        with pytest.raises(ConfigError) as refusal:
            resolve(["--config", str(path)], PPOConfig)
        assert len(str(refusal.value)) < 2000
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/reward": 0.5}\n')
    assert doctor.main([str(tmp_path)]) in (0, 1, 2)


@pytest.mark.parametrize("place", ["pipe", "/dev/zero", "folder", "absent"])
def test_configurations_that_are_no_files_are_refused(place, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"device or a pipe|is a folder|no such file"):
        resolve(["--config", str(tmp_path / place)], PPOConfig)


@pytest.mark.parametrize(
    "line", ['{"a": 1}', '{"step": "x"}', '{"step": 1, "a": "text"}', "[1]", '{"step": 1e99}', "{", "\0"]
)
def test_hostile_metrics_are_refused_in_words(line, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("trainer: {seed: 1}\n")
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n" + '{"step": 1, "train/reward": 0.5}\n')
    assert doctor.main([str(tmp_path)]) == 2
    assert "metrics.jsonl, line 1" in capsys.readouterr().err
