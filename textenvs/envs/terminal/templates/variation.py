"""Differences between the programs of a template's seeds: identifiers, and rules that the project's documents state.

A *rule* is something that a healthy program must do, and that is different in another project: an order, a limit, a
format, what counts. Each of its *options* has the program text that does it, the sentence that states it, and a value
by which the expected outputs are computed. So a healthy program of another seed is wrong. Each rule is a kind of faults
as well: the program does what another option says.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..project import Edit, Fault, edit
from .parts import filled

#: What is added to identifiers: ``count`` becomes ``raw_count``, ``count_raw`` or ``countRaw``.
_QUALIFIERS = (
    *(
        "base",
        "batch",
        "block",
        "cell",
        "clean",
        "cur",
        "data",
        "day",
        "entry",
        "field",
        "full",
        "given",
        "inner",
        "item",
    ),
    *("job", "line", "local", "main", "named", "new", "one", "other", "outer", "own", "page", "part", "plain", "raw"),
    *("record", "row", "run", "set", "single", "site", "step", "table", "temp", "text", "this", "unit", "used", "work"),
)
_CONVENTIONS = ("{qualifier}_{word}", "{word}_{qualifier}", "{word}{title}")
_PAGES = (
    *("docs/rules.md", "docs/agreement.md", "docs/reference.md", "docs/specification.md", "HANDBOOK.md"),
    *("docs/what-it-prints.md", "RULES.md", "docs/behaviour.md"),
)
#: What does not follow an identifier: it is the name of a file.
_NO_FILE = r"(?!\.(?:txt|csv|tsv|conf|json|sh|py|awk|sql|log|html|md)\b)"
#: Lines that begin with these are comments.
_COMMENTS = ("# ", "#!", '"""', "--")
#: Inputs that are drawn until each option of a rule shows in the output; the last are taken in any case.
DRAWS = 200
_TITLES = ("Rules", "What was agreed", "How it works", "Reference", "What is expected")


@dataclass(frozen=True)
class Option:
    """One way in which a project can work.

    Args:
        code: The program text that does it; it may have ``@name@`` and identifiers in it.
        statement: The sentence of the project's documents that states it.
        value: What expected outputs are computed by.
    """

    code: str
    statement: str
    value: Any = None


@dataclass(frozen=True)
class Rule:
    """A rule of a template.

    Args:
        name: The kind of its fault. In the file stands ``@name@``, with underscores, for the code.
        path: The file in which its code stands; the code is unique in it.
        symptom: What users report where the program follows another option.
        options: At least two. On the inputs of every check, each gives other outputs than the others.
        shows: Whether other files than this one and the page tell which option holds.
    """

    name: str
    path: str
    symptom: str
    options: Sequence[Option]
    shows: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


def numbers(name: str, path: str, symptom: str, values: Iterable[object], code: str, says: str) -> Rule:
    """Return a rule about a number, which stands at ``{}`` in the code and in the sentence."""
    return Rule(name, path, symptom, [Option(code.format(n), says.format(n), n) for n in values])


@dataclass(frozen=True)
class Variant:
    """The rules and words that were drawn for a project.

    Args:
        rules: The template's rules.
        drawn: The options that were drawn, by the rule's name.
        chosen: Those that hold and that the page states: the drawn ones, except in a twin of the project.
        former: Options of old copies of programs, which tell nothing about the drawn ones.
        identifiers: New identifiers, by those of the template's texts.
        page: The document that states the rules.
        names: Values of other names in texts, such as folders.
    """

    rules: Sequence[Rule]
    drawn: Mapping[str, Option]
    chosen: Mapping[str, Option]
    former: Mapping[str, Option]
    identifiers: Mapping[str, str]
    page: str
    names: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def draw(
        cls,
        rng: random.Random,
        rules: Sequence[Rule],
        identifiers: str,
        names: Mapping[str, object] | None = None,
        stated: Mapping[str, int] | None = None,
    ) -> Variant:
        """Draw an option of each rule, and a new word for each of the identifiers.

        Args:
            rng: Draws them.
            rules: The template's rules.
            identifiers: Those of the template's texts, with spaces between them.
            names: Values of other names in texts.
            stated: Numbers of options that hold in place of the drawn ones, by the rule's name. What programs do that
                go against their rule, and all else, is the same as without.

        Raises:
            ValueError: ``stated`` names no rule of these.
        """
        convention = rng.choice(_CONVENTIONS)
        renamed = {
            word: convention.format(word=word, qualifier=qualifier, title=qualifier.title())
            for word in identifiers.split()
            for qualifier in [rng.choice(_QUALIFIERS)]
        }
        page = rng.choice(_PAGES)
        drawn, options = draw_options(rng, rules), {rule.name: rule.options for rule in rules}
        if unknown := (stated or {}).keys() - options.keys():
            raise ValueError(f"stated: {min(unknown)!r} is no rule of this template; it has {', '.join(options)}")
        chosen = drawn | {name: options[name][number] for name, number in (stated or {}).items()}
        own = random.Random("/".join(renamed.values()))
        former = {rule.name: own.choice(rule.options) for rule in rules}
        return cls(rules, drawn, chosen, former, renamed, page, dict(names or {}))

    def __getitem__(self, name: str) -> Any:
        """Return the value of a rule's option."""
        return self.chosen[name].value

    def separates(self, rules: Iterable[str], printed: Callable[[Variant], object]) -> bool:
        """Return whether another option of any of these rules gives another output than the one that holds.

        Args:
            rules: Names of rules.
            printed: Computes what programs print by the rules of a project.
        """
        options = {rule.name: rule.options for rule in self.rules}
        expected = printed(self)
        return all(
            printed(replace(self, chosen={**self.chosen, name: option})) != expected
            for name in rules
            for option in options[name]
            if option.code != self.chosen[name].code
        )

    def text(self, program: str) -> str:
        """Return a program's text with the drawn identifiers, names and code of rules in it."""
        return self._text(program, self.chosen)

    def outdated(self, program: str) -> str:
        """Return the text of an old copy of a program: its options say nothing about those that hold."""
        return self._text(program, self.former)

    def _text(self, program: str, options: Mapping[str, Option]) -> str:
        codes = {name.replace("-", "_"): self._renamed(option.code) for name, option in options.items()}
        return filled(self._renamed(program), {**self.names, **codes})

    def words(self, text: str) -> str:
        """Return a path, a symptom or a sentence with the drawn names in it."""
        return filled(text, self.names)

    def files(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Return the files of programs, by path."""
        return {self.words(path): self.text(text) for path, text in texts.items()}

    def document(self, rng: random.Random, *extra: str) -> dict[str, str]:
        """Return the page that states the rules, and the ``extra`` sentences, by its path."""
        stated = [*(self.chosen[rule.name].statement for rule in self.rules), *extra]
        sentences = [f"- {self.words(sentence)}" for sentence in stated]
        rng.shuffle(sentences)
        return {self.page: "\n".join([f"# {rng.choice(_TITLES)}", "", *sentences]) + "\n"}

    def edits(
        self, table: Sequence[tuple[str, str, str, str, str]], files: Mapping[str, str], looks: Sequence[str]
    ) -> list[Fault]:
        """Return the faults of a table of edits: kind, symptom, path, old and new text; ``files`` is healthy."""
        return [
            _edit_of_lines(kind, self.words(symptom), self.words(path), self.text(old), self.text(new), files, looks)
            for kind, symptom, path, old, new in table
        ]

    def faults(self, rng: random.Random, files: Mapping[str, str], looks: Sequence[str]) -> list[Fault]:
        """Return the fault of each rule: the program follows another option, which is drawn.

        Raises:
            ValueError: The program of a fault does what the page states.
        """
        faults, looks = [], [*looks, f"cat {self.page}"]
        for rule in self.rules:
            own, drawn = self.chosen[rule.name], self.drawn[rule.name]
            other = rng.choice([option for option in rule.options if option.code != drawn.code])
            if other.code == own.code:
                raise ValueError(f"{rule.name}: the page states what the faulty program does: {own.statement}")
            symptom = f"{self.words(rule.symptom)} {self.page} says what was agreed."
            path, old, new = self.words(rule.path), self.text(own.code), self.text(other.code)
            fault = _edit_of_lines(rule.name, symptom, path, old, new, files, looks)
            used = (drawn.code, other.code)
            alternatives = [number for number, option in enumerate(rule.options) if option.code not in used]
            agreed, followed = (self.words(option.statement) for option in (own, other))
            faults.append(
                replace(
                    fault,
                    agreed=agreed,
                    followed="" if rule.shows else followed,
                    page=self.page,
                    alternatives=alternatives,
                )
            )
        return faults

    @functools.cached_property
    def _renamings(self) -> dict[str, str]:
        """Texts with the drawn identifiers, by the template's texts: faults need the same ones again and again."""
        return {}

    def _renamed(self, program: str) -> str:
        """Replace identifiers, but not in lines of comments, and not in ``@names@``."""
        if program not in self._renamings:
            word = re.compile(rf"(?<![@\w])(?<!\s-)({'|'.join(self.identifiers)})(?![@\w]){_NO_FILE}")
            lines = (
                line
                if line.lstrip().startswith(_COMMENTS)
                else word.sub(lambda match: self.identifiers[match[1]], line)
                for line in program.split("\n")
            )
            self._renamings[program] = "\n".join(lines)
        return self._renamings[program]


def _edit_of_lines(
    kind: str, symptom: str, path: str, old: str, new: str, files: Mapping[str, str], looks: Sequence[str]
) -> Fault:
    """Return the fault of an edit. Whole lines, so that its repair is one of this project's lines."""
    if (count := files[path].count(old)) != 1:
        raise ValueError(f"{kind}: {path}: {old!r} stands there {count} times")
    change = Edit(path, old, new).of_lines(files[path])
    return edit(kind, symptom, path, change.old, change.new, looks=looks)


def draw_options(rng: random.Random, rules: Sequence[Rule]) -> dict[str, Option]:
    """Draw an option of each rule, from a generator of its own: what is drawn later does not depend on the rules."""
    own = random.Random(rng.getrandbits(64))
    return {rule.name: own.choice(rule.options) for rule in rules}
