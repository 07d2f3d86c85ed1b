"""What a model's small files may not ask transformers for, beyond the code that ``trust_remote_code=False`` refuses.

Two ways to code of others are left open by that: ``config.json`` can name an attention kernel of the hub
(``"_attn_implementation": "owner/repository"``), which is downloaded and imported; and the index of safetensors files
can name a pickle, or a file of another folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"


def check_model_files(source: str | Path) -> None:
    """Check ``config.json`` and the index of the weights, before transformers reads them.

    Args:
        source: A folder, or a name of the hub.

    Raises:
        ValueError: They ask for code, a pickle or another folder's file, or cannot be read; the message says which.
    """
    config = _read(source, _CONFIG)
    for key, value in _settings(config):
        if "implementation" in key and isinstance(value, str) and "/" in value:
            raise ValueError(
                f"{source}: {key} in {_CONFIG} is {value!r:.200}, which is code of the hub; remove it to use the "
                "model with transformers' own code"
            )
    index = _read(source, _INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if index is not None and not isinstance(names, dict):
        raise ValueError(f"{source}: {_INDEX} has no weight_map")
    for name in (names or {}).values():
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\\" in name:
            raise ValueError(f"{source}: {_INDEX} names {name!r:.200}, which is no safetensors file of that folder")


def _settings(config: Any) -> Iterator[tuple[str, Any]]:
    """All entries of a configuration, with those of the configurations in it, at any depth."""
    rest = [config]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            yield from each.items()
            rest.extend(each.values())
        elif isinstance(each, list):
            rest.extend(each)


def _read(source: str | Path, name: str) -> Any:
    """A JSON file of a model; ``None`` where there is none."""
    from transformers.utils import cached_file

    try:
        found = cached_file(str(source), name)
        return None if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    except OSError:  # it is not there; loading the model says so where it is needed
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: {name} cannot be read ({error})") from error
