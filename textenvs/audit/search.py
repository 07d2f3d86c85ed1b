"""A search for cheap policies: compositions of cheap replies, by successive halving, verified on fresh episodes.

A composition is, for example: "." until nothing new is said > every amount seen > "It is one of these: ...". It reads
the conversation and the tools' schemas, as any policy does, and understands neither. Its parts are in grammar.yaml; the
form of an answer is learned from the expert's replies besides (:func:`learned_forms`).
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, timedelta
from itertools import chain, count, islice
from typing import Any

import numpy as np

from ..attack import Attack, Cheater
from ..evaluate.policies import AttackPolicy
from ..evaluate.records import Record
from ..external import ExternalEnv
from ..messages import Message, Messages, assistant, text_of
from ..text import load_yaml
from ..tools.formats import call
from .subject import Status, Subject, Verdict, judge, mean, show, shown, solved

_MOST = 100  # candidates of one reply
_CALLS = 6  # tool calls of one reply
_BATCHES = 3  # replies that only call tools
_ROUNDS = ((3, 10), (8, 10), (30, 10))  # episodes of each, and of how many one is kept
_LOOKED_AT = 12  # openings that say which types of candidates there are
_NEIGHBOURS = 3  # of each that the first round keeps
_MOST_FORMS, _LONGEST_FORM = 4, 400  # that are learned; characters
_LINES = "a line each"
#: Metrics by which environments say that a reply holds an answer in the form that they read.
_WELL_FORMED = ("well_formed", "answered", "delivered")

_PARTS: Mapping[str, Any] = load_yaml(__package__, "grammar.yaml")
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _PARTS["patterns"].items()}
_OPTIONS = re.compile(_PARTS["options"])


@dataclass(frozen=True)
class Composition:
    """A cheap policy: a value for each part of grammar.yaml."""

    first: str = "nothing"  # what is said before the candidates are
    kind: str = "numbers"  # one of the patterns or ranges, or "options"
    where: str = "everywhere"
    pick: str = "all"
    form: str = "bare"  # one of the forms, "tool NAME", or a template that was learned

    @property
    def says(self) -> str:
        """The composition in words."""
        first = _PARTS["first"][self.first].get("says")
        values = f"{_PARTS['picks'][self.pick]} of the {self.kind} {_PARTS['where'][self.where]}"
        form = f"a call of {self.form}" if self.form.startswith("tool ") else f"as {self.template!r}"
        return (f"{first}, then " if first else "") + f"{_PARTS['ranges'].get(self.kind, values)}, {form}"

    @property
    def template(self) -> str:
        """The template that the candidates are put into, in the place of ``{}``."""
        return str(_PARTS["forms"].get(self.form, "{}" if self.form == _LINES else self.form))

    @property
    def weakness(self) -> str:
        """Cause and remedy for an environment that pays for this composition."""
        causes = (
            weakness["says"]
            for weakness in _PARTS["weaknesses"]
            if all(getattr(self, part) in values for part, values in weakness["of"].items())
        )
        return next(causes, "a cheap reply earns what the expert earns")

    @property
    def size(self) -> int:
        """Number of parts that are not the simplest."""
        return sum(getattr(self, part.name) != part.default for part in fields(self))

    def cheater(self, tools: Sequence[Mapping[str, Any]]) -> Cheater:
        """Return the policy of one episode."""
        script = self._script(tools)
        next(script)
        return script.send

    def _script(self, tools: Sequence[Mapping[str, Any]]) -> Generator[str | Message, Messages, None]:
        conversation = yield ""
        first = _PARTS["first"][self.first]
        for turn in range(first.get("turns", 0)):
            texts = _texts(conversation, "everywhere")
            if turn and texts[-1] in texts[:-1]:
                break
            conversation = yield first["reply"]
        if self.first == "calls tools":
            for batch in islice(_batches(conversation, tools), _BATCHES):
                conversation = yield batch
        for turn in count():
            conversation = yield self._answer(conversation, tools, turn)

    def _answer(self, conversation: Messages, tools: Sequence[Mapping[str, Any]], turn: int) -> str | Message:
        values = candidates(self.kind, _texts(conversation, self.where)) or ["0"]
        if self.pick == "one by one":
            selected = [values[turn % len(values)]]
        elif self.pick == "negated":
            selected = [values[-1].removeprefix("-") if values[-1].startswith("-") else f"-{values[-1]}"]
        else:
            selected = {"all": values, "last": values[-1:], "first": values[:1], "longest": [max(values, key=len)]}[
                self.pick
            ]
        if self.form.startswith("tool "):
            schema = next(tool for tool in tools if tool["function"]["name"] == self.form[5:])
            return _calls((schema, tool) for tool in selected[:_CALLS])
        if self.form == "question" and (ids := candidates("ids", _texts(conversation, "everywhere"))):
            return f"Shall I {' or '.join(selected)}, for {' or '.join(ids)}?"
        if self.form == _LINES:
            return "\n".join(selected)
        glue = " or " if self.form == "question" else "\n" if self.kind in ("messages", "clauses") else ", "
        if self.form in _PARTS["forms"]:
            return self.template.format(glue.join(selected))
        return self.template.replace("{}", glue.join(selected))


def candidates(kind: str, texts: Sequence[str]) -> list[str]:
    """Return the values of a type in ``texts``, in order, without duplicates."""
    if kind == "range 0-100":
        return [str(number) for number in range(101)]
    if kind == "90 days":
        seen = candidates("dates", texts)
        try:
            first = date.fromisoformat(seen[0])
        except (IndexError, ValueError):
            first = date(2026, 1, 1)
        return [str(first + timedelta(days=day)) for day in range(90)]
    if kind == "options":
        listed = [match for text in texts for match in _OPTIONS.findall(text)]
        values = [value for match in listed for value in re.split(r",? (?:or|and) |, ", match)]
        values += [value.split()[-1] for value in values if " " in value]
    else:
        matches = [match for text in texts for match in _PATTERNS[kind].finditer(text)]
        values = [next((group for group in match.groups() if group), match.group()) for match in matches]
    return list(dict.fromkeys(value.strip() for value in values if value.strip()))[:_MOST]


def learned_forms(replies: Sequence[str]) -> list[str]:
    """Return templates of an expert's replies, with ``{}`` for what changes from one to the other.

    One is the common beginning and end of all replies; the others are marks in at least half of them: a pair of
    tags, a fenced block, square brackets, a box, a label before a colon; or lines, of which each may be a command.
    """
    replies = [reply.strip() for reply in dict.fromkeys(replies) if reply.strip() and "<tool_call>" not in reply]
    if len(replies) < 2:
        return []
    start = os.path.commonprefix(replies)
    end = os.path.commonprefix([reply[len(start) :][::-1] for reply in replies])[::-1]
    start, end = re.sub(r"\w+$", "", start), re.sub(r"^\w+", "", end)
    counts = Counter(form for reply in replies for form in dict.fromkeys(_marks_in(reply)))
    common = [form for form, count in counts.most_common(_MOST_FORMS) if 2 * count >= len(replies)]
    whole = [f"{start}{{}}{end}"] if (start + end).strip() and len(start + end) <= _LONGEST_FORM else []
    lines = [_LINES] if 2 * sum("\n" in reply for reply in replies) >= len(replies) else []
    return list(dict.fromkeys((*whole, *common, *lines)))


def _marks_in(reply: str) -> Iterator[str]:
    for match in re.finditer(r"<(\w+)>(\s*).*?(\s*)</\1>", reply, re.DOTALL):
        yield f"<{match[1]}>{match[2]}{{}}{match[3]}</{match[1]}>"
    for match in re.finditer(r"^(```|~~~)(\w*)\n.*?\n\1[ \t]*$", reply, re.DOTALL | re.MULTILINE):
        yield f"{match[1]}{match[2]}\n{{}}\n{match[1]}"
    for match in re.finditer(r"\[([a-zA-Z]+[ :])?[^\[\]\n]+\]", reply):
        yield f"[{match[1] or ''}{{}}]"
    for match in re.finditer(r"\\(boxed|fbox|text)\{[^{}]+\}", reply):
        yield f"\\{match[1]}{{{{}}}}"
    for match in re.finditer(r"^[\w ]{1,30}:[ \t]|^#{1,6} ", reply, re.MULTILINE):
        yield f"{match[0]}{{}}"


def _parts(
    openings: Sequence[Messages], tools: Sequence[Mapping[str, Any]], learned: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """Return the values of each part of a composition that have an effect in these conversations."""
    kinds = [
        kind
        for kind in (*_PATTERNS, "options")
        if any(candidates(kind, _texts(opening, "everywhere")) for opening in openings)
    ]
    return {
        "first": [first for first in _PARTS["first"] if tools or first not in ("calls tools", "forges a result")],
        "kind": [*kinds, *_PARTS["ranges"]],
        "where": [*_PARTS["where"]],
        "pick": [*_PARTS["picks"]],
        "form": list(
            dict.fromkeys([*_PARTS["forms"], *(f"tool {tool['function']['name']}" for tool in tools), *learned])
        ),
    }


def _sample(parts: Mapping[str, Sequence[str]], rng: np.random.Generator, count: int) -> list[Composition]:
    """Draw different compositions; each part but type and form has its simplest value half of the time.

    Half of the forms drawn are learned ones, where there are any.
    """
    drawn: dict[Composition, None] = {}
    learned = [form for form in parts["form"] if form not in _PARTS["forms"] and not form.startswith("tool ")]
    for _ in range(20 * count):
        if len(drawn) == count:
            break
        chosen = {name: values[int(rng.integers(len(values)))] for name, values in parts.items()}
        simple = {name: parts[name][0] for name in ("first", "where", "pick") if rng.random() < 0.5}
        if learned and rng.random() < 0.5:
            simple["form"] = learned[int(rng.integers(len(learned)))]
        drawn[_plain(Composition(**chosen | simple))] = None
    return list(drawn)


def _near(parts: Mapping[str, Sequence[str]], composition: Composition, rng: np.random.Generator) -> list[Composition]:
    """Return compositions that differ in one part."""
    neighbours = [replace(composition, **{name: value}) for name, values in parts.items() for value in values]
    return [_plain(neighbours[i]) for i in rng.permutation(len(neighbours))[:_NEIGHBOURS]]


def _plain(composition: Composition) -> Composition:
    """Return the canonical form of equivalent compositions."""
    return replace(composition, where="everywhere") if composition.kind in _PARTS["ranges"] else composition


def _texts(conversation: Messages, where: str) -> list[str]:
    messages = [(message["role"], text_of(message)) for message in conversation if message["role"] != "assistant"]
    if where == "request":
        return [text for role, text in messages if role == "user"][:1]
    return [text for _, text in (messages[-1:] if where == "last" else messages)]


def _batches(conversation: Messages, tools: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield calls of every tool with every value in the conversation: ids, quoted words, names and numbers."""
    texts = _texts(conversation, "everywhere")
    values = [text for kind in ("ids", "quoted", "names", "numbers") for text in candidates(kind, texts)] or [""]
    calls = iter([(schema, value) for value in values for schema in tools])
    while batch := list(islice(calls, _CALLS)):
        yield _calls(batch)


def _calls(calls: Iterable[tuple[Mapping[str, Any], str]]) -> Message:
    """Build calls of tools, with a value for every required parameter."""
    tool_calls: list[Any] = []
    for number, (schema, value) in enumerate(calls):
        function = schema["function"]
        parameters = function.get("parameters", {})
        properties = parameters.get("properties", {})
        arguments = {name: _as(properties.get(name, {}), value) for name in parameters.get("required", properties)}
        tool_calls.append({**call(function["name"], **arguments), "id": f"call_{number}"})
    return assistant("", tool_calls)


def _as(schema: Mapping[str, Any], value: str) -> Any:
    """Convert ``value`` to an argument of this schema's type."""
    if "enum" in schema:
        return value if value in schema["enum"] else schema["enum"][0]
    try:
        number = float(re.sub(r"[^\d.-]", "", value))
    except ValueError:
        number = 0.0
    if not math.isfinite(number):  # thousands of digits
        number = 0.0
    kinds = {"integer": int(number) if abs(number) < 2**53 else 0, "number": number, "boolean": True}
    return kinds.get(schema.get("type", ""), [value] if schema.get("type") == "array" else value)


# ------------------------------------------------------------------ the search


def search(subject: Subject) -> Verdict:
    """Check that the best of many cheap policies stays below the expert by the environment's margin."""
    rng = np.random.default_rng([subject.seed, 5])
    talks = [[text_of(message) for message in record.messages if _is_reply(message)] for record in subject.expert]
    endings = [replies[-1] for replies in talks if replies]
    learned = (*learned_forms(list(chain.from_iterable(talks))), *learned_forms(endings))
    parts = _parts(_openings(subject), _tools(subject), learned)
    tried = _sample(parts, rng, subject.search)
    known_compositions, drawn, formed = set(tried), len(tried), _form_of(subject.expert)
    for number, (episodes, keep) in enumerate(_ROUNDS):
        indices, _ = subject.tasks(episodes, seed=10 + number)
        scored: list[tuple[float, int, Composition]] = []
        for composition in tried:
            records = _play(subject, composition, indices, number)
            if failed := _broken(composition, records):
                return failed
            formed = None if formed and formed in _forms_of(records) else formed
            scored.append((-mean(records), composition.size, composition))
        scored.sort(key=lambda entry: entry[:2])
        tried = [composition for *_, composition in scored[: max(1, len(scored) // keep)]]
        if number == 0:
            near = dict.fromkeys(neighbour for one in tried for neighbour in _near(parts, one, rng))
            tried += [neighbour for neighbour in near if neighbour not in known_compositions]
            known_compositions.update(near)
    best, (indices, _) = tried[0], subject.tasks(subject.episodes, seed=20)
    records = _play(subject, best, indices, 20)
    if mean(records) > subject.limit:  # without the parts that it does not need, its weakness can be named
        for plain in ({"first": "nothing"}, {"first": "filler"}, {"form": "bare"}):
            simpler = replace(best, **plain)
            played = _play(subject, simpler, indices, 20)
            if simpler.size <= best.size and mean(played) > subject.limit:
                best, records = simpler, played
    verdict = _broken(best, records) or _judge(subject, best, records, drawn, len(known_compositions))
    if verdict.failed or not formed:
        return verdict
    cause = (
        f"no cheap reply was ever in the form of an answer (metric {formed!r}), so the search says nothing: write the "
        "form into own_attacks, as always('name', 'what it says', 'a reply in that form')"
    )
    return replace(verdict, status="fail", cause=cause)


def _is_reply(message: Message) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


def _forms_of(records: Sequence[Record]) -> set[str]:
    """Return the metrics that report a reply in the form of an answer."""
    return {name for name in _WELL_FORMED if any(record.metrics.get(name, 0.0) > 0 for record in records)}


def _form_of(records: Sequence[Record]) -> str | None:
    """Return the metric that reports the expert's replies as answers, or ``None``."""
    return next((name for name in _WELL_FORMED if name in _forms_of(records)), None)


def _play(subject: Subject, composition: Composition, indices: list[int], seed: int) -> list[Record]:
    attack = Attack("search", composition.says, lambda rng, seen: composition.cheater(_tools(subject)))
    return subject.play(AttackPolicy(attack), indices, subject.seed + seed)


def _tools(subject: Subject) -> Sequence[Any]:
    return getattr(subject.env, "tool_schemas", ())


def _judge(subject: Subject, best: Composition, records: Sequence[Record], drawn: int, tried: int) -> Verdict:
    earned, floor = mean(records), subject.floor
    count = f"{drawn} drawn and {tried - drawn} near the best of these"
    faked = shown(solved(records))
    summary = f"best of {count}: {best.says}; mean return {earned:+.3f}, solved {faked}, nothing {floor:+.3f}"
    if not subject.expert:
        cause = "no scripted expert, so no ceiling: how near a cheap policy comes to it is not known; define"
        status: Status = "warning" if isinstance(subject.env, ExternalEnv) else "fail"
        return Verdict("search", status, f"{cause} demonstration(rng)", summary, show(records))
    ceiling = mean(subject.expert)
    share = (earned - floor) / (ceiling - floor) if ceiling > floor else 1.0
    too_much = f"{best.weakness}; the policy earns more than {subject.limit:+.3f}, the expert's less the margin"
    evidence = f"{summary}, expert {ceiling:+.3f}: {share:.0%} of the range"
    return replace(judge("search", records, subject.limit, evidence, too_much), transcript=show(records))


def _broken(composition: Composition, records: Sequence[Record]) -> Verdict | None:
    """Return a verdict if a reply made the environment raise."""
    for record in records:
        if record.failed:
            cause = "a cheap reply makes the environment fail; a bad reply is something to answer, not an error"
            evidence = f"{composition.says}: {record.stop}: {record.failure}"
            return Verdict("search", "fail", cause, evidence, show([record]))
    return None


def _openings(subject: Subject) -> list[Messages]:
    env, openings = subject.env.fork(), []
    for index in subject.tasks(_LOOKED_AT)[0]:
        opening, _ = env.reset(seed=subject.seed, options={"task_index": index})
        reply, *_ = env.step(".")  # what a user says next shows types of candidates, too
        openings.append(reply if len(reply) > len(opening) else opening)
    return openings
