"""A keyword script that plays worlds: how far do words alone get, without reading what they say?

It is written with the source in hand. It knows every application with its synonyms, the forms of goals and rules, and
the phrases of the training split. It finds the names of records, fields, values and verbs in a request, follows the
references that stand before a record's name, splits goals into sentences, keeps the rules, and resolves what is
excluded by the phrase around it. Where that is none of the training split's, it guesses: the most similar phrase is
right less often than a coin, as held-out phrases share their words with phrases of the opposite meaning.
:func:`reply_maker` starts an episode; ``benchmarks.worlds`` measures it.
"""

from __future__ import annotations

import datetime
import json
import random
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from textenvs.envs.worlds.applications import Entity, Field, Verb, applications
from textenvs.envs.worlds.skin import FIND, GET, spoken
from textenvs.envs.worlds.wording import phrases
from textenvs.messages import Message, Messages, text_of
from textenvs.text import load_yaml
from textenvs.tools.formats import Hermes, call

PERSON = "personnel.person"
_WRITE = Hermes().write
_WORDS = load_yaml("textenvs.envs.worlds", "words.yaml")
_TOOL = re.compile(r"^(\w+)\((.*)\): (.*)$", re.M)
_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DATE = rf"\b(\d{{1,2}}) ({'|'.join(_MONTHS)}) (\d{{4}})"
_NUMBER = r"(?<![\w-])-?\d[\d,]*(?! (?:" + "|".join(_MONTHS) + r"))\b"
_NAME = rf"\b(?:{'|'.join(_WORDS['first_names'])}) (?:{'|'.join(_WORDS['last_names'])})\b"
_LABEL = rf'"[^"]+"|{_NAME}'
_ITEM = rf"{_LABEL}|{_DATE}|{_NUMBER}(?: euros?)?"
#: Words that no chain of references has between its parts.
_STOPS = re.compile(
    r"[,.?!:;()]|\b(is|are|to|as|with|where|which|whom|whose|and|so|that|than|from|by|in|becomes|please|has|have|on)\b"
    r"(?! (known|goes|has|is|named|called)\b)"
)
#: How requests speak of what the user holds back, and how a second branch and a condition begin.
_HELD = (
    "that I have in mind",
    *("we talked about", "I mentioned last time", "I am thinking of", "that we discussed", "from our last call"),
    *("I told you about", "that I told you about", "that came up yesterday", "we agreed on"),
)
_OTHERWISE = re.compile(
    r"(otherwise|if not|if that|in any other|should (that|this|it)|if this|in all other|if it is otherwise)\b", re.I
)
_WHEN = re.compile(
    r"(?:^|then |that, |next, |afterwards, |step, |done, |finished, )"
    r"(if|in case|provided|as long|assuming|on condition|in the event|unless|except|should)\b",
    re.I,
)
#: What a clause says after the records that it is about.
_REST = re.compile(
    r", and |, with |, giving |, changing |, that is| so that | in such a way| and enter| and set",
)
_DOWN = {"below", "less", "under", "lower", "smaller", "before", "earlier", "short", "latest", "most", "reach"}

Play: TypeAlias = "Generator[str | Message, Sequence[Message], Any]"


class GaveUpError(Exception):
    """The script does not know what to do."""


@dataclass
class Chain:
    """A record, and the references from it, as they stand in a text."""

    start: int
    end: int
    entity: str
    label: str  # empty: the user
    fields: list[tuple[str, str]] = field(default_factory=list)  # of which entity, and which
    value: str = ""  # a field of the last record that is no reference

    @property
    def last(self) -> str:
        """The kind of the last record."""
        return _SCHEMA[self.fields[-1][0]].fields[self.fields[-1][1]].to if self.fields else self.entity


_SCHEMA: Mapping[str, Entity] = {
    key: entity for application in applications().values() for key, entity in application.entities.items()
}


def reply_maker(conversation: Messages) -> Callable[[Messages], str | Message]:
    """Return what replies in one episode, given its opening."""
    player = Player(conversation)
    play = player.play()
    seen = 0

    def reply(messages: Messages) -> str | Message:
        nonlocal seen
        new, seen = messages[seen:], len(messages) + 1
        try:
            return next(play) if len(new) == len(messages) else play.send(new)
        except (StopIteration, GaveUpError):
            return _WRITE("", [call("finish")])

    return reply


def trained(*names: str) -> dict[str, Sequence[str]]:
    """Return lists of phrases of the training split."""
    return {name: phrases(name, "train") for name in names}  # type: ignore[arg-type]


def number_in(text: str) -> int | None:
    """Return the number or date in a text as tools write it: a date as the day of the year."""
    if match := re.search(_DATE, text):
        day, month, year = match.groups()
        date = datetime.date(int(year), _MONTHS.index(month) + 1, int(day))
        return date.toordinal() - datetime.date(2025, 12, 31).toordinal()
    match = re.search(_NUMBER, text)
    return int(match[0].replace(",", "")) if match else None


class Player:
    """An episode."""

    def __init__(self, conversation: Messages) -> None:
        system, self.request = text_of(conversation[0]), text_of(conversation[-1])
        self.tools: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}
        for name, arguments, _ in _TOOL.findall(system):
            if (what := self._tool(name)) is not None:
                words = re.findall(r"(\w+)\??:", arguments)
                self.tools[what] = name, self._fields(what[0], words)
        self.entities = {entity: _SCHEMA[entity] for entity, verb in self.tools if verb == "get"}
        self.coin = random.Random(self.request)
        self.rules = [line[2:] for line in system.splitlines() if line.startswith("- ")]
        self.records: dict[str, dict[str, Any]] = {}
        self.stale = False
        self.me = ""
        self.refused: list[str] = []
        self.done = 0
        self.answer: Any = None

    def guess(self, *names: str) -> str:
        return self.coin.choice(names)

    def _tool(self, name: str) -> tuple[str, str] | None:
        for application in applications().values():
            for word in application.called:
                for key, entity in application.entities.items() if name.startswith(f"{word}_") else ():
                    for noun in (*entity.called, *entity.plural):
                        if not name.endswith(f"_{noun}"):
                            continue
                        middle = name[len(word) + 1 : -len(noun) - 1]
                        if middle in FIND and noun in entity.plural:
                            return key, "find"
                        if middle in GET:
                            return key, "get"
                        for verb in entity.verbs.values():
                            if middle in verb.called:
                                return key, verb.name
        return None

    def _fields(self, entity: str, words: Sequence[str]) -> dict[str, str]:
        """Return the names of arguments by fields."""
        return {one.name: word for word in words for one in _SCHEMA[entity].fields.values() if word in one.called}

    # ------------------------------------------------------------------ calls

    def call(self, tool: str, /, **arguments: Any) -> Play:
        for _ in range(4):
            new = yield _WRITE("", [call(tool, **arguments)])
            text = next((text_of(message) for message in new if message["role"] == "tool"), "")
            self.stale |= any(text_of(message).startswith("[Notice]") for message in new)
            if match := re.search(r"session of (\w+) has expired", text):
                yield _WRITE("", [call("sign_in", application=match[1])])
            elif "busy" not in text:
                break
        try:
            return json.loads(text)
        except ValueError:
            return {"error": text}

    def find(self, entity: str, values: Mapping[str, Any]) -> Play:
        name, words = self.tools[entity, "find"]
        ids: list[str] = []
        for page in range(1, 9):
            extra = {"page": page} if page > 1 else {}
            results = yield from self.call(name, **{words[key]: value for key, value in values.items()}, **extra)
            rows = next((value for value in results.values() if isinstance(value, list)), [])
            label = words[_SCHEMA[entity].label]
            want = values.get(_SCHEMA[entity].label)
            ids += [row["id"] for row in rows if want is None or row[label] == want]
            if page >= results.get("pages", 1):
                return ids
        return ids

    def get(self, entity: str, number: str) -> Play:
        """Return a record by the names of its fields in the source."""
        if number not in self.records:
            record = yield from self.call(self.tools[entity, "get"][0], id=number)
            if "error" in record:
                raise GaveUpError(record["error"])
            words = self._fields(entity, list(record))
            self.records[number] = {name: record[word] for name, word in words.items()}
        return self.records[number]

    def resolve(self, chain: Chain) -> Play:
        """Return the id, or the value, at the end of a chain."""
        ids = yield from self.find(chain.entity, {_SCHEMA[chain.entity].label: chain.label or self.me})
        if len(ids) != 1:
            raise GaveUpError(chain.label)
        number = ids[0]
        for entity, name in chain.fields:
            number = (yield from self.get(entity, number))[name]
        return (yield from self.get(chain.last, number))[chain.value] if chain.value else number

    # ------------------------------------------------------------------ words

    def nouns(self, entity: str, text: str, plural: bool = False) -> Iterator[re.Match[str]]:
        one = self.entities[entity]
        words = sorted(map(spoken, one.plural if plural else one.called), key=len, reverse=True)
        return re.finditer(rf"\b({'|'.join(map(re.escape, words))})\b", text)

    def field_mentions(self, entity: str, text: str) -> list[tuple[int, int, Field]]:
        """Return where fields of an entity are mentioned; longer names first."""
        spans: list[tuple[int, int, Field]] = []
        for one in self.entities[entity].fields.values():
            for word in {*map(spoken, one.called), *map(one.noun, one.called)}:
                spans += [(*match.span(), one) for match in re.finditer(rf"\b{re.escape(word)}\b", text)]
        spans.sort(key=lambda span: (span[0], span[0] - span[1]))
        remaining: list[tuple[int, int, Field]] = []
        for span in spans:
            if not remaining or span[0] >= remaining[-1][1]:
                remaining.append(span)
        return remaining

    def chains(self, text: str) -> list[Chain]:
        """Return the chains of references in a text."""
        results = []
        for match in re.finditer(rf"{_LABEL}|\bmy\b", text):
            label = match[0].strip('"')
            if match[0] == "my":
                chain = Chain(match.start(), match.end(), PERSON, "")
            elif not match[0].startswith('"'):
                chain = Chain(match.start(), match.end(), PERSON, label)
            else:
                near = [
                    (noun.end(), -noun.start(), entity)
                    for entity in self.entities
                    for noun in self.nouns(entity, text[: match.start()])
                    if match.start() - noun.end() < 45 and '"' not in text[noun.end() : match.start()]
                ]
                if not near:
                    continue
                chain = Chain(-max(near)[1], match.end(), max(near)[2], label)
            if (
                after := re.match(r"(?:'s)? (?=\w)", text[match.end() :])
                if "'s" in text[match.end() :][:2] or not label or match[0] == "my"
                else None
            ):
                at = match.end() + after.end()
                following = [one for one in self.field_mentions(PERSON, text[at:]) if one[0] == 0]
                if following:
                    self._extend(chain, following[0][2])
                    chain.end = at + following[0][1]
            while not chain.value and self._before(chain, text):
                pass
            results.append(chain)
        return results

    def _extend(self, chain: Chain, one: Field) -> None:
        if one.kind == "ref":
            chain.fields.append((chain.last, one.name))
        else:
            chain.value = one.name

    def _before(self, chain: Chain, text: str) -> bool:
        """Extend a chain by the field that is mentioned just before it."""
        before = [one for one in self.field_mentions(chain.last, text[: chain.start]) if one[1] <= chain.start]
        if not before:
            return False
        start, end, one = before[-1]
        gap = text[end : chain.start]
        if len(gap) > 45 or _STOPS.search(gap) or '"' in gap or not re.search(r"\b(of|for)\b", gap):
            return False
        self._extend(chain, one)
        chain.start = start
        return True

    def verbs(self, text: str) -> list[tuple[int, str, Verb]]:
        """Return the verbs that a text may have, with where they begin."""
        results = []
        for key, entity in self.entities.items():
            for verb in entity.verbs.values():
                for word in verb.called:
                    phrase = verb.phrases.get(word)
                    if phrase:
                        before, after = phrase.split("{}")
                        pattern = rf"\b{before}.*?{after}\b" if after else rf"\b{before}"
                    else:
                        first, *particle = word.split("_")
                        pattern = rf"\b{first}\b" + (rf".*?\b{particle[0]}\b" if particle else "")
                    if (key, verb.name) in self.tools and (match := re.search(pattern, text, re.I)):
                        results.append((match.start(), key, verb))
        return sorted(results, key=lambda one: one[0])

    # ------------------------------------------------------------------ what is excluded

    def without_excluded(self, text: str) -> str:
        """Return a request with what is meant alone."""
        sentences = re.split(r"(?<=[.?!]) (?=[A-Z\"])", text)
        remaining = []
        for sentence in sentences:
            labels = re.findall(_LABEL, sentence)
            rest = " ".join(remaining)
            mentioned = [label for label in labels if label in rest]
            if len(labels) == 2 and len(mentioned) == 1 and not self.verbs_at_work(sentence):
                (old,), (new,) = mentioned, [label for label in labels if label not in mentioned] or mentioned
                if self._is_replaced(sentence, old, new):
                    remaining = [one.replace(old, new) for one in remaining]
                continue
            remaining.append(sentence)
        return self.without_parentheses(" ".join(remaining))

    def without_parentheses(self, text: str) -> str:
        while match := re.search(r"\(([^()]*)\)", text):
            text = self._without_parenthesis(text, match)
        return text

    def verbs_at_work(self, sentence: str) -> bool:
        starts = [
            re.escape(one.partition("{")[0].strip()) for name in ("frames", "joins") for one in trained(name)[name]
        ]
        return bool(re.match("|".join(filter(None, starts)), sentence)) and len(sentence) > 160

    def _is_replaced(self, sentence: str, old: str, new: str) -> bool:
        lists = trained("set_aside", "replaced")
        for right, wrong, name in ((old, new, "set_aside"), (new, old, "replaced")):
            for choice in lists[name]:
                filled = choice.replace("{right}", right).replace("{wrong}", wrong)
                if filled.lower() == sentence.lower():
                    return name == "replaced"
        return self.guess("set_aside", "replaced") == "replaced"

    def _without_parenthesis(self, text: str, match: re.Match[str]) -> str:
        inside, before, after = match[1], text[: match.start()].rstrip(), text[match.end() :]
        item = next((one for one in re.finditer(_ITEM, inside)), None)
        lists = {
            name: [one.partition("(")[2].rstrip(")") for one in choices]
            for name, choices in trained("right_first", "wrong_first").items()
        }
        kind = self.guess(*lists)
        for name, choices in lists.items():
            for choice in choices:
                cues = re.escape(choice).replace(r"\{right\}", ".+").replace(r"\{wrong\}", ".+")
                if re.fullmatch(cues, inside):
                    kind = name
        if kind == "right_first":
            return before + after
        if item is not None:
            old = [*re.finditer(_ITEM, before)][-1:]
            return before[: old[0].start()] + item[0] + before[old[0].end() :] + after if old else before + after
        named = [one for entity in self.entities for one in self.field_mentions(entity, inside)]
        if not named:
            return before + after
        start, end, _ = max(named, key=lambda one: one[1] - one[0])
        new = inside[start:end]
        places = [
            one for entity in self.entities for one in self.field_mentions(entity, before) if one[1] == len(before)
        ]
        if not places:
            return before + after
        return before[: min(one[0] for one in places)] + new + after

    # ------------------------------------------------------------------ conditions

    def compares(self, text: str) -> str:
        """Return ``over``, ``under``, ``is`` or ``not``, perhaps followed by ``=``, of words before a value."""
        lists = trained("over", "under", "after", "before", "is", "not")
        words = re.sub(rf"{_ITEM}|\beuros?\b", "", text).strip().lower()
        for name, choices in lists.items():
            for choice in choices:
                if re.sub(r"\{\w+\}", "", choice).strip() == words:
                    name = {"after": "over", "before": "under"}.get(name, name)
                    return f"{name}=" if "{next}" in choice else name
        is_no = bool(re.search(r"\b(not|no|anything but|other than)\b", words))
        up = bool(re.search(r"above|more|exceed|higher|greater|over|after|later|beyond|excess|least|earliest", words))
        down = any(word in words for word in _DOWN)
        if not up and not down:
            return "not" if is_no else "is"
        if is_no:
            return "under=" if up else "over="
        inclusive = "=" if re.search(r"\bor\b|\bat\b", words) else ""
        return f"{'under' if down and not (up and 'least' in words) else 'over'}{inclusive}"

    @staticmethod
    def holds(op: str, value: Any, other: Any) -> bool:
        if op in ("is", "not"):
            return bool((value == other) == (op == "is"))
        value, other = ordinal(value), ordinal(other)
        if value == other:
            return op.endswith("=")
        return bool(value > other) == op.startswith("over")

    def value_after(self, one: Field, text: str) -> Any:
        """Return the value of a field that is not a record, at the beginning of a text, and where it ends."""
        if one.kind == "choice":
            results = [
                (match.start(), -len(word), value)
                for value, words in one.values.items()
                for word in map(spoken, words)
                if (match := re.search(rf"\b{re.escape(word)}\b", text))
            ]
            return min(results)[2] if results else None
        return number_in(text)

    def read(self, entity: str, name: str, written: Any) -> Any:
        """Return a value as the source has it: a choice by its name there, a date as its number."""
        one = _SCHEMA[entity].fields[name]
        if one.kind == "choice":
            return next((value for value, words in one.values.items() if written in words), written)
        return ordinal(written) if one.kind == "day" else written

    def conditions(self, entity: str, text: str) -> Play:
        """Return the conditions in a text that are on an entity: field, comparison, value."""
        mentions = self.field_mentions(entity, text)
        chains = self.chains(text)
        inside = [(chain.start, chain.end) for chain in chains]
        mentions = [one for one in mentions if not any(start <= one[0] < end for start, end in inside)]
        results = []
        for place, (_, end, one) in enumerate(mentions):
            until = mentions[place + 1][0] if place + 1 < len(mentions) else len(text)
            part = text[end:until]
            if one.kind == "ref":
                targets = [chain for chain in chains if end <= chain.start < until and chain.last == one.to]
                if targets:
                    results.append((one.name, "is", (yield from self.resolve(targets[0]))))
            elif (value := self.value_after(one, part)) is not None:
                results.append((one.name, self.compares(self.comparing(one, part)), value))
        return results

    @staticmethod
    def comparing(one: Field, part: str) -> str:
        """Return the words up to the value."""
        if one.kind == "choice":
            return re.split("|".join(spoken(word) for words in one.values.values() for word in words), part)[0]
        match = re.search(rf"{_DATE}|{_NUMBER}", part)
        tail = re.match(r"( euros| \w+)? (or \w+|at the \w+)", part[match.end() :]) if match else None
        return (part[: match.start()] + (f" {tail[2]}" if tail else "")) if match else part

    def selected(self, entity: str, text: str) -> Play:
        """Return the ids of the records of an entity that meet the conditions in a text."""
        conditions = yield from self.conditions(entity, text)
        one = _SCHEMA[entity]
        by = {name: value for name, op, value in conditions if op == "is" and one.fields[name].kind == "ref"}
        if not by:
            raise GaveUpError("no reference to search by")
        ids = []
        for number in (yield from self.find(entity, by)):
            record = yield from self.get(entity, number)
            values = [(op, self.read(entity, name, record[name]), value) for name, op, value in conditions]
            if all(self.holds(*condition) for condition in values):
                ids.append(number)
        return ids

    def picked(self, entity: str, text: str, ids: Sequence[str]) -> Play:
        """Return the one of several records that has the most or the least, or all where no extreme is mentioned."""
        match = re.search(
            r"\b(highest|lowest|greatest|smallest|latest|earliest|higher|lower|greater|smaller|later)\b", text
        )
        match = match or re.search(r"\bearlier\b", text)
        mentions = [one for one in self.field_mentions(entity, text) if one[2].is_number]
        if not match or not mentions:
            return list(ids)
        most = match[0] in ("highest", "greatest", "latest", "higher", "greater", "later")
        near = min(mentions, key=lambda one: min(abs(one[0] - match.end()), abs(one[1] - match.start())))
        if not match[0].endswith("st") and not re.search(r"\b(none|no other)\b", text):
            most = not most
        values = {}
        for number in ids:
            values[number] = ordinal((yield from self.get(entity, number))[near[2].name])
        return [(max if most else min)(values, key=lambda number: values[number])] if values else []

    # ------------------------------------------------------------------ rules

    def forbidden(self, entity: str, verb: str, number: str, gives: Mapping[str, Any]) -> Play:
        """Return whether a rule forbids a verb on a record."""
        for rule in self.rules_about(entity, verb):
            rest = re.sub(r'"[^"]*" of an? ', "", rule)
            kind = self.kind_of(rule)
            if kind == "rank" and (n := number_in(rest)) is not None:
                ids = yield from self.find(PERSON, {_SCHEMA[PERSON].label: self.me})
                if (yield from self.get(PERSON, ids[0]))["grade"] < n:
                    return True
                continue
            if kind == "duty":
                continue
            record = yield from self.get(entity, number)
            holds = None
            for _, end, one in self.field_mentions(entity, rest):
                if one.is_number and (limit := number_in(rest[end:])) is not None:
                    value = gives.get(one.name, record[one.name])
                    holds = self.holds(self.compares(self.comparing(one, rest[end:].split(", ")[0])), value, limit)
                elif one.kind == "ref":
                    for _, stop, state in self.field_mentions(one.to, rest[:end]):
                        expected = self.value_after(state, rest[end:]) if state.kind == "choice" else None
                        if expected is not None and stop < end:
                            target = yield from self.get(one.to, gives.get(one.name, record[one.name]))
                            op = self.compares(self.comparing(state, rest[end:]))
                            holds = self.holds(op, self.read(one.to, state.name, target[state.name]), expected)
                if holds is not None:
                    break
            if holds is not None and holds != (kind == "needs"):
                return True
        return False

    def rules_about(self, entity: str, verb: str) -> Iterator[str]:
        for rule in self.rules:
            match = re.search(r'"([^"]*)" of an? ', rule)
            nouns = tuple(map(spoken, _SCHEMA[entity].called))
            words = [spoken(word) for word in _SCHEMA[entity].verbs[verb].called]
            if match and match[1] in words and rule[match.end() :].startswith(nouns):
                yield rule

    def kind_of(self, rule: str) -> str:
        """Return the list that the phrase of a rule is of, or is most like."""
        lists = trained("forbids", "needs", "rank", "duty")
        for name, choices in lists.items():
            for choice in choices:
                cues = re.sub(r"\\\{(?!deed)\w+\\\}", ".+", re.escape(choice)).replace(
                    r"\{deed\}", '"[^"]*" of an? [a-z ]+'
                )
                if re.fullmatch(cues, rule, re.I):
                    return name
        rest = re.sub(r'"[^"]*" of an? ', "", rule)
        if re.search(r"\b(as well|too|consequence|duty)\b", rest):
            return "duty"
        if re.search(r"\busers?\b|\bwhoever\b|\bnobody whose\b", rest, re.I):
            return "rank"
        if re.search(r"\b(unless|only|except|requires?|reserved)\b", rest, re.I):
            return "needs"
        return "forbids"

    def duty_of(self, entity: str, rule: str) -> tuple[str, str, Verb] | None:
        """Return the reference, the entity and the verb of what is due, if a rule says so."""
        rest = re.sub(r'"[^"]*" of an? ', "", rule)
        if self.kind_of(rule) != "duty":
            return None
        for one in _SCHEMA[entity].fields.values():
            for _, key, verb in self.verbs(rest) if one.kind == "ref" else ():
                nouns = "|".join(map(spoken, one.called))
                if key == one.to and verb.kind == "act" and re.search(rf"\b(its|their) ({nouns})\b", rest):
                    return one.name, key, verb
        return None

    # ------------------------------------------------------------------ what is to be done

    def act(self, entity: str, verb: Verb, ids: Sequence[str], gives: Mapping[str, Any]) -> Play:
        """Use a verb on records where the rules allow it, and do what is due."""
        name, words = self.tools[entity, verb.name]
        for number in ids:
            if (yield from self.forbidden(entity, verb.name, number, gives)):
                self.refused.append(number)
                continue
            yield from self.call(name, id=number, **{words[one]: self.write(entity, one, gives[one]) for one in gives})
            self.done += 1
            for rule in self.rules_about(entity, verb.name):
                if (due := self.duty_of(entity, rule)) is not None:
                    record = yield from self.get(entity, number)
                    yield from self.call(self.tools[due[1], due[2].name][0], id=record[due[0]])

    def write(self, entity: str, name: str, value: Any) -> Any:
        one = _SCHEMA[entity].fields[name]
        if one.kind == "day" and isinstance(value, int):
            return (datetime.date(2025, 12, 31) + datetime.timedelta(value)).isoformat()
        return value

    def gives(self, entity: str, verb: Verb, text: str) -> Play:
        """Return the values that a text has for what a verb gives."""
        bindings = {}
        chains = self.chains(text)
        names = [name for name in verb.gives if name in self.tools[entity, verb.name][1]]
        for name in names:
            one = _SCHEMA[entity].fields[name]
            places = [
                (start, end)
                for start, end, other in self.field_mentions(entity, text)
                if other is one and not any(chain.start <= start < chain.end for chain in chains)
            ]
            start, end = places[-1] if places else (len(text), len(text))
            if one.kind == "name":
                if labels := [*re.finditer(r'"([^"]+)"', text)]:
                    bindings[name] = min(labels, key=lambda match: abs(match.start() - start))[1]
                continue
            fits = [
                chain
                for chain in chains
                if (
                    chain.last == one.to and not chain.value
                    if one.kind == "ref"
                    else chain.value and _SCHEMA[chain.last].fields[chain.value].kind == one.kind
                )
            ]
            numbers = [
                match
                for match in re.finditer(_DATE if one.kind == "day" else _NUMBER, text)
                if one.kind != "ref" and not any(chain.start <= match.start() < chain.end for chain in chains)
            ]
            options = [(min(abs(chain.start - end), abs(start - chain.end)), 0, chain) for chain in fits]
            options += [(min(abs(match.start() - end), abs(start - match.end())), 1, match) for match in numbers]  # type: ignore[misc]
            if not options:
                raise GaveUpError(f"no value for {name}")
            _, _, best = min(options, key=lambda option: option[:2])
            bindings[name] = (yield from self.resolve(best)) if isinstance(best, Chain) else number_in(best[0])  # type: ignore[attr-defined]
        return bindings

    def step(self, text: str) -> Play:
        """Do what a clause wants."""
        text = re.sub(r"\bme\b", "", text)
        if re.search(r"\breport\b", text) and re.search(r"\brows?\b|\breport (with|that|for|on|to)\b", text):
            yield from self.report(text)
            return
        verbs = self.verbs(re.sub(r'"[^"]*"', lambda match: "_" * len(match[0]), text))
        creates = [one for one in verbs if one[2].kind == "create" and self.is_new(one[1], text)]
        if creates:
            yield from self.make(creates[0][1], creates[0][2], text)
            return
        for _, entity, verb in verbs:
            if verb.kind != "create" and (ids := (yield from self.targets(entity, verb, text))):
                bindings = (yield from self.gives(entity, verb, text)) if verb.gives else {}
                yield from self.act(entity, verb, ids, bindings)
                return
        yield from self.tell(text)

    def is_new(self, entity: str, text: str) -> bool:
        words = "new|another|more|further|extra|fresh|separate"
        nouns = "|".join(map(spoken, _SCHEMA[entity].called))
        return bool(re.search(rf"\b({words}) ({nouns})\b", text))

    def plural_at(self, entity: str, text: str) -> int:
        """Return where a text begins to speak of several records of an entity, or -1."""
        results = [match.start() for match in self.nouns(entity, text, plural=True)]
        singular = [
            match.start()
            for match in self.nouns(entity, text)
            if re.match(r".{0,25}(whose|with the|that has|having|such that)", text[match.end() :])
        ]
        return min([*results, *singular], default=-1)

    def targets(self, entity: str, verb: Verb, text: str) -> Play:
        """Return the records that a clause is about, for a verb."""
        begin = self.plural_at(entity, text)
        end = _REST.search(text[max(0, begin) :])
        if begin >= 0 and re.search(r"\b(where|whose|which|whom|those|among)\b", text[begin:]):
            part = text[begin : max(0, begin) + end.start() if end else len(text)]
            ids = yield from self.selected(entity, part)
            return (yield from self.picked(entity, part, ids))
        bindings = {_SCHEMA[entity].fields[name].to for name in verb.gives}
        chains = [chain for chain in self.chains(text) if chain.last == entity and not chain.value]
        if not chains or (entity in bindings and len(chains) < 2):
            return []
        return [(yield from self.resolve(chains[0]))]

    def make(self, entity: str, verb: Verb, text: str) -> Play:
        bindings = yield from self.gives(entity, verb, text)
        name, words = self.tools[entity, verb.name]
        yield from self.call(name, **{words[one]: self.write(entity, one, value) for one, value in bindings.items()})
        self.done += 1

    def tell(self, text: str) -> Play:
        for entity in self.entities:
            begin = self.plural_at(entity, text)
            if begin >= 0 and re.search(r"\b(where|whose|which|whom|among)\b", text[begin:]):
                ids = yield from self.selected(entity, text[begin:])
                ids = yield from self.picked(entity, text[begin:], ids)
                before = self.field_mentions(entity, text[:begin])
                if ids and before:
                    self.answer = (yield from self.get(entity, ids[0]))[before[-1][2].name]
                    return
        chains = self.chains(text)
        if not chains:
            raise GaveUpError("nothing to tell")
        self.answer = yield from self.resolve(chains[0])

    def report(self, text: str) -> Play:
        for entity in self.entities:
            begin = self.plural_at(entity, text)
            if begin < 0 or not re.search(r"\b(where|whose|which|whom)\b", text[begin:]):
                continue
            ids = yield from self.selected(entity, text[begin:])
            chains = [chain for chain in self.chains(text[:begin]) if chain.last == PERSON and not chain.value]
            if not ids or not chains:
                continue
            to = yield from self.resolve(chains[0])
            columns = self.field_mentions(entity, text[chains[0].end : begin])
            total = re.search(r"row by row", text[:begin])
            rows = []
            words = self.tools[entity, "find"][1]
            if total:
                summed, columns = columns[0][2].name, columns[1:]
            names = [_SCHEMA[entity].label, *dict.fromkeys(one.name for _, _, one in columns)]
            for number in ids:
                record = yield from self.get(entity, number)
                rows.append({"id": number, **{words[name]: record[name] for name in names}})
            extra = {"total": sum(self.records[number][summed] for number in ids)} if total else {}
            yield from self.call("send_report", to=to, rows=rows, **extra)
            self.done += 1
            return

    def when(self, text: str, otherwise: str) -> Play:
        """Decide by a condition, and take one of two steps."""
        match = re.search(r"^(.*?), please (.*)$", text, re.S)
        if not match:
            raise GaveUpError("no condition")
        condition, then = match.groups()
        chains = self.chains(condition)
        lists = trained("when", "unless")
        holds = None
        for chain in chains:
            if not chain.value:
                continue
            value = self.read(chain.last, chain.value, (yield from self.resolve(chain)))
            one = _SCHEMA[chain.last].fields[chain.value]
            part = condition[chain.end :]
            if (other := self.value_after(one, part)) is not None:
                holds = self.holds(self.compares(self.comparing(one, part)), value, other)
                heads = {name: [choice.partition("{")[0] for choice in choices] for name, choices in lists.items()}
                head = condition[: chain.start].lower()
                exact = [name for name, own in heads.items() if any(head.startswith(one) for one in own)]
                if (exact[0] if len(exact) == 1 else self.guess(*heads)) == "unless":
                    holds = not holds
                break
        if holds is None:
            raise GaveUpError("no condition")
        if holds or otherwise:
            yield from self.step(then if holds else otherwise)
            return
        for _, entity, verb in self.verbs(then):
            if ids := (yield from self.targets(entity, verb, then)):
                self.refused += ids
                return

    # ------------------------------------------------------------------ the episode

    def ask(self) -> Play:
        """Ask for what the user holds back, and put it into the request."""
        if not re.search("|".join((r"\ba certain\b", r"\bone particular\b", *_HELD)), self.request):
            return
        new = yield "Which one?"
        for word in re.findall(r"which ([a-z ]+?)(?= and which| I mean|, which| and)", text_of(new[-1])):
            value = ""
            for _ in range(2):  # the first answer may be wrong
                new = yield f"Which {word} is it?"
                text = self.without_parentheses(text_of(new[-1]))
                value = next((match[0] for match in [*re.finditer(_ITEM, text)][::-1]), value)
            text = f"the {word} {value}" if value.startswith('"') else value
            held = rf"\b(?:the {word} (?:{'|'.join(_HELD)})|a certain {word}|one particular {word})\b"
            self.request = re.sub(held, lambda match, text=text: text, self.request)

    def play(self) -> Play:
        """Play an episode."""
        yield from self.ask()
        me = re.search(_NAME, self.request)
        self.me = me[0] if me else ""
        # These are prepositions, and no fields.
        self.request = re.sub(r"\bon (file|record)\b", lambda match: match[0].replace(" ", "-").upper(), self.request)
        text = self.without_excluded(self.request[me.end() :] if me else self.request)
        steps: list[list[str]] = []
        for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", text):
            if steps and _OTHERWISE.match(sentence) and "please" not in sentence:
                steps[-1].append(sentence)
            elif re.search(rf"{_LABEL}|\bmy\b", sentence):
                steps.append([sentence])
        for text, *other in steps:
            try:
                if self.stale:
                    self.records, self.stale = {}, False
                if (begins := _WHEN.search(text)) and ", please" in text:
                    yield from self.when(text[begins.start(1) :], other[0] if other else "")
                else:
                    yield from self.step(text)
            except (GaveUpError, KeyError, IndexError, TypeError, ValueError):
                continue  # a text that the script cannot take apart: it does the rest
        finish = {} if self.answer is None else {"answer": self.answer}
        if self.refused and not self.done and self.answer is None:
            finish["refused"] = self.refused[0]
        yield _WRITE("", [call("finish", **finish)])


def ordinal(value: Any) -> Any:
    """Return a date as the day of the year, and anything else as it is."""
    try:
        return datetime.date.fromisoformat(value).toordinal() - datetime.date(2025, 12, 31).toordinal()
    except (TypeError, ValueError):
        return value
