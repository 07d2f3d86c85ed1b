"""Models of this machine for simulated users and judges: a spec whose ``model`` is a folder.

The first request for a folder loads its model, and serves it from this process to the ordinary client: there is one
for all environments and event loops. What computes models is another package's, found by its entry point.
"""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ChatFailure
from .spec import ChatSpec

_TIMEOUT_S = 600.0
_addresses: dict[str, str] = {}
_lock = threading.Lock()


def is_folder(model: str) -> bool:
    """Return whether a spec's ``model`` is a folder with a model in it, and no name at a service."""
    return (Path(model).expanduser() / "config.json").is_file()


def served(spec: ChatSpec) -> ChatSpec:
    """Return ``spec`` with the address of its model if that is a folder; blocks while a model is loaded.

    Its requests have a seed then, 0 where the spec has none, so that episodes can be repeated; and ten minutes where it
    says no ``timeout_s``, because they queue for this machine, which a retry would only keep busier.

    Raises:
        ChatFailure: The model cannot be served here; the message says why.
    """
    if spec.base_url is not None or not is_folder(spec.model):
        return spec
    folder = str(Path(spec.model).expanduser().resolve())
    with _lock:
        if folder not in _addresses:
            _addresses[folder] = _serve(folder)
    timeout_s = spec.timeout_s if "timeout_s" in spec.model_fields_set else _TIMEOUT_S
    return ChatSpec.of(spec, base_url=_addresses[folder], seed=spec.seed or 0, timeout_s=timeout_s)


def folders_in(kwargs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the users and judges among an environment's arguments that are folders, as options of spec and user."""
    models = {name: kwargs[name] for name in ("user", "judge") if name in kwargs}
    options = {name: {"model": value} if isinstance(value, str) else value for name, value in models.items()}
    return {
        name: dict(value)
        for name, value in options.items()
        if isinstance(value, Mapping) and isinstance(value.get("model"), str) and is_folder(value["model"])
    }


def with_addresses(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's arguments with the addresses of users and judges that are folders."""
    addressed = dict(kwargs)
    for name, options in folders_in(kwargs).items():
        spec_options: dict[str, Any] = {
            key: options[key] for key in ("model", "base_url", "seed", "timeout_s") if key in options
        }
        addressed[name] = {**options, **served(ChatSpec.of(spec_options)).to_dict()}
    return addressed


def local_policy() -> Any:
    """Return the class of policies that are local models; ``ImportError`` if its requirements are not installed."""
    for point in importlib.metadata.entry_points(group="textenvs.policies"):
        if point.name == "local":
            return point.load()
    raise ImportError("nothing installed here computes models; reinstall textenvs to have its entry points")


def _serve(folder: str) -> str:
    try:
        return str(local_policy().serve(folder))
    except (ImportError, ValueError, OSError) as error:
        raise ChatFailure(f"{folder}: {error} (models of this machine need the extras 'train' and 'serve')") from error
