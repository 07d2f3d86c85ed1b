"""A run's checkpoints: folders that are complete or absent, whenever the process is killed.

``checkpoints/iteration_000050/`` holds ``state.json`` (the run's state) and the files of its writers. It is written
under another name, synced and renamed; names that start with a dot are no checkpoints. ``state.json`` has the checksums
of all files (:mod:`trainers.learner.checksums`), which are verified before anything is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textenvs.data.files import written_whole

from .config import PPOConfig
from .config.describe import all_keys
from .config.reward_model import entries_of
from .config.yaml12 import dump
from .learner.checkpoint import Background, recover, replace_folder
from .learner.checksums import DamagedError, UnlistedFileError, checksums, sha256, verify_listed
from .learner.fsdp import Ranks
from .learner.state import OTHER_FORMAT

log = logging.getLogger("trainers")

_NAME = re.compile(r"iteration_(\d{6,})")
_STATE = "state.json"
_FORMAT = 3


class CheckpointError(ValueError):
    """A checkpoint is missing or cannot be used; the message says which and what to do."""


class DamagedCheckpointError(CheckpointError):
    """A file of a checkpoint has changed since it was written; the message names it."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; ``state`` is the argument of :meth:`Checkpoints.save`."""

    path: Path
    iteration: int
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints in one folder, which is created by the first save; the newest ``keep`` of them are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._background = Background()
        self.wait = self._background.wait  # waits for a save in the background; raises its error, once

    def save(self, iteration: int, state: Mapping[str, Any], *writers: Callable[[Path], None]) -> Path:
        """Write a checkpoint and return its folder; delete the oldest beyond ``keep`` and those of later iterations.

        Later iterations are of an earlier run in this folder, or from before this run resumed from an older one. Each
        of ``writers`` writes its own part into the folder; if one fails, the folder is removed.
        """
        final = self.folder / f"iteration_{iteration:06d}"
        self._finish_replacing()
        for leftover in self.folder.glob(".iteration_*"):  # of a process that was killed
            shutil.rmtree(leftover)

        def seal(folder: Path) -> None:
            (folder / _STATE).write_text(_sealed(state, checksums(folder)), encoding="utf-8")

        with replace_folder(final, Ranks(None), seal) as partial:
            for write in writers:
                write(partial)
        checkpoints = self._all()
        retained = [path for number, path in checkpoints if number <= iteration][-self.keep :]
        for _, path in checkpoints:
            if path not in retained:
                deleted = path.rename(path.with_name(f".{path.name}.deleted"))  # it must not be visible half deleted
                shutil.rmtree(deleted)
        return final

    def save_in_background(self, iteration: int, state: Mapping[str, Any], *writers: Callable[[Path], None]) -> None:
        """Run :meth:`save` in a thread after the save before, whose error is raised; the writers need stable data."""
        state = json.loads(json.dumps(dict(state)))  # a copy of the present state
        self._background.start(lambda: self.save(iteration, state, *writers), "checkpoint")

    def amend(self, iteration: int, entries: Mapping[str, Any]) -> None:
        """Add entries to the state of a checkpoint, if it exists; its file is replaced atomically."""
        path = self.folder / f"iteration_{iteration:06d}" / _STATE
        if not path.is_file():
            return
        state, listed = _unsealed(path)
        with written_whole(path) as unfinished:
            Path(unfinished).write_text(_sealed({**state, **entries}, listed), encoding="utf-8")

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or ``None`` if there is none. Damaged ones are logged.

        CheckpointError: there are only damaged ones, or the newest cannot be used.
        """
        self._finish_replacing()
        damaged: list[str] = []
        for _, path in reversed(self._all()):
            try:
                checkpoint = load(path)
            except DamagedCheckpointError as error:
                damaged.append(str(error))
                continue
            for message in damaged:
                log.warning("%s; using %s instead", message, path.name)
            return checkpoint
        if not damaged:
            return None
        raise CheckpointError(
            f"no checkpoint in {self.folder} can be used: {'; '.join(damaged)}. Restore the files from a copy, or "
            "start afresh with trainer.resume_mode=disable"
        )

    def newest_path(self) -> Path | None:
        """Return the folder of the newest checkpoint without reading it; ``None`` if there is none."""
        self._finish_replacing()
        return next((path for _, path in reversed(self._all())), None)

    def _finish_replacing(self) -> None:
        """Restore a folder that :meth:`save` had moved aside when it was killed between its two renames."""
        for aside in self.folder.glob(".iteration_*.previous"):
            recover(self.folder / aside.name.removeprefix(".").removesuffix(".previous"))

    def _all(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        matches = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match and path.is_dir())


def load(path: Path) -> Checkpoint:
    """Read the state of one checkpoint, and verify all of its files; CheckpointError says which is wrong."""
    match = _NAME.fullmatch(path.name)
    if match is None or not path.is_dir():
        raise CheckpointError(
            f"{path} is not a checkpoint: expected a folder named iteration_NNNNNN with a {_STATE} in it"
        )
    if not (path / _STATE).is_file():
        raise DamagedCheckpointError(f"{path / _STATE} is missing")
    state, listed = _unsealed(path / _STATE)
    try:
        verify_listed(path, {**listed, _STATE: sha256(path / _STATE)})
    except DamagedError as error:
        raise DamagedCheckpointError(str(error)) from error
    except UnlistedFileError as error:
        raise CheckpointError(str(error)) from error
    return Checkpoint(path, int(match[1]), state)


def _sealed(state: Mapping[str, Any], listed: Mapping[str, str]) -> str:
    body = json.loads(json.dumps({"format": _FORMAT, "state": dict(state), "files": dict(listed)}))
    return json.dumps({"sha256": _checksum(body), **body}, indent=1)


def _unsealed(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the state in a ``state.json``, and the checksums of the other files."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}, not an object")
        body = {name: content.get(name) for name in ("format", "state", "files")}
        actual = _checksum(body)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read ({error})") from error
    if "iteration" in content and "sha256" not in content:
        raise CheckpointError(f"{path.parent}: {OTHER_FORMAT}")
    if content.get("sha256") != actual:
        raise DamagedCheckpointError(f"{path} is damaged: it differs from its checksum")
    if body["format"] != _FORMAT:
        raise CheckpointError(f"{path.parent} has format {body['format']!r}: {OTHER_FORMAT}")
    if not isinstance(body["state"], dict) or not isinstance(body["files"], dict):
        raise DamagedCheckpointError(f"{path} is damaged: it is not the state of a run")
    return body["state"], body["files"]


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# ------------------ whether a checkpoint fits a configuration

# Keys that must not change when resuming: the model, for example, but not the learning rate.
_FIXED = (
    *(f"model.{name}" for name in ("path", "family", "hidden", "intermediate", "layers", "heads", "kv_heads")),
    *(f"model.{name}" for name in ("vocab_size", "dtype", "device", "lora_rank", "lora_alpha", "target_modules")),
    *("model.exclude_modules", "model.lora_adapter_path", "env.id", "data.train_files", "data.train_size"),
    *("data.shuffle", "data.chat_template_kwargs", "data.filter_overlong_prompts", "data.longest_prompt"),
    *("algorithm.adv_estimator", "actor.use_kl_loss", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.type"),
    "actor.distill.teacher",
    # Optimizer steps per iteration: the learning rate's schedule counts them.
    *("actor.ppo_epochs", "actor.mini_batches", "critic.warmup", "trainer.seed", "env.train_side"),
)


def damaged(path: Path, error: BaseException) -> CheckpointError:
    message = next((line for line in str(error).splitlines() if line.strip()), "")
    return CheckpointError(
        f"{path} is damaged ({type(error).__name__}: {message}); move it away to resume from the one before"
    )


def refuse_checkpoint(config: PPOConfig, checkpoint: Checkpoint) -> None:
    """Raise ``CheckpointError`` if this run cannot resume from a checkpoint."""
    path = checkpoint.path
    if "config" not in checkpoint.state:
        raise damaged(path, KeyError("state.json has no config"))
    before, now = checkpoint.state["config"], config.model_dump(mode="json")
    played = before.get("env") or {}
    names, earlier = config.env.mixture.keys(), dict(played.get("mixture") or {}).keys()
    if names != earlier:
        values = [", ".join(keys) or "not given" for keys in (earlier, names)]
        raise other_run(path, f"env.mixture was {values[0]} and is now {values[1]}")
    also = [f"env.mixture.{name}.id" for name in names]
    if not names and _has_curriculum(played) != _has_curriculum(now["env"]):
        also += ["env.curriculum.kind", "env.curriculum.reverse_share"]
    freed = ("data.train_files", "data.train_size") if config.trainer.resume_other_data else ()
    refuse_other_run(before, now, path, also, freed)
    if checkpoint.state.get("weights_only") and not config.trainer.val_only:
        raise CheckpointError(
            f"{path} has the model alone (trainer.save_weights_only), and resuming needs the optimizer's state, too: "
            f"begin another run with it (model.path={path / 'model'} trainer.experiment_name=NAME), validate it "
            "(trainer.val_only=true), or start afresh in this folder with trainer.resume_mode=disable"
        )


def refuse_other_run(
    before: Mapping[str, Any], now: Mapping[str, Any], path: Path, also: Sequence[str] = (), freed: Sequence[str] = ()
) -> None:
    """Raise ``CheckpointError`` if a fixed key differs from the checkpoint's configuration.

    ``also`` are additional fixed keys, ``freed`` those that may differ.
    """
    fixed = [name for name in (*_FIXED, *also) if name not in freed]
    differ = [name for name in fixed if _at(before, name) not in (_at(now, name), _UNKNOWN)]
    if differ:
        changes = ", ".join(f"{name} was {_at(before, name)} and is now {_at(now, name)}" for name in differ)
        raise other_run(path, changes)


def other_run(path: Path, changes: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is of another run: {changes}. Give this run a folder of its own (trainer.experiment_name=NAME), "
        "or start afresh in this one with trainer.resume_mode=disable"
    )


def _has_curriculum(env: Mapping[str, Any]) -> bool:
    """Return whether a single environment's groups are chosen by a curriculum, which numbers tasks itself."""
    curriculum = env.get("curriculum") or {}
    return curriculum.get("kind", "fixed") != "fixed" or curriculum.get("reverse_share", 0.0) > 0


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield each key whose value differs, as ``key: old -> new``; skip keys that only one version has."""
    keys = dict(all_keys(PPOConfig))
    models = keys.pop("reward_models")
    yield from _differences(keys, before, now)
    old, new = entries_of(before), entries_of(now)
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new:
            for line in _differences(models.entries, old[name], new[name]):
                yield f"{models.name}.{name}.{line}"
        else:
            yield f"{models.name}.{name}: {dump(old.get(name))} -> {dump(new.get(name))}"


def _differences(keys: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in keys:
        old, new = _at(before, name), _at(now, name)
        if old != new and _UNKNOWN not in (old, new):
            yield f"{name}: {dump(old)} -> {dump(new)}"


def _at(tree: Mapping[str, Any], name: str) -> Any:
    value: Any = tree
    for part in name.split("."):
        if part not in value:  # an older version did not have this key
            return _UNKNOWN
        value = value[part]
    return value


_UNKNOWN: Any = object()
