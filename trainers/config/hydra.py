"""Hydra's flags in verl's commands: ``--config-path`` and ``--config-name``, and the YAML file that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from . import verl
from .settings import COMMAND_LINE, Report, taken

_FLAGS = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}


def take_flags(arguments: Sequence[str], report: Report) -> tuple[list[str], list[str], list[str]]:
    """The other arguments; the files to read before them; what became of Hydra's flags, in words."""
    flags, rest = taken(arguments, _FLAGS, report)
    given = {_FLAGS[flag]: value for flag, value in flags}
    if not given:
        return rest, [], []
    name = given.get("name", verl.NAMES["configs"][0]).removesuffix(".yaml")
    said = f"--config-name={name}"
    path = Path(given.get("path", ".")).expanduser() / f"{name}.yaml"
    if name in verl.NAMES["configs"]:
        return rest, [], [f"{said}: no meaning here: what is left out is as in verl"]
    if path.is_file():
        return rest, [str(path)], [f"{said}: read from {path}, before the keys of the command line"]
    if "ppo" in name and "trainer" in name:
        text = f"{name} cannot be had: FSDP2 trains here; leave it out (see trainer.fsdp, trainer.tensor_parallel_size)"
        report("--config-name", text, COMMAND_LINE)
    else:
        text = f"there is no file {path}: give its folder with --config-path, or write its keys on the command line"
        report("--config-name", text, COMMAND_LINE)
    return rest, [], []
