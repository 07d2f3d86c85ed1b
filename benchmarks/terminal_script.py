"""A script that repairs generated projects by their source: what does it solve without reading what pages say?

    python -m benchmarks.terminal_script [--tasks 60] [--levels easy medium hard] [--splits test train]
                                         [--words train|all] [--guess coin|nearest|opposite]

It is written with the source in hand. It knows every template with its texts, rules and sentences. It reads the files
of a project, finds the template by the request, the options of its rules by the sentences on the page, the words and
names that were drawn by fitting the template's texts to the files, and writes all programs and settings anew; it takes
away modules in the way of others, carriage returns and lost permissions. Of rules in dispute it knows how sentences are
joined, and the words of the training split for what was done to a rule, or with ``--words all`` those of both; for
another word it guesses: a coin, what the word that it knows with the most similar letters means, or the opposite.
Repairs alone are played; questions are left out.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import functools
import json
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from shlex import quote
from typing import Any
from unittest import mock

import textenvs
from textenvs.envs.terminal.disputes import words_of
from textenvs.envs.terminal.project import Project
from textenvs.envs.terminal.tasks import LEVELS
from textenvs.envs.terminal.templates import TEMPLATES, variation
from textenvs.envs.terminal.templates.variation import Option, Rule, Variant
from textenvs.evaluate.statistics import wilson
from textenvs.messages import Message, Messages, text_of
from textenvs.task import SPLITS
from textenvs.tools.formats import Hermes, call

#: Seeds of projects of its own: from them it knows which names are always the same, and which values others have.
_OWN = range(900, 912)
_NAME = re.compile(r"@(\w+)@")
#: Bytes of a command's output, and of the largest file that it reads.
_CHUNK, _LARGEST = 3900, 9000
#: Marks a word of the template whose drawn word was not found.
_LOST = "\0"
_ENDS = (".py", ".sh", ".awk", ".sql", ".sed")
_WRITE = Hermes().write
_PACK = r"""import base64, json, os, zlib
files = {}
for folder, folders, names in os.walk("."):
    folders[:] = [name for name in folders if name != ".git"]
    for name in names:
        path = os.path.relpath(os.path.join(folder, name))
        if os.path.isfile(path) and not path.startswith(FIXED) and os.path.getsize(path) < LARGEST:
            files[path] = open(path, newline="", encoding="utf-8", errors="replace").read()
text = base64.b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()
open("/tmp/packed", "w").write(text)
print(len(text))"""
_UNPACK = r"""import base64, json, os, zlib
for path, (text, is_program) in json.loads(zlib.decompress(base64.b64decode("PACKED"))).items():
    if text is None:
        os.remove(path)
        continue
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w", newline="", encoding="utf-8").write(text)
    os.chmod(path, os.stat(path).st_mode | 0o111 * is_program)"""

Play = Generator["str | Message", Sequence[Message], None]


@dataclass
class Donor:
    """A healthy project of a template, and what it was made of.

    Args:
        template: The template's name.
        seed: Of the project.
        options: Numbers of options by rule; others are drawn.
    """

    template: str
    seed: int
    options: Mapping[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict, init=False)
    sentences: list[str] = field(default_factory=list, init=False)
    documents: list[str] = field(default_factory=list, init=False)
    variant: Variant = field(init=False)
    project: Project = field(init=False)

    def __post_init__(self) -> None:
        draw_options, draw, files = variation.draw_options, Variant.draw.__func__, Variant.files  # type: ignore[attr-defined]
        document, words = Variant.document, Variant.words

        def own_options(rng: random.Random, rules: Sequence[Rule]) -> dict[str, Option]:
            numbers = {rule.name: self.options[rule.name] for rule in rules if rule.name in self.options}
            own = {rule.name: rule.options[numbers[rule.name]] for rule in rules if rule.name in numbers}
            return draw_options(rng, rules) | own

        def own_draw(cls: type[Variant], *arguments: Any) -> Variant:
            self.variant = draw(cls, *arguments)
            return self.variant

        def own_files(variant: Variant, texts: Mapping[str, str]) -> dict[str, str]:
            self.texts |= texts
            return files(variant, texts)

        def own_document(variant: Variant, rng: random.Random, *extra: str) -> dict[str, str]:
            self.sentences += extra
            return document(variant, rng, *extra)

        def own_words(variant: Variant, text: str) -> str:
            self.documents += [text] if "\n" in text else []
            return words(variant, text)

        with (
            mock.patch.object(variation, "draw_options", own_options),
            mock.patch.multiple(
                Variant, draw=classmethod(own_draw), files=own_files, document=own_document, words=own_words
            ),
        ):
            self.project = TEMPLATES[self.template](random.Random(self.seed))

    @property
    def rules(self) -> Sequence[Rule]:
        return self.variant.rules


donor = functools.cache(Donor)


@functools.cache
def always_same(template: str) -> dict[str, str]:
    """Return the values of names that all projects of a template have; shared, so never changed."""
    many = [donor(template, seed).variant.names for seed in _OWN]
    return {
        name: str(value) for name, value in many[0].items() if all(str(names.get(name)) == str(value) for names in many)
    }


@functools.cache
def values_elsewhere(template: str, name: str) -> frozenset[str]:
    """Return the values of a name in other projects of a template."""
    return frozenset(str(donor(template, seed).variant.names.get(name)) for seed in _OWN)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace the names in a text that have values, and those in the values; the others stay."""
    for _ in range(6):
        text, before = _NAME.sub(lambda match: values.get(match[1], match[0]), text), text
        if text == before:
            break
    return text


@functools.lru_cache(100_000)
def pattern(text: str) -> re.Pattern[str]:
    """Return what texts look like that have any values for the names in this one."""
    parts, names, end = list[str](), set[str](), 0
    for match in _NAME.finditer(text):
        parts += [
            re.escape(text[end : match.start()]),
            f"(?P={match[1]})" if match[1] in names else f"(?P<{match[1]}>.+?)",
        ]
        names.add(match[1])
        end = match.end()
    return re.compile("".join([*parts, re.escape(text[end:])]))


def literal(text: str) -> int:
    """Return how many characters of a text are no names."""
    return len(_NAME.sub("", text).strip())


@dataclass
class Votes:
    """Values of names, and how much speaks for each."""

    template: str
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def match(self, text: str, line: str, weight: int) -> bool:
        match = pattern(text).fullmatch(line)
        for name, value in match.groupdict().items() if match else ():
            self.counts[name][value] += weight
        return match is not None

    def values(self) -> dict[str, str]:
        """Return the value of each name for which most speaks: what it is in other projects counts thrice."""
        values = dict(always_same(self.template))
        for name, counts in self.counts.items():
            elsewhere = values_elsewhere(self.template, name)
            best = max(counts, key=lambda value: counts[value] * (3 if value in elsewhere else 1))
            values.setdefault(name, best)
        return values


class Page:
    """The page of a project, and words for what was done to rules, with whether these hold then."""

    def __init__(self, text: str, meanings: Mapping[str, bool], guess: str, coin: random.Random) -> None:
        self.lines = [line[2:] for line in text.splitlines() if line.startswith("- ")]
        self.meanings, self.guess, self.coin = meanings, guess, coin

    def options(self, rules: Sequence[Rule], votes: Votes) -> dict[str, int]:
        """Return the number of the option that holds, by rule."""
        constant, chosen = always_same(votes.template), dict[str, int]()
        for rule in rules:
            sentences = [filled(option.statement, constant) for option in rule.options]
            whole = [
                (literal(sentence), number, sentence, line)
                for number, sentence in enumerate(sentences)
                for line in self.lines
                if pattern(sentence).fullmatch(line)
            ]
            if whole:
                _, number, sentence, line = max(whole)
                votes.match(sentence, line, 50)
                chosen[rule.name] = number
            elif (number := self._disputed(sentences)) is not None:
                chosen[rule.name] = number
        return chosen

    def _disputed(self, sentences: Sequence[str]) -> int | None:
        for line in self.lines:
            places = {
                number: match for number, sentence in enumerate(sentences) if (match := pattern(sentence).search(line))
            }
            opening = [number for number, match in places.items() if match.start() == 0]
            closing = [number for number, match in places.items() if match.end() == len(line) and match.start() > 0]
            if opening and closing:
                first = max(opening, key=lambda number: places[number].end())
                second = max(closing, key=lambda number: len(places[number][0]))
                return first if self.is_first(line[places[first].end() : places[second].start()]) else second
        return None

    def is_first(self, words: str) -> bool:
        """Return whether the first of two sentences holds, by the words between them.

        Raises:
            ValueError: They have no form that it knows.
        """
        match = re.search(r" (above|below) was (not )?(.*?),? (?:unlike|and) the one ", words)
        if match is None:
            raise ValueError(f"not in the form of a dispute: {words}")
        place, negation, done = match.groups()
        return (self._holds(done) != bool(negation)) == (place == "above")

    def _holds(self, done: str) -> bool:
        """Return whether a rule holds to which something was done."""
        if done in self.meanings:
            return self.meanings[done]
        if self.guess == "coin":
            return self.coin.random() < 0.5
        nearest = max(sorted(self.meanings), key=lambda word: difflib.SequenceMatcher(None, done, word).ratio())
        return self.meanings[nearest] == (self.guess == "nearest")


def drawn_words(identifiers: Iterable[str], texts: Iterable[str]) -> dict[str, str]:
    """Return the words that stand for identifiers in some texts."""
    there = Counter(word for text in texts for word in re.findall(r"\w+", text))
    candidates: dict[str, dict[str, str]] = defaultdict(dict)
    for convention in variation._CONVENTIONS:
        for word in identifiers:
            names = [
                convention.format(word=word, qualifier=qualifier, title=qualifier.title())
                for qualifier in variation._QUALIFIERS
            ]
            if best := max(names, key=lambda name: there[name]):
                candidates[convention] |= {word: best} if there[best] else {}
    return max(candidates.values(), key=len, default={})


@dataclass(frozen=True)
class Script:
    """A script that knows some words, and guesses what others mean.

    Args:
        meanings: Words for what was done to rules, with whether these hold then.
        guess: ``"coin"``, ``"nearest"`` or ``"opposite"``.
    """

    meanings: Mapping[str, bool]
    guess: str = "coin"

    def repaired(self, request: str, files: Mapping[str, str]) -> dict[str, tuple[str | None, bool]]:
        """Return new texts by path, ``None`` for a file to remove, and whether it is a program that can be started.

        Args:
            request: What the user says.
            files: Texts of the project's files.
        """
        words = {*request.split()}
        template = max(TEMPLATES, key=lambda name: len(words & {*donor(name, _OWN[0]).project.about.split()}))
        page = Page(
            next((files[path] for path in variation._PAGES if path in files), ""),
            self.meanings,
            self.guess,
            random.Random(request),
        )
        votes = Votes(template)
        # Rules may differ with the seed: those count of which the page states most.
        base = max((donor(template, seed) for seed in _OWN), key=lambda one: len(page.options(one.rules, votes)))
        votes = Votes(template)
        own = Donor(template, base.seed, page.options(base.rules, votes))
        new = _written(own, votes, files, page)
        kinds = {PurePosixPath(path).name for seed in _OWN for path in donor(template, seed).project.files}
        folders = {PurePosixPath(path).parent for path in new}
        for path, text in files.items():
            name = PurePosixPath(path)
            if path in new:
                continue
            if name.parent in folders and name.suffix in _ENDS and name.name not in kinds:
                new[path] = None, False
            elif "\n" in text and text.count("\r\n") == text.count("\n"):
                new[path] = text.replace("\r\n", "\n"), False
        return new


def _written(own: Donor, votes: Votes, files: Mapping[str, str], page: Page) -> dict[str, tuple[str | None, bool]]:
    """Return the healthy texts of a project, as far as all of their words and names are known."""
    drawn = drawn_words(own.variant.identifiers, files.values())
    variant = replace(own.variant, identifiers={word: drawn.get(word, _LOST) for word in own.variant.identifiers})
    codes = {rule.key: variant._renamed(own.variant.chosen[rule.name].code) for rule in own.rules}
    constant = always_same(own.template) | codes
    by_suffix: dict[str, set[str]] = defaultdict(set)
    for path, text in files.items():
        by_suffix[PurePosixPath(path).suffix] |= {*text.split("\n")} if not path.startswith("old/") else set()
    for sentence in own.sentences:
        for line in page.lines:
            votes.match(filled(sentence, constant), line, 50)
    for path, text in own.texts.items():
        for other in files:
            votes.match(filled(path, constant), other, 50)
        for line in filled(variant._renamed(text), constant).split("\n"):
            if _NAME.search(line) and literal(line) > 3:
                for other in by_suffix[PurePosixPath(path).suffix]:
                    votes.match(line, other, literal(line))
    for document in own.documents:
        for line in filled(document, constant).split("\n"):
            if _NAME.search(line) and literal(line) > 3:
                for other in by_suffix[".md"]:
                    votes.match(line, other, 3 * literal(line))
    values = votes.values() | codes
    new = dict[str, tuple[str | None, bool]]()
    for path, text in own.texts.items():
        place, whole = filled(path, values), filled(variant._renamed(text), values)
        if not _NAME.search(place + whole) and _LOST not in whole:
            new[place] = whole, own.project.modes.get(own.variant.words(path), 0o644) & 0o100 > 0
    return new


def play(script: Script, conversation: Messages) -> Play:
    """Play one episode."""
    request = text_of(conversation[-1])
    match = re.search(r"Leave these files as they are: (.*)\.", request)
    fixed = tuple(match[1].split(", ")) if match else ()
    pack = _PACK.replace("FIXED", repr(("\0", *fixed))).replace("LARGEST", str(_LARGEST))
    size = int(re.match(r"\d+", (yield from _run(f"python3 -Ic {quote(pack)}")))[0])  # type: ignore[index]
    packed = ""
    while len(packed) < size:
        packed += (yield from _run(f"tail -c +{len(packed) + 1} /tmp/packed | head -c {_CHUNK}"))[
            : min(_CHUNK, size - len(packed))
        ]
    files = json.loads(zlib.decompress(base64.b64decode(packed)))
    new = script.repaired(request, files)
    changed = {
        path: entry for path, entry in new.items() if entry[1] or entry[0] is None or files.get(path) != entry[0]
    }
    text = base64.b64encode(zlib.compress(json.dumps(changed).encode(), 9)).decode()
    yield from _run(f"python3 -Ic {quote(_UNPACK.replace('PACKED', text))}")
    yield _WRITE("", [call("finish")])


def _run(command: str) -> Generator[str | Message, Sequence[Message], str]:
    new = yield _WRITE("", [call("run", command=command)])
    return next(text_of(message) for message in new if message["role"] == "tool")


def solved(script: Script, level: str, split: str, index: int, templates: Sequence[str] | None = None) -> bool:
    """Play a task; return whether it is solved."""
    options: dict[str, Any] = {"level": level, "split": split, "goals": ["repair"], "templates": templates}
    env: Any = textenvs.make("textenv/terminal", **options).unwrapped
    conversation, _ = env.reset(seed=index, options={"task_index": index})
    steps = play(script, conversation)
    reply = next(steps)
    while not env.state.done:
        seen = len(env.state.messages) + 1
        env.step(reply)
        if not env.state.done:
            reply = steps.send(env.state.messages[seen:])
    if env.state.stop == "tool_failed":
        raise RuntimeError(f"{level}, {split}, task {index}: the sandbox failed")
    return bool(env.state.stop == "solved")


def main(write: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60, metavar="N", help="of each level and split (60)")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=LEVELS, metavar="LEVEL", help="of these (all)")
    parser.add_argument(
        "--splits", nargs="+", choices=SPLITS, default=("test",), metavar="SPLIT", help="of these (test)"
    )
    parser.add_argument("--words", choices=("train", "all"), default="train", help="the split whose words it knows")
    parser.add_argument("--guess", choices=("coin", "nearest", "opposite"), default="coin", help="for other words")
    arguments = parser.parse_args()
    meanings = words_of("train") | (words_of("test") if arguments.words == "all" else {})
    script = Script(meanings, arguments.guess)
    write("| level, split | solved | 95 % |")
    write("|---|--:|--:|")
    for level in arguments.levels:
        for split in arguments.splits:
            count = sum(solved(script, level, split, index) for index in range(arguments.tasks))
            low, high = wilson(count, arguments.tasks)
            write(f"| {level}, {split} | {count} of {arguments.tasks} | {100 * low:.0f} to {100 * high:.0f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
