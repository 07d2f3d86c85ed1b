"""Rules in dispute: the page states such a rule together with a sentence that does not hold, and users report it.

They report it whether or not the program goes against it. So neither the report nor the program tells what is right:
only the words do in which the page joins both sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ...task import Split
from ...text import load_yaml
from .project import Fault, Project

_WORDS: Mapping[str, Any] = load_yaml(__package__, "disputes.yaml")


def words_of(split: Split) -> dict[str, bool]:
    """Return what pages of a split say was done to a rule, each with whether the rule holds then."""
    return {word: key == "holds" for key, words in _WORDS[split].items() for word in words}


def forms_of(words: Mapping[str, bool]) -> list[str]:
    """Return all forms with some words: ``{right}`` is for the sentence that holds, ``{wrong}`` for the other one."""
    choices = itertools.product(_WORDS["frames"], words.items(), (True, False), (True, False))
    return [_form(*choice) for choice in choices]


def draw_form(rng: Random, split: Split) -> str:
    """Draw a form of words of a split."""
    word = rng.choice([*words_of(split).items()])
    return _form(rng.choice(_WORDS["frames"]), word, rng.random() < 0.5, rng.random() < 0.5)


def _form(frame: str, word: tuple[str, bool], is_above: bool, is_negated: bool) -> str:
    """Return a form: a word about the rule above or below, or the word with ``not``."""
    done, holds = word
    places = ("above", "below") if is_above else ("below", "above")
    sentences = ("{right}", "{wrong}") if (holds != is_negated) == is_above else ("{wrong}", "{right}")
    parts = {"{x}": places[0], "{y}": places[1], "{a}": sentences[0], "{b}": sentences[1]}
    parts |= {"{p}": f"not {done}" if is_negated else done, "{q}": "" if is_negated else " not"}
    for mark, text in parts.items():
        frame = frame.replace(mark, text)
    return frame


def filled(form: str, fault: Fault) -> str:
    """Return the sentences of a fault's rule in a form of words: what was agreed, and what the fault follows."""
    before, _, after = form.partition("{right}")
    sides = (before.replace("{wrong}", fault.followed), after.replace("{wrong}", fault.followed))
    return fault.agreed.join(sides)


def is_disputable(project: Project, fault: Fault) -> bool:
    """Return whether a fault is against a rule that no other file shows, and the page states it in a line.

    One that commands make leaves traces, as in a history.
    """
    return bool(fault.followed and fault.edits) and _is_stated(project.files, fault)


def disputed(project: Project, forms: Mapping[str, str]) -> Project:
    """Return the project with a page that disputes some rules.

    Args:
        project: The project.
        forms: A form of words for each rule, by its name.

    Raises:
        ValueError: A rule is not stated in a line of the page.
    """
    files, faults = dict(project.files), {fault.kind: fault for fault in project.faults}
    for kind, form in forms.items():
        fault = faults[kind]
        if not _is_stated(files, fault):
            raise ValueError(f"{kind}: {fault.page} does not state it in one line, so it cannot be in dispute")
        files[fault.page] = files[fault.page].replace(f"- {fault.agreed}\n", f"- {filled(form, fault)}\n")
    return replace(project, files=files)


def _is_stated(files: Mapping[str, str], fault: Fault) -> bool:
    lines: Sequence[str] = files.get(fault.page, "").split("\n")[:-1]
    return lines.count(f"- {fault.agreed}") == 1
