"""The private reasoning of a model in its chat template."""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

from textenvs.reasoning import REASONING_KEYS, REASONING_MARKS, Marks, split_reasoning

from .show import RejectedError, Show


class TemplateReasoning(NamedTuple):
    """The private reasoning of a model in its chat template."""

    opened: str = ""  # the begin mark in the generation prompt; replies then only have the end
    end: str = ""  # that end
    marks: Marks | None = None  # its marks, if they are not among textenvs' own

    def reply(self, text: str, *, cut: bool) -> str:
        """Return a sampled text as an environment reads it: reasoning has its begin mark, and known marks.

        If the prompt opened reasoning, a reply that never ends it is reasoning if it was ``cut``, and else has none.
        """
        if cut or (self.end and self.end in text):
            text = self.opened + text
        if self.marks is None or (split := split_reasoning(text, (self.marks,))).text == text.strip():
            return text
        return f"{_KNOWN.begin}\n{split.reasoning}\n{_KNOWN.end}\n\n{split.text}"


_KNOWN = REASONING_MARKS[0]
_THOUGHT, _SAID = "zqthoughtqz", "zqsaidqz"


def reasoning_of(show: Show) -> TemplateReasoning:
    """Return how a template shows separate reasoning, and whether its generation prompt opens it, by a probe."""
    question = {"role": "user", "content": "x"}
    try:
        prompt = show([question], None)
    except RejectedError:
        return TemplateReasoning()
    marks = None
    for key in REASONING_KEYS:
        with contextlib.suppress(RejectedError):
            text = show([question, {"role": "assistant", "content": _SAID, key: _THOUGHT}], None, generate=False)
            if match := _SHOWN.search(text):
                header = text[len(os.path.commonprefix([prompt, text])) : match.end(1)].strip()
                marks = Marks(header or match[1], match[2])
                break
    if marks and any(marks.begin.lower() == known_marks.begin.lower() for known_marks in REASONING_MARKS):
        marks = None
    for known_marks in (*([marks] if marks else []), *REASONING_MARKS):
        if known_marks.in_prompt and prompt.rstrip().endswith(known_marks.begin):
            return TemplateReasoning(prompt[prompt.rindex(known_marks.begin) :], known_marks.end, marks)
    return TemplateReasoning(marks=marks)


_MARK = r"<[^<>\s]+>|\[[^\[\]\s]+\]|◁[^◁▷\s]+▷"
_SHOWN = re.compile(rf"((?:{_MARK})[a-z]*)\s*{_THOUGHT}\s*({_MARK}).*{_SAID}", re.DOTALL)
