"""Documents and queries of the template `finder`, and what is answered by the rules of a project."""

from __future__ import annotations

import datetime
import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ..variation import Variant
from . import texts

#: Words of the list of stop words, a line each; the words of the last line are no part of an old list.
_STOP_LINES = ("The with from", "that when while", "into than", "Für über both")
STOPS = ("with", "from", "that", "when", "while", "into", "than", "für", "über", "both")
#: Letters in front that two words do not have in common.
DIFFERENT = 4


def coined(rng: random.Random) -> Iterator[str]:
    """Draw words of three syllables without end, no two of which begin alike; none has an ending of the rules."""
    used = set[str]()
    while True:
        word = "".join(rng.choice("bdfgklmnprtv") + rng.choice("aiou") for _ in range(3))
        if word[:DIFFERENT] not in used:
            used.add(word[:DIFFERENT])
            yield word


@dataclass(frozen=True)
class Document:
    """A document; in its body, ``|`` is where a word is divided."""

    name: str
    title: str
    ordinal: int
    tags: Sequence[str]
    body: Sequence[str]
    draft: bool = False

    @property
    def day(self) -> str:
        return datetime.date.fromordinal(self.ordinal).isoformat()

    @property
    def dotted_day(self) -> str:
        year, month, day = self.day.split("-")
        return f"{int(day)}.{int(month)}.{year}"

    @property
    def words(self) -> list[str]:
        return [word.replace("|", "") for word in self.body]

    def text(self, number: int, quoted: str) -> str:
        """Return its file; the number draws how the head is written, and some have a quotation of a word."""
        title = self.title.replace(" ", "\n  ", 1) if number % 5 == 1 else self.title
        keys = ["title", "DATE", "TAGS"] if number % 4 == 2 else ["Title", "Date", "Tags"]
        tags = [tag.title() if (number + place) % 3 == 0 else tag for place, tag in enumerate(self.tags)]
        head = [
            f"{keys[0]}: {title}",
            f"{keys[1]}: {self.dotted_day if number % 6 == 3 else self.day}",
            f"{keys[2]}:{', '.join(tags)}{',' * (number % 4 == 3)}",
            *["Status: Draft"] * self.draft,
        ]
        lines = [" ".join(self.body[place : place + 9]) for place in range(0, len(self.body), 9)]
        lines[1:1] = ["", f"> {quoted} again"] if number % 2 == 0 else [""]
        text = "\n".join([*head, "", *lines, ""]).replace("|", "-\n")
        text = text.replace("\n", "\r\n") if number % 5 == 3 else text
        return "\ufeff" * (number % 7 == 4) + text


@dataclass(frozen=True)
class Part:
    """A part of a query: a word, a phrase, the beginning of words, or a filter."""

    text: str
    field: str = ""
    excluded: bool = False
    begins: bool = False

    @property
    def is_filter(self) -> bool:
        return self.field in ("tag", "after", "before")

    def __str__(self) -> str:
        value = f'"{self.text}"' if " " in self.text else self.text + "*" * self.begins
        return "-" * self.excluded + f"{self.field}:" * bool(self.field) + value


@dataclass(frozen=True)
class Settings:
    """Tables of a project: a word with a synonym, one without documents and its synonyms, and a limit."""

    narrow: Sequence[str]
    wide: Sequence[str]
    often: int

    @classmethod
    def draw(cls, rng: random.Random) -> Settings:
        one, synonym, other, first, second = (f"ye{word}" for word, _ in zip(coined(rng), range(5), strict=False))
        return cls((one, synonym), (other, first, f"Ö{second}"), rng.choice([3, 4]))

    def files(self, folding: str) -> dict[str, str]:
        rows = [f"{letter}\t{plain}" for letter, plain in texts.FOLDING.items()]
        stop = ["# Words that are no terms", "", *_STOP_LINES[:-1], f"{_STOP_LINES[-1]}  # two with points"]
        synonyms = ["# Words, and what is looked for as well", "\t".join(self.narrow)]
        synonyms.append(f"{self.wide[0]}\t{' '.join(self.wide[1:])}")
        return {
            f"etc/{folding}": "\n".join(["# Letters, and what they become", *rows, ""]),
            "etc/stop.txt": "\n".join([*stop, ""]),
            "etc/stop-2019.txt": "\n".join(["# Words that are no terms", *_STOP_LINES[:2], ""]),
            "etc/synonyms.tsv": "\n".join([*synonyms, ""]),
        }


@dataclass(frozen=True)
class Engine:
    """Answers by the rules of a project."""

    variant: Variant
    settings: Settings
    documents: Sequence[Document]
    more_stops: Sequence[str] = ()
    queries: Sequence[Sequence[Part]] = field(default=())

    def _folded(self, text: str) -> str:
        letters = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
        return letters.translate({ord(letter): plain for letter, plain in texts.FOLDING.items()})

    @cached_property
    def _pieces(self) -> dict[str, list[tuple[str, bool, bool]]]:
        """Parts of words that were met, with whether they are terms, and whether they are stop words."""
        return {}

    def _divided(self, raw: str) -> list[tuple[str, bool, bool]]:
        variant, stops = self.variant, {self._folded(word) for word in ("the", *STOPS, *self.more_stops)}
        pieces, rows = [self._folded(raw).strip(".,:")], list[tuple[str, bool, bool]]()
        for rule in ("hyphens", "apostrophes"):
            pieces = [part for piece in pieces for part in variant[rule](piece)]
        for piece in filter(None, pieces):
            if piece.isdecimal():
                counts = variant["numbers-as-words"](piece)
            else:
                counts = len(piece) >= variant["shortest-word"] and piece not in stops
            end = next((end for end in variant["endings"] if piece.endswith(end)), "") if counts else ""
            rows.append((piece.removesuffix(end), counts, piece in stops))
        return rows

    def terms(self, text: str) -> list[tuple[int, str]]:
        """Return the terms of a text and their places."""
        place, terms = 0, list[tuple[int, str]]()
        for raw in text.split():
            if raw not in self._pieces:
                self._pieces[raw] = self._divided(raw)
            for term, counts, is_stop in self._pieces[raw]:
                place += 1 if counts else self.variant["skipped-words"](is_stop)
                if counts:
                    terms.append((place, term))
        return terms

    @cached_property
    def fields(self) -> dict[str, dict[str, list[tuple[int, str]]]]:
        """Terms and places of the fields of published documents, by name."""
        return {
            one.name: {
                "title": self.terms(one.title),
                "tags": self.terms(" ".join(one.tags)),
                "body": self.terms(" ".join(one.words)),
            }
            for one in self.documents
            if not one.draft
        }

    @cached_property
    def lengths(self) -> dict[str, int]:
        counted = self.variant["length-of-document"]
        return {name: sum(len(own[one]) for one in counted) for name, own in self.fields.items()}

    def _times(self, terms: Sequence[tuple[int, str]], begins: bool, own: Sequence[tuple[int, str]]) -> int:
        """Return how often a field has a phrase."""
        if begins:
            return sum(term.startswith(terms[0][1]) for _, term in own)
        low, high = self.variant["phrase-gap"]
        starts = [place for place, term in own if term == terms[0][1]]
        return sum(
            all(
                any(low <= place - start - (due - terms[0][0]) <= high for place, own_term in own if own_term == term)
                for due, term in terms[1:]
            )
            for start in starts
        )

    def _counts(self, terms: Sequence[tuple[int, str]], part: Part) -> dict[str, dict[str, int]]:
        """Return how often fields have a part of a query, by document; documents without it are not among them."""
        counts = dict[str, dict[str, int]]()
        for name, fields in self.fields.items():
            own = {key: self._times(terms, part.begins, fields[key]) for key in fields if part.field in ("", key)}
            if own := {key: times for key, times in own.items() if times}:
                counts[name] = own
        return counts

    def _points(self, own: Mapping[str, int]) -> int:
        weights = {"title": self.variant["weight-of-title"], "tags": 2, "body": 1}
        return sum(weights[key] * self.variant["repeated-words"](times) for key, times in own.items())

    def _hits(self, part: Part, terms: Sequence[tuple[int, str]]) -> dict[str, int]:
        """Return the points of a part of a query, by document."""
        hits = {name: self._points(own) for name, own in self._counts(terms, part).items()}
        rule, synonyms = self.variant["points-of-synonyms"], list[str]()
        if len(terms) == 1 and not part.begins:
            rows = (self.settings.narrow, self.settings.wide)
            synonyms = [synonym for word, *similar in rows if part.text == word for synonym in similar]
        for synonym in [] if rule == "otherwise" and hits else synonyms:
            for name, own in self._counts(self.terms(synonym), part).items():
                hits[name] = hits.get(name, 0) + self._points(own) // (2 if rule == "half" else 1)
        return hits

    def _passes(self, one: Document, parts: Sequence[Part]) -> bool:
        days = {"after": "0000", "before": "9999"}
        for part in parts:
            if part.field == "tag" and part.text.lower() not in one.tags:
                return False
            if part.field in days:
                numbers = part.text.split(".")[::-1] if "." in part.text else part.text.split("-")
                days[part.field] = "-".join(number.zfill(2) for number in numbers)
        return bool(self.variant["bounds-of-days"](days["after"], one.day, days["before"]))

    def results(self, parts: Sequence[Part]) -> list[tuple[int, Document]]:
        """Return the results of a query, with their scores."""
        variant = self.variant
        filters = [part for part in parts if part.is_filter]
        words = [(part, [(1, self._folded(part.text))] if part.begins else self.terms(part.text)) for part in parts]
        words = [(part, terms) for part, terms in words if terms and not part.is_filter]
        hits = [self._hits(part, terms) for part, terms in words if not part.excluded]
        bad = [self._counts(terms, part) for part, terms in words if part.excluded]
        results = list[tuple[int, Document]]()
        for one in self.documents:
            number = sum(one.name in own for own in hits)
            if one.draft or not self._passes(one, filters) or not (hits or filters):
                continue
            if hits and (not number or number < variant["needed-clauses"](len(hits))):
                continue
            total = sum(own.get(one.name, 0) * variant["rarity"](len(self.fields), len(own)) for own in hits if own)
            score = variant["normalised-score"](total, self.lengths[one.name])
            against = [own[one.name] for own in bad if one.name in own]
            rule = variant["excluded-words"]
            if (rule == "never" and against) or (rule == "title" and any("title" in own for own in against)):
                continue
            results.append((score // 2 if rule == "half" and against else score, one))
        last = variant["order-of-equals"]
        results.sort(key=lambda row: last(row[1], self.lengths[row[1].name]))
        return sorted(results, key=lambda row: -row[0])[: variant["number-of-results"]]

    def _excerpt(self, words: Sequence[str], parts: Sequence[Part]) -> str:
        targets, heads = set[str](), list[str]()
        for part in parts:
            if part.begins:
                heads.append(self._folded(part.text))
            elif not part.is_filter and not part.excluded:
                targets.update(term for _, term in self.terms(part.text))
        hits = [
            place
            for place, word in enumerate(words)
            for terms in [{term for _, term in self.terms(word)}]
            if terms & targets or any(term.startswith(head) for term in terms for head in heads)
        ]
        first, around = (hits or [0])[0], self.variant["words-around"]
        marked = [self.variant["marked-word"](word) if place in hits else word for place, word in enumerate(words)]
        front, back = marked[:first][-around:], marked[first : first + around + 1]
        before, behind = first - len(front), len(words) - first - len(back)
        return " ".join([*["..."] * (before > 0), *front, *back, *["..."] * (behind > 0)])

    def answers(self) -> list[str]:
        """Return the lines of `bin/find`."""
        lines = list[str]()
        for parts in self.queries:
            query = " ".join(map(str, parts))
            lines.append(f"? {query}")
            results = self.results(parts)
            if not results:
                lines.append(self.variant["nothing"].format(query))
            for rank, (score, one) in enumerate(results, start=1):
                lines.append(self.variant["line-of-result"].format(rank, one.name, score, one.title, one.day))
                lines.append(f"    {self._excerpt(one.words, parts)}")
        return lines

    def vocabulary(self) -> list[str]:
        """Return the lines of `bin/terms`."""
        rows = dict[str, list[str]]()
        for name, fields in self.fields.items():
            for own in fields.values():
                for _, term in own:
                    rows.setdefault(term, []).append(name)
        listed = [(len({*names}), len(names), term) for term, names in rows.items()]
        listed = [row for row in listed if row[0] >= self.settings.often]
        listed.sort(key=lambda row: self.variant["order-of-vocabulary"](*row))
        return [self.variant["line-of-term"].format(*row) for row in listed]

    def tags(self) -> list[str]:
        """Return the lines of `bin/tags`."""
        days = dict[str, list[str]]()
        for one in self.documents:
            for tag in [] if one.draft else one.tags:
                days.setdefault(tag, []).append(one.day)
        return sorted(f"{tag} {len(own)} {max(own)}" for tag, own in days.items())

    def printed(self) -> list[str]:
        """Return all lines."""
        return [*self.answers(), *self.vocabulary(), *self.tags()]

    def ordered_by(self, variant: Variant) -> list[str]:
        """Return what orders and lengths decide about, by another rule of these."""
        engine = replace(self, variant=variant, queries=self.queries[-2:])
        engine.__dict__["fields"] = self.fields  # they depend on none of these rules
        return [*engine.answers(), *engine.vocabulary()]
