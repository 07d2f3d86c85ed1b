"""A section that stands for one entry of a mapping of sections: see :class:`~trainers.config.alias.Alias`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from ..config.alias import NAME, Alias
from ..config.describe import Key, is_key
from ..config.settings import Report, Setting
from ..config.unread import no_effect
from ..config.yaml12 import dump
from ..section import frozen


@dataclass(frozen=True)
class AsWritten:
    """Turns the names of an entry's keys in a text into those of the section that the user wrote."""

    entry: str = ""
    section: str = ""

    def __call__(self, text: str) -> str:
        return re.sub(rf"\b{re.escape(self.entry)}(?![\w-])", self.section, text) if self.entry else text


def to_entries(
    settings: Sequence[Setting], schema: type[BaseModel], keys: Mapping[str, Key], report: Report
) -> tuple[list[Setting], AsWritten]:
    """Return the settings with the keys of the section as those of the entry; what has no effect is reported.

    An entry itself is in use by being there: its ``enable=true``, which older versions wrote, only adds it.
    """
    aliases = ((name, alias) for name, info in schema.model_fields.items() if (alias := Alias.of(info)) is not None)
    field, alias = next(aliases, ("", None))
    if alias is None:
        return list(settings), AsWritten()
    last = {setting.key: setting for setting in settings if setting.key.startswith(f"{alias.section}.")}
    for key, accepts in ((keys[f"{alias.section}.name"], _is_name), (keys[alias.switch], _is_bool)):
        if key.name in last and not accepts(last[key.name].value):
            wrong = last.pop(key.name)
            report(key.name, f"{dump(wrong.value)} is not allowed; it must be {key.allowed}", wrong.where)
            settings = [setting for setting in settings if setting.key != key.name]
    values = {name: setting.value for name, setting in last.items()}
    entry = f"{field}.{values.get(f'{alias.section}.name', keys[f'{alias.section}.name'].default)}"
    enabled = values.get(alias.switch)
    if enabled is False:
        settings = [setting for setting in settings if not f"{setting.key}.".startswith(f"{entry}.")]
    if enabled or (enabled is None and any(f"{setting.key}.".startswith(f"{entry}.") for setting in settings)):
        as_written = AsWritten(entry, alias.section) if last else AsWritten()
        return _renamed(settings, field, alias, entry, keys, report), as_written
    for name, setting in last.items():
        default = name in keys and frozen(setting.value) == keys[name].default
        if is_key(name, keys) and not default and name != alias.switch:
            report(name, no_effect({alias.switch: (True,)}, keys.__getitem__), setting.where)
    rest = [setting for setting in settings if setting.key not in last or not is_key(setting.key, keys)]
    return _renamed(rest, field, alias, entry, keys, report), AsWritten()


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(NAME, value) is not None


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _renamed(
    settings: Sequence[Setting], field: str, alias: Alias, entry: str, keys: Mapping[str, Key], report: Report
) -> list[Setting]:
    """Return the settings in order, the section's as the entry's; an entry of which only `enable` is set, as empty."""
    renamed: list[tuple[Setting, str, bool]] = []  # each with its entry, and whether it was the section's
    for setting in settings:
        key, where = setting.key, setting.where
        own = key.startswith(f"{alias.section}.") and is_key(key, keys)
        key = key.replace(alias.section, entry, 1) if own else key
        name, _, inner = key.removeprefix(f"{field}.").partition(".") if key.startswith(f"{field}.") else ("", "", "")
        if key == field and setting.value == {}:  # it takes away the other entries so far
            general, own_ones = [item for item in renamed if not item[1]], [item for item in renamed if item[2]]
            renamed = [*general, (setting, "", False), *own_ones]
        elif not name or inner != "enable":
            renamed.append((Setting(key, setting.value, where), name, own))
        elif setting.value is not True:
            text = f"is {dump(setting.value)}, and what is in {field} is in use: leave {field}.{name} out"
            report(key, text, where)
        elif all(item[1] != name for item in renamed):
            renamed.append((Setting(f"{field}.{name}", {}, where), name, own))
    return [setting for setting, _, _ in renamed]
