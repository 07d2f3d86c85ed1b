"""Models by their names on the hub, with the hub faked: what is downloaded, and what is said offline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from ppo_runs import QUICK, arguments, main

from trainers.config.model import ModelSection
from trainers.models import hub, policy, tiny

NAME = "somebody/tiny-chat"


class FakeHub:
    """``snapshot_download`` over a folder of files; nothing is cached before a download.

    After one it knows what there is, and calls a snapshot without all that is asked for incomplete, as the real one.
    """

    def __init__(self, files: Path, cache: Path, error: Exception | None = None) -> None:
        self.files, self.cache, self.error, self.requests = files, cache, error, []
        self.listed: list[Path] = []

    def __call__(self, name: str, *, local_files_only: bool = False, allow_patterns: Any = None) -> str:
        assert name == NAME
        if local_files_only:
            if not self.cache.is_dir():
                raise LocalEntryNotFoundError("not cached")
            matching = [file for file in self.listed if any(file.match(pattern) for pattern in allow_patterns or ["*"])]
            if not all((self.cache / file).is_file() for file in matching):
                raise LocalEntryNotFoundError("incomplete")
            return str(self.cache)
        self.requests.append(allow_patterns)
        if self.error is not None:
            raise self.error
        self.cache.mkdir(exist_ok=True)
        self.listed = [Path(path.name) for path in self.files.iterdir()]
        for path in self.files.iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, self.cache)
        return str(self.cache)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = tiny.build_tokenizer(["one two"])
    tiny.save(tmp_path / "files", tiny.build_model(len(tokenizer), hidden=16, layers=1), tokenizer)
    (tmp_path / "files" / "pytorch_model.bin").write_bytes(b"a pickle")
    hub = FakeHub(tmp_path / "files", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


@pytest.mark.parametrize(
    ("path", "name"), [("a/b", True), ("Qwen/Qwen2.5-0.5B", True), ("tiny", False), ("./a/b", False), ("a/b/c", False)]
)
def test_hub_names_are_recognised(path, name):
    assert hub.is_name(path) == name


def test_existing_folder_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert not hub.is_name("a/b")
    assert hub.folder_of("a/b") == Path("a/b")


def test_weights_download_only_when_needed(fake):
    section = ModelSection(path=NAME)
    policy.load_tokenizer(section, lambda: ())
    assert not list(fake.cache.glob("*.safetensors"))
    loaded = policy.load(section, lambda: (), max_context=0, seed=0)
    assert loaded.model.config.hidden_size == 16
    assert len(fake.requests) == 2
    policy.load(section, lambda: (), max_context=0, seed=0)
    assert len(fake.requests) == 2, "what is cached is not asked for again"
    assert not (fake.cache / "pytorch_model.bin").exists(), "nothing that would have to be unpickled"


@pytest.mark.parametrize("patterns", ["config.json", "*.json", "config.json *.safetensors"])
def test_partial_cache_is_completed(fake, patterns):
    """A configuration that somebody looked at, or a model that was read without its tokenizer."""
    fake.cache.mkdir()
    for path in fake.files.iterdir():
        if any(path.match(pattern) for pattern in patterns.split()) and "token" not in path.name:
            shutil.copy(path, fake.cache)
    section = ModelSection(path=NAME)
    assert policy.load_tokenizer(section, lambda: ()).encode("one")
    assert policy.load(section, lambda: (), max_context=0, seed=0).model.config.hidden_size == 16


def test_missing_shard_is_downloaded(fake):
    hub.folder_of(NAME)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (fake.cache / "model.safetensors.index.json").write_text(json.dumps(index))
    assert hub.cached(NAME, weights=True) is None
    assert hub.cached(NAME, weights=False) == fake.cache


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("offline"), LocalEntryNotFoundError("no connection")])
def test_offline_one_line_says_what_to_run(fake, tmp_path, capsys, error):
    fake.error = error
    shape = ("model.hidden", "model.layers", "model.heads", "model.kv_heads", "model.vocab_size")
    argv = [argument for argument in arguments(tmp_path / "run", *QUICK) if not argument.startswith(shape)]
    for flags in ([], ["--dry-run"]):
        with pytest.raises(SystemExit, match="2"):
            main([*argv, f"model.path={NAME}", *flags])
        lines = [line for line in capsys.readouterr().err.splitlines() if "hf download" in line]
        assert len(lines) == 1
        assert lines[0].endswith(f"run: hf download {NAME}")
        assert "model.path=" in lines[0]
    assert not (tmp_path / "run").exists()


def test_repository_without_safetensors_is_refused(fake):
    (fake.files / "model.safetensors").unlink()
    with pytest.raises(hub.HubError, match="no weights as"):
        hub.folder_of(NAME)
