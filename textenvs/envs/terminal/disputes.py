"""Rules in dispute: the page states such a rule together with a sentence that does not hold, and users report it.

They report it whether or not the program goes against it. So neither the report nor the program tells what is right:
only the words do in which the page joins both sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

from ...task import Split, split_choices
from ...text import load_yaml
from .project import Fault, Project

_FORMS: Mapping[str, Sequence[str]] = load_yaml(__package__, "disputes.yaml")
#: Of the forms of a list, one in so many is the test split's.
_HELD_OUT = 2


def draw_form(rng: Random, split: Split) -> str:
    """Draw a form of words, with ``{right}`` and ``{wrong}`` for two sentences of which the first holds."""
    order = rng.choice(("first", "second"))
    a, b = ("{right}", "{wrong}") if order == "first" else ("{wrong}", "{right}")
    return rng.choice(split_choices(_FORMS[order], split, _HELD_OUT)).replace("{a}", a).replace("{b}", b)


def forms_of(split: Split) -> dict[str, tuple[str, ...]]:
    """Return the forms of a split, by whether the ``first`` or the ``second`` sentence holds."""
    return {order: split_choices(forms, split, _HELD_OUT) for order, forms in _FORMS.items()}


def is_disputable(project: Project, fault: Fault) -> bool:
    """Return whether a fault is against a rule that no other file shows, and the page states it in a line.

    One that commands make leaves traces, as in a history.
    """
    page = project.files.get(fault.page, "")
    return bool(fault.followed and fault.edits) and page.splitlines().count(_line(fault.agreed)) == 1


def disputed(project: Project, forms: Mapping[str, str]) -> Project:
    """Return the project with a page that disputes some rules.

    Args:
        project: Each of the rules is disputable in it.
        forms: A form of words for each rule, by its name.
    """
    files = dict(project.files)
    for fault in project.faults:
        if form := forms.get(fault.kind):
            line = _line(form.replace("{right}", fault.agreed).replace("{wrong}", fault.followed))
            files[fault.page] = files[fault.page].replace(f"{_line(fault.agreed)}\n", f"{line}\n")
    return replace(project, files=files)


def _line(sentence: str) -> str:
    return f"- {sentence}"
