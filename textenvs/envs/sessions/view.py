"""The texts of a life: the rules, a session, a question; and what is kept of a notebook that the policy writes."""

from __future__ import annotations

import functools
import re
import string

from .facts import Question, Statement
from .law import DUE, PROGRAMS
from .life import ALPHABET, Life, Session, words

_OTHER = re.compile(rf"[^{ALPHABET}\n]+")
_BREAKS = re.compile(r" *\n[ \n]*")
_NO_WORD = re.compile(rf"[\s{re.escape(string.punctuation)}]+")
_NO_CODE = re.compile(rf"[^{ALPHABET}]+")
#: A longer reply is no answer: the longest has two codes.
_LONGEST = 100

WRITE = "Write your notebook for the days to come."


def notebook_of(text: str, capacity: int) -> tuple[str, int]:
    """Return what is kept of a reply as the notebook, and how many characters were cut.

    Capitals become small letters, and all but letters, digits and line breaks becomes a space; of several spaces or
    line breaks one stays.
    """
    text = _BREAKS.sub("\n", _OTHER.sub(" ", text.lower().replace("\r", "\n"))).strip()
    return text[:capacity].rstrip(), max(0, len(text) - capacity)


def answer_in(text: str) -> str:
    """Return the words of a whole reply as they are compared with the right answer; empty where it is none.

    Case, ASCII punctuation and "and" do not count. A reply of more than one line, or of more than 100 characters, is no
    answer: nothing can be told beside it.
    """
    text = text.strip()
    if len(text) > _LONGEST or len(text.splitlines()) > 1:
        return ""
    return " ".join(word for word in _NO_WORD.split(text.lower()) if word not in ("", "and"))


def letters_of(text: str) -> str:
    """Return the letters and digits of a text, the letters small."""
    return _NO_CODE.sub("", text.lower())


@functools.lru_cache(64)
def rules(life: Life) -> str:
    """Return what the policy is told about the life: the notebook, the answers, and the law of the questions."""
    scale = life.scale
    phases = "\n".join(
        f"days {phase.first} to {phase.last}: "
        + ", ".join(f"{thing} {percent}" for thing, percent in sorted(phase.percent.items(), key=lambda one: -one[1]))
        for phase in life.phases
    )
    programs = ", ".join(f"{_PROGRAMS[name]} {round(100 * share)}" for name, share in PROGRAMS.items())
    return (
        f"You help the same people on {scale.sessions} days. After each day you forget everything but your notebook: "
        f"at most {scale.capacity} characters, which are letters, digits, spaces and line breaks. When you are told to "
        "write it, your whole reply is the new notebook.\n"
        "Answer a question with the code alone, and with unknown where nobody told it, where it was taken back or was "
        "to be forgotten, and where the one who asks must not know it. What was to be forgotten must not be in the "
        "notebook.\n"
        f"Out of 100 questions about things, so many are about each:\n{phases}\n"
        f"Out of 100, so many ask for {programs}. Out of 100 days for which something is promised, {round(100 * DUE)} "
        "ask for it."
    )


_PROGRAMS = {"value": "one code", "both": "two", "before": "the one before the last change"}


def session_text(life: Life, session: Session, notebook: str) -> str:
    """Return what the policy is shown when a session begins."""
    lines = [f"Day {session.day}.", "Your notebook:", notebook or "(empty)", ""]
    lines += [statement_text(life, statement) for statement in session.statements]
    lines.append(WRITE if session.question is None else question_text(life, session.question))
    return "\n".join(lines)


def statement_text(life: Life, statement: Statement) -> str:
    """Return a statement in words, with the person who says it."""
    chosen, (person, about) = words(life.split), statement.key
    text = chosen[statement.kind][statement.wording].format(thing=about, day=about, value=statement.value)
    if statement.hidden_from is not None:
        secret = chosen["secret"][statement.wording % len(chosen["secret"])]
        text = f"{text} {secret.format(person=statement.hidden_from)}"
    return f"{person}: {text}"


def question_text(life: Life, question: Question) -> str:
    """Return a question in words, with the person who asks."""
    (person, thing), (person2, thing2) = question.keys[0], question.keys[-1]
    wording = words(life.split)[question.program][question.wording]
    text = wording.format(person=person, thing=thing, person2=person2, thing2=thing2)
    return f"{question.asker} asks: {text}"
