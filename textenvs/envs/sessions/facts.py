"""The facts of a life: what people say, what is valid at a time, and what a question about it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind = Literal["tell", "change", "retract", "forget", "promise", "cancel", "nothing"]
Program = Literal["value", "before", "both", "newest", "due"]

#: A person and a thing of theirs, or a person and the day of a promise.
Key: TypeAlias = tuple[str, "str | int"]

#: The answer where there is none, or none for the one who asks.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Statement:
    """A sentence of a person about a thing of their own, or about a day.

    Args:
        number: Its place among the statements of the life, from 0.
        kind: ``"nothing"`` says nothing about any fact.
        key: The person who says it, and the thing or the day.
        value: The code that it tells; empty where it tells none.
        hidden_from: The person who must not learn the code; ``None``: all may.
        wording: Which wording of its kind.
    """

    number: int
    kind: Kind
    key: Key
    value: str = ""
    hidden_from: str | None = None
    wording: int = 0


@dataclass(frozen=True)
class Question:
    """A program over facts, and who asks.

    Args:
        program: ``"value"`` (the code that is valid), ``"before"`` (the one that the last change replaced), ``"both"``
            (two codes), ``"newest"`` (two codes, the one that was told later first), ``"due"`` (what is promised for a
            day).
        asker: A person.
        keys: One key; of ``"both"`` and ``"newest"`` two.
        wording: Which wording of its program.
    """

    program: Program
    asker: str
    keys: tuple[Key, ...]
    wording: int = 0


@dataclass
class FactStore:
    """All that was said so far: what is valid now, and what must be forgotten.

    Args:
        chains: Of each key the statements since it was told, without those before it was taken back or forgotten. The
            last one is valid.
        history: Of each key all codes that were ever said.
        forgotten: Codes that must not be remembered.
        secrets: Of each person all codes that were ever kept from them, whether valid or not.
    """

    chains: dict[Key, tuple[Statement, ...]] = field(default_factory=dict)
    history: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    secrets: dict[str, frozenset[str]] = field(default_factory=dict)

    def add(self, statement: Statement) -> None:
        """Take a statement into account."""
        kind, key = statement.kind, statement.key
        if kind == "nothing":
            return
        if kind in ("retract", "cancel", "forget"):
            self.chains.pop(key, None)
            if kind == "forget":
                self.forgotten = self.forgotten.union(self.history.get(key, ()))
            return
        before = self.chains.get(key, ()) if kind == "change" else ()
        self.chains[key] = (*before, statement)
        self.history[key] = (*self.history.get(key, ()), statement.value)
        if (stranger := statement.hidden_from) is not None:
            self.secrets[stranger] = self.secrets.get(stranger, frozenset()) | {statement.value}

    def version(self, key: Key, back: int = 0) -> Statement | None:
        """Return the statement that is valid for a key, or that ``back`` changes ago; ``None``: there is none."""
        chain = self.chains.get(key, ())
        return chain[-1 - back] if len(chain) > back else None

    def needs(self, question: Question) -> tuple[Statement, ...]:
        """Return the statements whose codes are the answer, in its order; empty: the answer is :data:`UNKNOWN`."""
        back = int(question.program == "before")
        versions = [self.version(key, back) for key in question.keys]
        allowed = [one for one in versions if one is not None and one.hidden_from != question.asker]
        if len(allowed) < len(versions):
            return ()
        if question.program == "newest":
            allowed.sort(key=lambda one: one.number, reverse=True)
        return tuple(allowed)


def answer_of(needs: Sequence[Statement]) -> str:
    """Return the answer whose codes these statements tell."""
    return " ".join(one.value for one in needs) or UNKNOWN
