"""Suggestions for an unknown key: a synonym from another trainer's vocabulary, or keys with a similar spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from ..compat.verl.rules import NOTHING
from ..compat.verl.translate import Rule, Table
from ..config.describe import Key, is_key
from ..config.yaml12 import Loader

_FILE = Path(__file__).with_name("synonyms.yaml")


class Synonym(NamedTuple):
    """The keys with the meaning of another trainer's word."""

    keys: tuple[tuple[str, ...], ...]  #: alternatives, each of keys that belong together; empty: there is no such key
    remark: str = ""

    def among(self, names: Iterable[str], section: str) -> tuple[str, ...]:
        """Return the alternative whose keys are all in ``names``, preferably that of ``section``; empty without one."""
        present = [alternative for alternative in self.keys if set(alternative) <= set(names)]
        return next(
            (alternative for alternative in present if alternative[0].startswith(f"{section}.")),
            present[0] if present else (),
        )


@cache
def read_synonyms() -> dict[str, Synonym]:
    """Return the table of synonyms.yaml, by the other trainers' words."""
    table = {}
    for word, text in yaml.load(_FILE.read_text(encoding="utf-8"), Loader).items():
        keys, _, remark = text.partition("--")
        alternatives = (
            tuple(key.strip() for key in alternative.split("+"))
            for alternative in keys.split("|")
            if alternative.strip()
        )
        table[word] = Synonym(tuple(alternatives), remark.strip())
    return table


def unknown_key(name: str, keys: Mapping[str, Key], table: Table) -> str:
    """Return the problem with a key that is not in ``keys``, and suggest the intended ones."""
    if missing := without_name(name, keys):
        return missing
    for key in keys.values():
        if name.startswith(f"{key.name}.") and key.entries:
            entry = name.removeprefix(f"{key.name}.").partition(".")[0]
            its = {f"{key.name}.{entry}.{inner_name}": inner for inner_name, inner in key.entries.items()}
            return f"unknown key of {key.name}.{entry}" + unknown_key(name, its, NOTHING).removeprefix("unknown key")
    sections = {key.section for key in keys.values()}
    if name in sections:
        below = [key for key in keys if key.startswith(f"{name}.")]
        return f"is a section, not a key; it has {', '.join(below[:4])}{', ...' if len(below) > 4 else ''}"
    if owner := next((key for key in keys if name.startswith(f"{key}.")), None):
        return f"unknown key: {owner} is a value ({keys[owner].allowed}) and has no keys below it"
    top, last = name.partition(".")[0], name.rpartition(".")[2]
    if matches := [key for key in keys if key.startswith(f"{top}.") and key.endswith(f".{last}")]:
        return f"unknown key; did you mean {' or '.join(matches)}?"  # in this section, on another path
    if answer := _translated(name, keys, table):
        return f"unknown key; {answer}"
    nearest = nearest_keys(name, keys)
    verl_keys = [key for key in table.rules if not key.endswith("*")]
    if difflib.get_close_matches(name, verl_keys, 1, 0.85) and not difflib.get_close_matches(name, keys, 1, 0.85):
        nearest = nearest_keys(name, verl_keys)  # a verl key is intended
    return "unknown key" + (f"; did you mean {' or '.join(nearest)}?" if nearest else "")


def without_name(name: str, keys: Mapping[str, Key]) -> str | None:
    """Return the problem if ``name`` is a key of an entry, without the entry's name; else ``None``."""
    for key in keys.values():
        inner = name.removeprefix(f"{key.name}.")
        if key.entries and inner != name and is_key(inner, key.entries):
            return f"the entry's NAME is missing: it is {key.name}.NAME.{inner}, with a NAME of yours"
    return None


def _translated(name: str, keys: Mapping[str, Key], table: Table) -> str | None:
    """Return the native meaning of another trainer's word; ``None`` if it is no such word."""
    word = name.lstrip("+-").replace("-", "_")
    section, _, last = word.rpartition(".")
    top = section.partition(".")[0]
    synonyms, parts = read_synonyms(), word.split(".")
    for start in range(len(parts)):
        if (synonym := synonyms.get(".".join(parts[start:]))) is not None:
            matches = synonym.among(keys, top)
            if matches:
                return f"here it is {' and '.join(matches)}" + (f" ({synonym.remark})" if synonym.remark else "")
            if not synonym.keys:
                return f"there is none of this meaning: {synonym.remark}"
    known_last = {key.rpartition(".")[2] for key in keys}
    for verl_key, rule in table.rules.items():
        if last not in known_last and (verl_key == word or verl_key.endswith(f".{word}")):
            return _of_verl(verl_key, rule)
    words = [candidate for candidate, synonym in synonyms.items() if synonym.among(keys, top) or not synonym.keys]
    if last not in known_last and not difflib.get_close_matches(name, keys, 1, 0.8):
        close = difflib.get_close_matches(last, words, 1, 0.88)
        return _translated(f"{top}.{close[0]}" if top else close[0], keys, table) if close else None
    return None


def _of_verl(name: str, rule: Rule) -> str:
    if rule.to is not None:
        return f"here it is {rule.to}" + (f" ({rule.why})" if rule.why else "")
    if rule.computed is not None:
        return f"verl's {name} is translated under its whole name ({rule.why})"
    return f"verl's {name} has no meaning here: {rule.why}"


def nearest_keys(name: str, keys: Iterable[str]) -> list[str]:
    """Return the keys that ``name`` may stand for: the same word in other sections, or a similar spelling."""
    last, names = name.rpartition(".")[2], list(keys)
    near = difflib.get_close_matches(name, names, 3, 0.7)
    alike = {key: difflib.SequenceMatcher(None, name, key).ratio() for key in near}
    one_letter = [key for key in near if alike[key] > 0.9 and alike[key] == alike[near[0]]]
    if same := [key for key in names if key.rpartition(".")[2] == last]:
        return list(dict.fromkeys(one_letter + difflib.get_close_matches(name, same, 3, 0.3)))
    return one_letter or near  # one wrong letter: suggest no other keys
