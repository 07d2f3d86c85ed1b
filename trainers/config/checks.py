"""What must exist on disk, and what a user should know. Each check yields the key to change and why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..hub import is_name, read_adapter
from .model import ModelSection
from .reward_model import sections_of
from .schema import TASK_FILES, RunConfig
from .section import Problems, Section

_CREDIT = "algorithm.reward_credit"
#: Those that learn another policy than the one that earns most, and where.
_MISLEADING_CREDIT = {
    "spread": "what is done decides how many turns follow",
    "discounted": "what is done decides when a reward comes",
}
_NO_FILES = ("generated:", "hub:")  # sources of tasks that are not on this disk


def _adapter_checks(model: ModelSection) -> Problems:
    """Whether a saved adapter is what the configuration says, from its own configuration."""
    assert model.lora_adapter_path is not None
    try:
        saved = read_adapter(model.lora_adapter_path)
    except ValueError as error:
        yield "model.lora_adapter_path", str(error)
        return
    for key, theirs in (("lora_rank", saved.rank), ("lora_alpha", saved.alpha)):
        if (ours := getattr(model, key)) != theirs:
            yield f"model.{key}", f"is {ours:g}, and the adapter of model.lora_adapter_path has {theirs:g}"
    if saved.target_modules is None or isinstance(model.target_modules, str):
        return  # the model must tell
    if set(model.target_modules) - set(model.exclude_modules) != saved.target_modules:
        text = f"and the adapter of model.lora_adapter_path is in {', '.join(sorted(saved.target_modules))}"
        yield "model.target_modules", f"is {', '.join(model.target_modules)}, {text}"


def missing_paths(config: Section) -> Problems:
    """Files and folders that the configuration names and that are not there, seen from the current folder."""

    def at(key: str) -> Any:
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None)
        return value

    for key in ("data.train_files", "data.val_files", "warm_start.files", "sft.files"):
        for file in at(key) or ():
            path = Path(file).expanduser()
            if key.startswith("data.") and file.startswith(_NO_FILES):
                continue
            if not path.is_file():
                yield key, f"there is no file {file} (looked in {path.absolute().parent})"
            elif path.suffix not in TASK_FILES:
                yield key, f"{file} is neither .jsonl nor .parquet"
    model = at("model.path")
    # Of a name on the hub, the files are asked for when the plan is made.
    if model not in ("tiny", None) and not is_name(model) and not (Path(model).expanduser() / "config.json").is_file():
        text = "is not a folder with a config.json; give a model's folder, a name on the hub, or tiny"
        yield "model.path", f"{model} {text}"
    if at("model.lora_adapter_path") is not None:
        yield from _adapter_checks(at("model"))
    for key, scorer in sections_of(config).items():
        judge = scorer.classifier.path
        if judge is not None and not (Path(judge).expanduser() / "config.json").is_file():
            yield f"{key}.classifier.path", f"{judge} is not a folder with a config.json; give a model's folder"
    credit, _, credited = (at("algorithm.reward_credit") or "").rpartition(":")
    own = "custom_reward_function"
    for key, name_key, file, name in (
        (f"{own}.path", f"{own}.name", at(f"{own}.path"), at(f"{own}.name")),
        (_CREDIT, _CREDIT, credit, credited),
    ):
        if file and not (path := Path(file).expanduser()).is_file():
            yield key, f"there is no file {file}"
        elif file and (problem := _without_function(path, name)) is not None:
            yield name_key, problem
    if (resume := at("trainer.resume_from_path")) is not None and not Path(resume).expanduser().is_dir():
        yield "trainer.resume_from_path", f"there is no folder {resume}"


def _without_function(file: Path, name: str) -> str | None:
    """What is wrong where a Python file gives nothing a name; the file is read, and not run."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError) as error:
        return f"{file} cannot be read as Python: {error}"
    bound = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names = bound | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    if name in names or "*" in names:
        return None
    return f"{file} has no function {name}" + (f"; it has {', '.join(sorted(bound))}" if bound else "")


def notices(config: RunConfig) -> Iterator[str]:
    """What a configuration may ask for and its user should know: a line each, printed when a run starts."""
    algorithm = getattr(config, "algorithm", None)
    credit = "" if algorithm is None else algorithm.reward_credit
    if credit in _MISLEADING_CREDIT and algorithm and (credit != "discounted" or algorithm.reward_credit_decay > 0):
        yield (
            f"warning: algorithm.reward_credit={credit} learns another policy than the one that earns most wherever "
            f"{_MISLEADING_CREDIT[credit]} (docs/credit.md has an example); as_earned and last do not"
        )
