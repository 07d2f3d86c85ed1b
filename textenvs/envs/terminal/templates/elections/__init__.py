"""The template *elections*: boxes of ballots, seats of parties, the rounds of a mayor's election, and a report.

It needs make, bash, awk (mawk is enough), grep and coreutils.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    COLOURS,
    TOWNS,
    asked_together,
    file_in_the_way,
    lost_permission,
    notes,
    person,
    token,
)
from ..records import draw_journal
from ..variation import DRAWS, Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import CHECK, COUNT, FORMAT, MAKEFILE, PARTIES, READ, REPORT, RUNOFF, SEATS, STATIONS, TENTHS, TURNOUT

_STATUSES = ("draft", "recount", "sealed", "void", "disputed")
_SCRIPTS = {
    "read": READ,
    "count": COUNT,
    "seats": SEATS,
    "runoff": RUNOFF,
    "stations": STATIONS,
    "tenths": TENTHS,
    "parties": PARTIES,
    "turnout": TURNOUT,
}
#: Rules in whose options the drawn votes must differ; those of other rules differ by construction.
_BY_CHANCE = ("divisor", "threshold", "threshold-base", "share-rounding", "order-of-parties", "two-marks")
#: Votes of two parties for two seats: between two kinds of divisors.
_CLOSE = ((7, 4), (29, 14), (5, 2), (7, 2))
_WORDS = ("Union", "List", "Party", "Alliance", "Movement", "Front")
#: The codes on a ballot, or a name behind another, and how many such ballots there are.
_Pile = tuple[tuple[str, ...], int]


@dataclass(frozen=True)
class _Party:
    code: str
    name: str
    votes: int = 0
    seats: int = 0
    exempt: bool = False
    withdrawn: bool = False

    @property
    def line(self) -> str:
        """Its line of the list of parties."""
        return f"{'#' * self.withdrawn}{self.code};{self.name}{';exempt' * self.exempt}"

    @property
    def backwards(self) -> list[int]:
        """A key that sorts codes from the last one to the first."""
        return [-ord(letter) for letter in self.code]


@dataclass(frozen=True)
class _Box:
    """A box of ballots."""

    station: int
    region: str
    voters: int
    piles: Sequence[_Pile]
    mayor: Sequence[_Pile] = ()
    status: str = ""
    seal: str = ""

    @property
    def ballots(self) -> int:
        return sum(number for _, number in self.piles)

    def text(self, rng: random.Random, form: int = 0) -> str:
        """Return its file in one of five forms, which people write."""
        voters = f"{self.voters:,}".replace(",", "'")
        head = [
            f"station: {self.station:03}" if form % 2 else f"station: {self.station}",
            f"district: {self.region}{'  ' * (form == 2)}",
            *([f"status: {self.status}"] if self.status else []),
            f"voters: {voters}",
            f"seal: {self.seal or token(rng)}",
        ]
        if form == 3:
            head = [f"{line[0].upper()}{line[1:]}" for line in head]
        lines = list[str]()
        for marks, number in self.piles:
            written = f"  {' + '.join(marks)}" if form == 4 else "+".join(marks)
            written = written.lower() if form == 1 else written
            lines.append(written if number == 1 else f"{written} x {number}")
        rng.shuffle(lines)
        for place, (names, number) in enumerate(self.mayor):
            written = ("  > ", ">", " > ")[place % 3].join(names)
            lines.append(f"mayor: {written}{f' x {number}' if number > 1 else ''}")
        lines[1:1] = ["", f"# {self.piles[0][0][0]} x {number + 1}"]
        return ("\r\n" if form == 0 else "\n").join([*head, "", *lines, ""])


@dataclass(frozen=True)
class _Election:
    """An election, and what is printed of it by the rules of a project."""

    variant: Variant
    parties: Sequence[_Party]
    seats_of: Mapping[str, int]
    boxes: Sequence[_Box]

    @property
    def counted(self) -> list[_Box]:
        return [box for box in self.boxes if box.status != self.variant["ignored-status"]]

    def votes(self) -> Counter[tuple[str, str]]:
        """Return votes by district and code; blank and invalid ballots have codes of their own."""
        codes, votes = {party.code for party in self.parties if not party.withdrawn}, Counter[tuple[str, str]]()
        for box in self.counted:
            for marks, number in box.piles:
                names = marks
                if marks == ("-",):
                    names = ("blank",)
                elif not codes.issuperset(marks):
                    names = ("invalid",)
                elif len(marks) > 1:
                    names = self.variant["two-marks"](marks)
                for name in names:
                    votes[box.region, name] += number
        return votes

    def rows(self) -> list[_Party]:
        """Return the parties with their votes of all districts."""
        totals = Counter[str]()
        for (_, name), number in self.votes().items():
            totals[name] += number
        return [replace(party, votes=totals[party.code]) for party in self.parties if not party.withdrawn]

    def base(self) -> int:
        """Return how many votes the threshold is a share of."""
        votes = self.votes()
        blank, invalid = (
            sum(number for (_, name), number in votes.items() if name == kind) for kind in ("blank", "invalid")
        )
        return int(self.variant["threshold-base"](sum(votes.values()) - blank - invalid, blank, invalid))

    def seats(self) -> Counter[tuple[str, str]]:
        """Return the seats by district and code."""
        variant, votes, seats = self.variant, self.votes(), Counter[tuple[str, str]]()
        least = variant["threshold"] * self.base()
        codes = [row.code for row in self.rows() if row.exempt or 100 * row.votes >= least]
        for region, mandates in self.seats_of.items():
            running = [code for code in codes if votes[region, code]]
            for _ in range(mandates):
                quotients = {code: votes[region, code] / variant["divisor"](seats[region, code]) for code in running}
                most = max(quotients.values())
                best = [code for code in running if quotients[code] == most]
                chosen = min(best, key=lambda code: variant["equal-quotients"](code, votes[region, code]))
                seats[region, chosen] += 1
        return seats

    def tables(self) -> list[str]:
        """Return the report, and the lines of votes and of seats."""
        tables = (
            sorted(f"{region}\t{name}\t{number}" for (region, name), number in table.items())
            for table in (self.votes(), self.seats())
        )
        return [*self.report(), *(line for table in tables for line in table)]

    def percent(self, portion: int, whole: int) -> str:
        tenths = self.variant["share-rounding"](portion, whole)
        return f"{tenths // 10}.{tenths % 10}"

    def report(self) -> list[str]:
        seats, rows = self.seats(), self.rows()
        valid = sum(row.votes for row in rows)
        rows = [
            replace(row, seats=sum(number for (_, code), number in seats.items() if code == row.code)) for row in rows
        ]
        rows.sort(key=self.variant["order-of-parties"])
        cast, voters = Counter[str](), Counter[str]()
        for box in self.counted:
            cast[box.region] += box.ballots
            voters[box.region] += box.voters
        turnout = (
            self.variant["turnout-line"](name, cast[name], voters[name], self.percent(cast[name], voters[name]))
            for name in cast
        )
        return [*(self.variant["party-line"](row, self.percent(row.votes, valid)) for row in rows), *sorted(turnout)]

    def printed(self, variant: Variant) -> list[str]:
        """Return the tables by the rules of another project."""
        return replace(self, variant=variant).tables()

    def rounds(self) -> list[str]:
        """Return the rounds of the election of the mayor."""
        variant, lines = self.variant, list[str]()
        piles = [pile for box in self.counted for pile in box.mayor]
        alive = {name for names, _ in piles for name in names}
        start = dict.fromkeys(alive, 0)
        while True:
            counts = dict.fromkeys(sorted(alive), 0)
            for names, number in piles:
                if name := next((name for name in names if name in alive), None):
                    counts[name] += number
            start = start if lines else counts
            remaining, best = sum(counts.values()), max(counts, key=counts.__getitem__)
            last = min(counts, key=lambda name: (counts[name], variant["tie-of-last"](name, start[name])))
            lines.append(variant["round-line"].format(len(lines) + 1, best, counts[best], remaining, last))
            if counts[best] * 2 > variant["majority-of"](remaining, sum(start.values())) or len(alive) == 1:
                return lines
            alive = alive - {last}

    def stations(self) -> list[str]:
        ballots = Counter[int]()
        for box in self.counted:
            ballots[box.station] += box.ballots
        least = self.variant["few-ballots"]
        return [f"{station} {'-' if ballots[station] < least else ballots[station]}" for station in sorted(ballots)]

    def problems(self) -> list[str]:
        """Return what is wrong with boxes; those of a station are in one district."""
        lines = list[str]()
        for station in sorted({box.station for box in self.counted}):
            boxes = [box for box in self.counted if box.station == station]
            if boxes[0].region not in self.seats_of:
                lines.append(f"{station}: there is no {boxes[0].region}")
            if (most := sum(box.ballots - box.voters for box in boxes)) > 0:
                lines.append(f"{station}: {most} too many")
        return [*lines, f"status {self.variant['status-of-check'] if lines else 0}"]

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files."""
        boxes = {f"{folder}/{place:02}.box": box.text(rng, place % 5) for place, box in enumerate(self.boxes)}
        districts = "".join(f"{name}\t{number}\n" for name, number in self.seats_of.items())
        parties = "".join(f"{party.line}\n" for party in self.parties)
        return {**boxes, f"{folder}/districts.tsv": districts, f"{folder}/parties.txt": parties}


def _parties(rng: random.Random) -> list[_Party]:
    """Draw seven parties, of which the sixth is exempt from the threshold, and the last one is withdrawn."""
    codes = {f"{rng.choice('ABCDEFGH')}{rng.choice('KLMNOPQR')}" for _ in range(40)}
    colours = rng.sample(COLOURS, 7)
    return [
        _Party(code, f"{colour.title()} {rng.choice(_WORDS)}", exempt=place == 5, withdrawn=place == 6)
        for place, (code, colour) in enumerate(zip(rng.sample(sorted(codes), 7), colours, strict=True))
    ]


def _mayor(rng: random.Random, variant: Variant, swapped: bool) -> list[_Pile]:
    """Draw ballots for the mayor.

    In the second round, two have least, and equally many; in the third one, somebody has exactly one half of what a
    majority is counted of.
    """
    names = list({person(rng) for _ in range(20)})
    leader, second, weak, *pair = rng.sample(sorted(names), 5)
    one, other = sorted(pair, reverse=swapped)
    tied, helped = rng.randint(24, 30), rng.randint(3, 6)
    to_one, to_other = rng.randint(5, 7), rng.randint(2, 4)
    follows = tied + rng.randint(3, 9)
    of_all = variant["majority-of"](0, 1) == 1
    most = follows + 2 * tied - 2 * helped if of_all else follows + tied - helped
    piles: list[_Pile] = [
        ((leader, second), most),
        ((second,), follows),
        ((weak, one), to_one),
        ((weak, other), to_other),
        *(((name, weak, leader), helped) for name in (one, other)),
        ((one,), tied - to_one - helped),
        ((other,), tied - to_other - helped),
    ]
    return [*piles[:1], *rng.sample(piles[1:], len(piles) - 1)]


def _split(rng: random.Random, number: int, most: int) -> list[int]:
    """Draw parts of a number, each at most ``most``."""
    parts = list[int]()
    while number:
        parts.append(min(number, rng.randint(1, most)))
        number -= parts[-1]
    return parts


def _drawn(rng: random.Random, variant: Variant) -> _Election:
    """Draw an election: districts with equal or close quotients, one with many seats, and one with small stations."""
    parties = _parties(rng)
    main, (at_threshold, below, exempt) = [one.code for one in parties[:3]], [one.code for one in parties[3:6]]
    first, second = sorted(main[:2])
    city, other_tie, small, *close = rng.sample(CITIES, 3 + len(_CLOSE))
    large, tie = f"{city}: North", rng.choice(TOWNS)
    seats_of = {large: rng.randint(40, 46), tie: 2, other_tie: 2, **dict.fromkeys(close, 2), small: rng.randint(9, 12)}
    one, two = variant["divisor"](0), variant["divisor"](1)
    unit, other_unit = (rng.randint(180, 240) // (one + two) for _ in range(2))
    unknown, withdrawn = rng.choice(["XX", "ZZ"]), parties[6].code
    piles: dict[str, list[_Pile]] = {
        large: [*(((code,), rng.randint(90, 330)) for code in main), ((exempt,), rng.randint(90, 99))],
        tie: [((first,), unit * two), ((second,), unit * one), (("-",), rng.randint(30, 40))],
        other_tie: [((second,), other_unit * two), ((first,), other_unit * one), ((unknown,), rng.randint(20, 30))],
        small: [
            *(((code,), rng.randint(200, 600)) for code in main),
            ((main[2], main[0]), rng.randint(20, 30)),
            ((main[0], main[1]), rng.randint(20, 30)),
            ((main[1], main[0], main[2]), rng.randint(10, 20)),
            ((withdrawn,), rng.randint(20, 30)),
            (("-",), rng.randint(12, 20)),
        ],
    }
    for name, (larger, fewer) in zip(close, _CLOSE, strict=True):
        factor = rng.randint(300, 360) // (larger + fewer)
        piles[name] = [((first,), larger * factor), ((second,), fewer * factor)]
    boxes = _boxes(rng, variant, piles, main)
    base, share = _Election(variant, parties, seats_of, boxes).base(), variant["threshold"]
    # The party at the threshold has exactly its share, and the next one a vote less.
    hundreds = -(-base // (100 - 2 * share)) + 1
    rest = 100 * hundreds - 2 * share * hundreds + 1 - base
    added = ((at_threshold, share * hundreds), (below, share * hundreds - 1), (main[0], rest))
    boxes[3] = replace(boxes[3], piles=[*boxes[3].piles, *_shuffled(rng, [((code,), n) for code, n in added])])
    return _Election(variant, parties, seats_of, boxes)


def _shuffled(rng: random.Random, piles: Sequence[_Pile]) -> list[_Pile]:
    """Break piles into smaller ones, in another order."""
    parts = [(marks, part) for marks, number in piles for part in _split(rng, number, 60)]
    return rng.sample(parts, len(parts))


def _boxes(
    rng: random.Random, variant: Variant, piles: Mapping[str, Sequence[_Pile]], main: Sequence[str]
) -> list[_Box]:
    """Put the ballots of districts into boxes: two of one station, and small ones of each status."""
    large, tie, other_tie, small, *close = piles
    numbers = [rng.randint(2, 9), *rng.sample(range(11, 99), 8 + len(close)), rng.randint(100, 120)]
    parts = {region: _shuffled(rng, own) for region, own in piles.items()}
    ignored = variant["ignored-status"]
    boxes = [
        _Box(numbers[0], large, rng.randint(1200, 1900), parts[large][:9]),
        _Box(numbers[1], tie, rng.randint(400, 700), parts[tie]),
        _Box(numbers[2], other_tie, rng.randint(400, 700), parts[other_tie]),
        _Box(numbers[0], large, rng.randint(3000, 3900), parts[large][9:]),
        _Box(numbers[3], small, rng.randint(2200, 2900), parts[small]),
        _Box(numbers[4], small, 900, [((code,), rng.randint(15, 90)) for code in main], status=ignored),
        # It has no status, and is behind the one that is not counted.
        _Box(numbers[5], small, rng.randint(300, 400), [((main[1],), 12), (("-",), 5), ((main[2],), 18)]),
    ]
    statuses = [status for status in _STATUSES if status != ignored]
    for status, ballots, number in zip(statuses, (12, 17, 22, 27), numbers[6:10], strict=True):
        few = [((rng.choice(main),), part) for part in _split(rng, ballots, 12)]
        boxes.append(_Box(number, small, rng.randint(1000, 1800), few, status=status))
    for number, region in zip(numbers[10:], close, strict=True):
        boxes.append(_Box(number, region, rng.randint(600, 900), parts[region]))
    for place, pile in enumerate(_mayor(rng, variant, rng.random() < 0.5)):
        number = (1, 3, 4, 6)[place % 4]
        boxes[number] = replace(boxes[number], mayor=[*boxes[number].mayor, pile])
    boxes[5] = replace(boxes[5], mayor=boxes[1].mayor)
    return boxes


def _election(rng: random.Random, variant: Variant) -> _Election:
    """Draw an election until each rule and each fault shows in it."""
    for _ in range(DRAWS):
        election = _drawn(rng, variant)
        exempt = next(row for row in election.rows() if row.exempt)
        if 100 * exempt.votes >= variant["threshold"] * election.base():
            continue
        if not any(code == exempt.code for _, code in election.seats()):
            continue
        if variant.separates(_BY_CHANCE, election.printed):
            break
    return election


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the rules of elections, and an election that is over."""
    names = {"lib": rng.choice(["lib", "tools", "awk", "share", "inside"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "Makefile": MAKEFILE,
        "bin/report": REPORT,
        "bin/check": CHECK,
        **{f"@lib@/{name}.awk": text for name, text in _SCRIPTS.items()},
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {
        # Nothing reads these two.
        "old/seats.awk": variant.outdated(SEATS).replace("100 * total", "1000 * total"),
        "old/stations.awk": variant.text(STATIONS).replace("+=", "=").replace("# Reads records", "# Reads boxes"),
        "docs/files.md": FORMAT,
        "docs/notes.md": notes(rng, "Notes on elections", 10),
    }
    questions = _questions(rng, files, variant)
    fixed = frozenset(path for path in files if path.startswith(("votes/", "minutes/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_count(fresh, variant), _problems(fresh, variant)]

    about = (
        "`make` counts an election and prints its tables; `make report`, `make counts`, `make seats`, `make mayor` and "
        "`make stations` print one. `bin/check FOLDER` looks for mistakes in boxes. `votes/` is an election, "
        "`docs/files.md` describes "
        f"such files, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "cat Makefile bin/* docs/files.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/report", "bin/check"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/stations.awk")
    return [
        Fault(
            "missing-file",
            "The table of stations is empty, and there is no turnout.",
            [*looks, "cat old/stations.awk"],
            rf"sed 's/] = \$5/] += $5/; s/# Reads boxes/# Reads records/' old/stations.awk > {path}",
            removed=[path],
        ),
        file_in_the_way(
            "GNUmakefile",
            "# For the new machine, later.\nall report counts seats mayor stations:\n\t@echo nothing to do\n",
            looks,
            "make has nothing to do, whatever it is to print.",
            "shadowing-makefile",
        ),
        lost_permission("bin/report", looks, "There is no report any more, only an error of make."),
    ]


def _count(rng: random.Random, variant: Variant) -> Check:
    """Count an election, the mayor of another one, and the first one again when a box is corrected."""
    election, other = _election(rng, variant), _drawn(rng, variant)
    pairs = (_mayor(rng, variant, swapped) for swapped in (False, True))
    mayors = [replace(other, boxes=[replace(other.boxes[1], mayor=pile, piles=other.boxes[6].piles)]) for pile in pairs]
    box = election.boxes[4]
    larger = replace(box, piles=[*box.piles, *((marks, rng.randint(70, 99)) for marks, _ in box.piles[:9])])
    corrected = replace(election, boxes=[*election.boxes[:4], larger, *election.boxes[5:]])
    inputs = election.files(rng, "one") | {"new.box": larger.text(rng, 4)}
    for place, one in enumerate(mayors):
        inputs |= one.files(rng, f"mayor{place}")
    command = (
        "cp -R $IN/one /tmp/v; make -s all VOTES=/tmp/v OUT=/tmp/o; "
        "cp $IN/new.box /tmp/v/04.box; touch -d 2040-01-01 /tmp/v/04.box; make -s report VOTES=/tmp/v OUT=/tmp/o; "
        + "; ".join(f"make -s mayor VOTES=$IN/mayor{place} OUT=/tmp/m{place}" for place in range(2))
    )
    expected = [*election.tables(), *election.rounds(), *election.stations(), *corrected.report()]
    return Check("count", command, "\n".join([*expected, *(line for one in mayors for line in one.rounds())]), inputs)


def _problems(rng: random.Random, variant: Variant) -> Check:
    """Check an election in which nothing is wrong, and one with three mistakes, of which two are in names."""
    election = _drawn(rng, variant)
    large, tie, small, *_ = election.seats_of
    piles = election.boxes[6].piles
    wrong = [
        _Box(number, region, voters, piles)
        for number, region, voters in zip(
            rng.sample(range(2, 120), 5),
            [large.split(":")[0], tie.replace(" ", "."), small, large, tie],
            [rng.randint(120, 300), rng.randint(120, 300), rng.randint(2, 33), 35, 36],
            strict=True,
        )
    ]
    inputs = election.files(rng, "one") | replace(election, boxes=wrong).files(rng, "wrong")
    expected = [*election.problems(), *replace(election, boxes=wrong).problems()]
    command = "; ".join(f'bin/check $IN/{name}; echo "status $?"' for name in ("one", "wrong"))
    return Check("problems", command, "\n".join(expected), inputs)


def _questions(rng: random.Random, files: dict[str, str], variant: Variant) -> list[Question]:
    """Draw an election with many boxes, and minutes of stations; ask about them."""
    parties, regions = _parties(rng), rng.sample(CITIES, ASKED + 1)
    codes = [(one.code,) for one in parties[:6]]
    boxes = list[_Box]()
    for number, voters in enumerate(rng.sample(range(200, 999), rng.randint(30, 45)), start=1):
        region, piles = rng.choice(regions) if number > len(regions) else regions[number - 1], list[_Pile]()
        for _ in range(rng.randint(8, 14)):
            piles.append((rng.choice(codes), rng.randint(1, 14)))
        status = rng.choice(["", "", *_STATUSES])
        boxes.append(_Box(number, region, voters, piles, status=status, seal=token(rng)))
    election = _Election(variant, parties, {region: rng.randint(3, 9) for region in regions}, boxes)
    districts = election.files(rng, "votes")
    files |= {path: text for path, text in districts.items() if not path.endswith(".box")}
    files |= {f"votes/{box.station:03}.box": box.text(rng, 4) for box in boxes}
    longest = draw_journal(
        rng,
        files,
        "minutes/2025-{:02}.log",
        range(1, len(boxes) + 1),
        range(100, 90_000),
        lambda month, station, seconds, protocol: (
            f"station {station} of 2025-{month:02} took {seconds} s, protocol {protocol}"
        ),
        months=8,
    )
    chosen = rng.sample([*longest], ASKED)
    return [
        asked_together([_largest_box(name, boxes) for name in rng.sample(regions, ASKED)]),
        asked_together([_longest_count(one, longest[one]) for one in chosen]),
    ]


def _largest_box(region: str, boxes: Sequence[_Box]) -> Question:
    largest = max((box for box in boxes if box.region == region), key=lambda box: box.voters)
    script = '$1 == "voters" { n = $2 } $1 == "seal" { print n, $2 }'
    return Question(
        "seal-of-largest-box",
        f"Which seal has the box of {region} with most voters, by votes/*.box?",
        largest.seal,
        [
            "cat votes/001.box",
            f"grep -lx 'district: {region}' votes/*.box | xargs awk -F': ' '{script}' | sort -n | tail -1 | "
            "cut -d' ' -f2",
        ],
    )


def _longest_count(station: int, protocol: str) -> Question:
    command = f"grep -h '^station {station} ' minutes/*.log | sed 's/.* took //' | sort -n | tail -1 | sed 's/.* //'"
    return Question(
        "longest-count",
        f"Which protocol says that station {station} took longest, by minutes/?",
        protocol,
        ["head -3 minutes/2025-01.log", command],
    )
