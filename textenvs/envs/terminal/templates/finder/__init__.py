"""The template *finder*: documents become an index by make, and queries are answered with it, in Python and awk.

It needs make, sh, awk (mawk is enough), sort, grep and Python 3.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, COLOURS, GOODS, asked_together, fault_of_command, file_in_the_way, lost_permission, notes
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from . import texts
from .engine import DIFFERENT, STOPS, Document, Engine, Part, Settings, coined
from .faults import EDITS
from .rules import IDENTIFIERS, RULES

#: Rules whose options may give the same results by chance.
_BY_CHANCE = ("order-of-equals", "order-of-vocabulary", "length-of-document", "normalised-score")


class _Writer:
    """Draws documents from words that must stand beside each other, and fills them up."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng = rng
        self.segments = [list[list[str]]() for _ in range(count)]
        self.titles = [[rng.choice(COLOURS).title(), rng.choice(GOODS)] for _ in range(count)]

    def put(self, numbers: int | Sequence[int], *words: str) -> None:
        for number in [numbers] if isinstance(numbers, int) else numbers:
            self.segments[number].append([*words])

    def filler(self, low: int, high: int) -> list[str]:
        words = self.rng.choices([*GOODS, *COLOURS], k=self.rng.randint(low, high))
        words = [word.title() if self.rng.random() < 0.2 else word for word in words]
        words = [f"{word}{self.rng.choice(',.')}" if self.rng.random() < 0.2 else word for word in words]
        return [*words, self.rng.choice(STOPS), *self.rng.choices(GOODS)]

    def body(self, number: int, first: str = "", last: str = "") -> list[str]:
        segments, words = self.rng.sample(self.segments[number], len(self.segments[number])), [first] * bool(first)
        for segment in segments:
            words += [*self.filler(1, 3), *segment]
        words += self.filler(8, 12)
        return [*words, *self.filler(50 * (number % 2), 50 * (number % 2)), *[last] * bool(last)]


def _collection(rng: random.Random, variant: Variant, settings: Settings) -> tuple[Engine, str]:
    """Draw documents and queries in which each rule and each fault shows; return the word of quotations, too."""
    words, writer = coined(rng), _Writer(rng, 13)
    put, queries = writer.put, list[list[Part]]()

    def word() -> str:
        return next(words)

    def query(*parts: str | Part) -> None:
        queries.append([Part(part) if isinstance(part, str) else part for part in parts])

    one, other = word(), word()
    put(0, f"{one}-{other}")
    for text in (one, one + other, f"{one.title()}-{other}"):
        query(text)
    one, other = word(), word()
    put(1, f"{one}'{other}")
    put(2, f"{other}a’{one}")
    for text in (one, other, one + other, f"{other}a'{one}"):
        query(text)
    for number, digits in ((3, "7"), (4, "42"), (5, "350"), (3, "2031")):
        put(number, digits)
        query(digits)
    one = word()
    put(6, one[:2], one[:3], "x")
    query(one[:2])
    query(one[:3])
    for number, end in enumerate(("es", "ing", "s", "ed"), start=1):
        one = word()[:5]
        put(number, one + end)
        query(one)
    one, other = word(), word()
    put(0, one, *rng.sample(STOPS, 4), other)
    put(1, one, "x", "q", "x", "q", other)
    put(2, one, other)
    query(f"{one} {other}")
    query("für")
    one, other = word(), word()
    gaps = [rng.choice([name for name in GOODS if len(name) > 4 and not name.endswith("ing")]) for _ in range(6)]
    put(3, one, other)
    put(4, one, gaps[0], other)
    put(5, one, *gaps[1:3], other)
    put(6, other, one)
    query(f"{one} {other}")
    one, other, third = word(), word(), word()
    put(8, one, *gaps[3:], other)
    query(f"{one} {other}")
    put(9, third, other, one)
    put(10, third, other)
    query(f"{third} {other} {one}")
    title_word, one = word(), word()
    put([2, 3, 12], title_word)
    writer.titles[2].append(title_word)
    writer.titles[5] = [f"{writer.titles[5][0]}:", one.title(), "and", "more"]
    query(title_word)
    query(Part(title_word, "title"))
    one = word()
    for _ in range(7):
        put(4, one)
    query(one)
    many = [word() for _ in range(3)]
    put(5, *many)
    put(6, *many[:2])
    put(7, many[2])
    query(*many)
    sought, against, early = word(), word(), word()
    put([8, 9, 10, 8], sought)
    put(9, against)
    writer.titles[10].append(against)
    query(sought, Part(against, excluded=True))
    put([8, 9, 10], early)
    put([3, 4, 6, 7, 3], word())
    # Of the narrow word, a document has the synonym in its title; of the wide one, the synonyms alone are in documents.
    put([0, 7], settings.narrow[0])
    put(7, settings.narrow[1])
    writer.titles[1].append(settings.narrow[1])
    put([2, 6], settings.wide[1])
    put([6, 8], settings.wide[2])
    query(settings.narrow[0])
    query(settings.wide[0])
    head = word()[:DIFFERENT]
    put(4, f"{head}tula", f"ba{head}ru")
    put(5, f"{head}mora")
    put(6, f"{head}tula", f"{head}mora")
    put(7, f"ba{head}ru")
    query(Part(head.upper(), begins=True))
    one = word()
    put(7, f"{one}7")
    query(one)
    for text, plain in (("{}|{}", "{}{}"), ("{}e\u0301{}", "{}e{}"), ("Ö{}{}", "oe{}{}")):
        one = word()
        put(rng.randint(0, 11), text.format(one[:4], one[4:]))
        query(plain.format(one[:4], one[4:]))
    quoted, first, last, tags = word(), word(), f"zz{word()}", [word() for _ in range(4)]
    for text in (quoted, first, last, tags[1], word()):
        query(text)
    days = sorted(rng.sample(range(738_000, 739_500), 13))
    names = [f"{colour}{rng.randint(10, 99)}" for colour in rng.sample([*COLOURS, *GOODS], 13)]
    names[4] = f"{names[4][:-2]}.{names[4][-2:]}"
    places = [*rng.sample([0, 1, 2, 3, 4, 5, 6, 7, 11, 12], 10)]
    order = [*places[:4], 8, places[4], 10, *places[5:7], 9, *places[7:]]
    ordinals = dict(zip(order, days, strict=True))
    # Its day has a month of one digit, and is none of the first twelve of a month.
    ordinals[3] = datetime.date(rng.randint(2021, 2024), rng.randint(1, 9), rng.randint(13, 28)).toordinal()
    tagged = {number: [tags[0], *[tags[1]] * (number in (5, 8, 9)), *[tags[2]] * (number % 2)] for number in range(13)}
    tagged |= {3: [tags[3], tags[2]], 11: [tags[2]], 12: [tags[3]]}
    documents = [
        Document(
            names[number],
            " ".join(writer.titles[number]),
            ordinals[number],
            tagged[number],
            writer.body(number, first if number == 0 else "", last if number == 11 else ""),
            draft=number == 12,
        )
        for number in range(13)
    ]
    oldest, newest = documents[8], documents[9]
    query(Part(tags[1], "tag"), sought)
    query(early, Part(oldest.day, "after"), Part(newest.day, "before"))
    query(Part(oldest.dotted_day, "after"), early)
    rng.shuffle(queries)
    query(title_word)
    query(Part(tags[0].upper(), "tag"))
    return Engine(variant, settings, documents, queries=queries), quoted


def _few(rng: random.Random, variant: Variant, settings: Settings) -> tuple[Engine, Sequence[Document]]:
    """Draw three documents, and another one of the name of the first."""
    words, writer = coined(rng), _Writer(rng, 4)
    common, stop, new = next(words), next(words), next(words)
    writer.put(range(4), common)
    writer.put([0, 1, 3], stop)
    writer.put(3, new)
    days = rng.sample(range(738_000, 739_500), 4)
    names = [*sorted(rng.sample(GOODS, 3)), ""]
    names[3] = names[0]
    documents = [
        Document(names[number], " ".join(writer.titles[number]), days[number], [common], writer.body(number))
        for number in range(4)
    ]
    # The beginning of a stop word finds what the index has.
    queries = [*([Part(text)] for text in (common, stop, new)), [Part(stop[:DIFFERENT], begins=True)]]
    return Engine(variant, settings, documents[:3], queries=queries), [documents[3], *documents[1:2]]


def _check(rng: random.Random, variant: Variant, settings: Settings) -> Check:
    """Search a collection, and another one of which a document is removed, one changed, and a stop word added."""
    for _ in range(DRAWS):
        engine, quoted = _collection(rng, variant, settings)
        if variant.separates(_BY_CHANCE, engine.ordered_by):
            break
    few, later = _few(rng, variant, settings)
    stop = few.queries[1][0].text
    inputs = {f"docs/{one.name}.txt": one.text(number, quoted) for number, one in enumerate(engine.documents)}
    inputs |= {f"few/{one.name}.txt": one.text(0, quoted) for one in few.documents}
    inputs["later.txt"] = later[0].text(2, quoted)
    lines = [" ".join(map(str, parts)) for parts in engine.queries]
    inputs["queries"] = "\r\n".join([lines[0], f"# {quoted}", "", *lines[1:]])
    inputs["again"] = "".join(f"{parts[0]}\n" for parts in few.queries)
    steps = [replace(few, documents=few.documents[:2]), replace(few, documents=later, more_stops=[stop])]
    name, removed = later[0].name, few.documents[2].name
    make, find = "make -s DOCS=/tmp/f OUT=/tmp/p", "bin/find /tmp/f /tmp/p $IN/again"
    command = "; ".join(
        [
            "make -s DOCS=$IN/docs OUT=/tmp/o",
            "bin/find $IN/docs /tmp/o $IN/queries",
            "bin/terms /tmp/o; bin/tags /tmp/o",
            f"cp -R $IN/few /tmp/f; {make}; rm /tmp/f/{removed}.txt; {make}; {find}",
            f"cp $IN/later.txt /tmp/f/{name}.txt; echo {stop} >> etc/stop.txt",
            f"touch -d 2040-01-01 /tmp/f/{name}.txt etc/stop.txt; {make}; {find}",
        ]
    )
    expected = [*engine.printed(), *(line for step in steps for line in step.answers())]
    return Check("search", command, "\n".join(expected), inputs)


def _shapes(rng: random.Random) -> tuple[dict[str, str], str, dict[str, str]]:
    """Draw how the programs are divided and written; return parts of texts, the file of letters, and further files."""
    readers = [texts.READER_OF_DAYS, texts.READER_OF_HEADS, texts.READER_OF_BODIES]
    steps = [texts.STEP_OF_PARTS, texts.STEP_OF_INDEX, texts.STEPS_OF_FACTS]
    functions = [texts.POINTS, texts.FACTORS]
    apart = rng.random() < 0.5
    parts = {
        "readers": "\n".join(rng.sample(readers, 3)),
        "steps": "\n".join(rng.sample(steps, 3)),
        "functions": "\n".join(rng.sample(functions, 2)),
        "count": rng.choice(texts.COUNTS),
        "letters": "\nfrom letters import ETC, folded, lines_of" if apart else texts.LETTERS.rstrip("\n") + "\n",
    }
    files = {
        "@lib@/terms.awk": rng.choice([texts.VOCABULARY_BY_ARRAYS, texts.VOCABULARY_BY_LINES]),
        "@lib@/filters.py": rng.choice([texts.FILTERS_BY_CASES, texts.FILTERS_BY_KIND]),
    }
    if apart:
        files["@lib@/letters.py"] = f'"""Letters of words, and the tables that name them."""\n{texts.LETTERS}'
    return parts, "@lib@/letters.py" if apart else "@lib@/words.py", files


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, an example of a collection, logs of queries, and loans."""
    settings = Settings.draw(rng)
    parts, home, files_of_shape = _shapes(rng)
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "code", "engine", "share"]),
        "texts": rng.choice(["texts", "articles", "papers", "leaflets"]),
        "folding": rng.choice(["letters.tsv", "folding.tsv", "plain.tsv"]),
        "ranking": rng.choice(["ranking", "weights", "fields"]),
        "often": settings.often,
        "home": home,
        "wide": settings.wide[0],
        "wide_first": settings.wide[1],
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    programs = {
        "Makefile": texts.MAKEFILE,
        "bin/find": texts.FIND,
        "bin/terms": texts.TERMS_REPORT,
        "bin/tags": texts.TAGS_REPORT,
        "@lib@/words.py": texts.WORDS,
        "@lib@/documents.py": texts.DOCUMENTS,
        "@lib@/terms.py": texts.TERMS,
        "@lib@/invert.awk": texts.INVERT,
        "@lib@/lengths.awk": texts.LENGTHS,
        "@lib@/tags.awk": texts.TAGS,
        "@lib@/index.py": texts.INDEX,
        "@lib@/query.py": texts.QUERY,
        "@lib@/matching.py": texts.MATCHING,
        "@lib@/similar.py": texts.SIMILAR,
        "@lib@/ranking.py": texts.RANKING,
        "@lib@/search.py": texts.SEARCH,
        "@lib@/excerpts.py": texts.EXCERPTS,
        "@lib@/find.py": texts.MAIN,
        "etc/@ranking@.json": texts.RANKS,
        **files_of_shape,
    }
    shaped = re.compile(f"@({'|'.join(parts)})@")
    programs = {path: shaped.sub(lambda match: parts[match[1]], text) for path, text in programs.items()}
    files = variant.files(programs) | settings.files(str(names["folding"])) | variant.document(rng)
    # Nothing reads these.
    files["old/ranking.py"] = variant.outdated(shaped.sub(lambda match: parts[match[1]], texts.RANKING))
    files["etc/weights-test.json"] = '{"title": 1, "tags": 1, "body": 1}\n'
    files |= {"docs/search.md": variant.words(texts.PAGE), "docs/notes.md": notes(rng, "Notes on the search", 10)}
    engine, quoted = _collection(rng, variant, settings)
    folder = names["texts"]
    for number, one in enumerate(engine.documents[:10]):
        files[f"{folder}/{one.name}.txt"] = one.text(number, quoted)
    files["examples/queries.txt"] = "".join(f"{' '.join(map(str, parts))}\n" for parts in engine.queries[:12])
    questions = _questions(rng, files, [one.name for one in engine.documents])
    fixed = frozenset(path for path in files if path.startswith((f"{folder}/", "logs/", "loans/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant, settings)]

    about = (
        "`make` makes an index of documents, `bin/find DOCS OUT FILE` answers queries with it, and `bin/terms` and "
        f"`bin/tags` list its terms and tags: try `make; bin/find {folder} out examples/queries.txt`. `docs/search.md` "
        f"describes documents and queries, and `{variant.page}` says what was agreed."
    )
    lib = names["lib"]
    looks = ["ls * | head -80", f"cat Makefile bin/* docs/search.md; tail -n +1 {lib}/*", "tail -n +1 etc/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/find", "bin/terms", "bin/tags"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    folding, lib = variant.words("etc/@folding@"), variant.words("@lib@")
    return [
        fault_of_command(
            "table-of-another-system",
            "make ends with an error before it has read a document.",
            [*looks, f"file {folding}"],
            f"iconv -f utf-8 -t cp1252 {folding} > t && mv t {folding}",
            f"iconv -f cp1252 -t utf-8 {folding} > t && mv t {folding}",
        ),
        fault_of_command(
            "link-to-old-list",
            "Words are found since some weeks that should not be terms.",
            [*looks, "ls -l etc"],
            "mv etc/stop.txt etc/stop-2024.txt && ln -s stop-2019.txt etc/stop.txt",
            "ln -sf stop-2024.txt etc/stop.txt",
        ),
        file_in_the_way(
            f"{lib}/json.py",
            '"""Jonas\'s list of readers."""\n\nREADERS = {"Ines": 3, "Otto": 11}\n',
            looks,
            "It ends with an AttributeError before it answers a query.",
            "notes-named-as-module",
        ),
        Fault(
            "unreadable-table",
            "It ends with an error about a permission.",
            [*looks, "ls -l etc"],
            "chmod 644 etc/synonyms.tsv",
            modes={"etc/synonyms.tsv": 0o200},
        ),
        lost_permission("bin/find", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str], names: Sequence[str]) -> list[Question]:
    """Draw logs of queries and lists of loans, and ask about them."""
    slowest = draw_journal(
        rng,
        files,
        "logs/2025-{:02}.log",
        names,
        range(2, 60_000),
        lambda month, name, spent, mark: (
            f"2025-{month:02}-{rng.randint(1, 28):02} query={mark} clicked={name} ms={spent} rank={rng.randint(1, 5)}"
        ),
    )
    states = ("lent", "in", "lost")
    shelf_of = draw_lists(rng, files, "loans", "shelf", lambda copy: f"{copy} {rng.choice(states)}", counts=(14, 26))
    return [
        asked_together([_slowest_query(one, slowest[one]) for one in rng.sample([*slowest], ASKED)]),
        asked_together([_shelf_of_copy(one, shelf_of[one]) for one in rng.sample(sorted(shelf_of), ASKED)]),
    ]


def _slowest_query(name: str, mark: str) -> Question:
    fields = r"s/.*query=\([^ ]*\).*ms=\([0-9]*\).*/\2 \1/"
    return Question(
        "slowest-query",
        f"Which query of those that led to {name} (clicked) took most ms, by logs/?",
        mark,
        [
            "head -3 logs/2025-01.log",
            f"grep -hF ' clicked={name} ' logs/* | sed '{fields}' | sort -n | sed -n '$s/.* //p'",
        ],
    )


def _shelf_of_copy(copy: str, shelf: str) -> Question:
    return Question(
        "shelf-of-copy",
        f"Which shelf is the copy {copy} from, by loans/?",
        shelf,
        [f"grep -r {copy} loans", f"grep -l '^{copy} ' loans/* | xargs sed -n 's/^shelf //p'"],
    )
