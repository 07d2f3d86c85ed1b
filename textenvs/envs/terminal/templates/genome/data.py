"""Data of the template `genome`: sequences, features, reads and alignments in which every rule shows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..parts import SURNAMES

STANDARD = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODON_NAMES = ["".join(letters) for letters in itertools.product("TCAG", repeat=3)]
#: Changes of the standard code that species have, or might have.
CHANGES = {"TGA": "W", "TAG": "Q", "CTG": "S", "AGG": "K", "AGA": "G", "ATA": "M"}
STARTS = ("GTG", "TTG", "ATT", "ATC")
LETTERS = (
    *("A T A", "C G C", "G C G", "T A T", "R Y AG", "Y R CT", "S S CG", "W W AT", "K M GT", "M K AC"),
    *("B V CGT", "D H AGT", "H D ACT", "V B ACG", "N N ACGT"),
)
_COMPLEMENTS = str.maketrans({row[0]: row[2] for row in LETTERS})
BASES = {row[0]: row[4:] for row in LETTERS}
ACIDS = (
    *("A Ala 8909", "R Arg 17420", "N Asn 13212", "D Asp 13310", "C Cys 12116", "E Glu 14713", "Q Gln 14615"),
    *("G Gly 7507", "H His 15516", "I Ile 13117", "L Leu 13117", "K Lys 14619", "M Met 14921", "F Phe 16519"),
    *("P Pro 11513", "S Ser 10509", "T Thr 11912", "W Trp 20423", "Y Tyr 18119", "V Val 11715", "X any 11000"),
)
MASSES = {row.split()[0]: int(row.split()[2]) for row in ACIDS}


def other_strand(letters: str) -> str:
    return letters.translate(_COMPLEMENTS)[::-1]


def dna(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("ACGT", k=count))


@dataclass(frozen=True)
class Species:
    """Tables and settings of a project.

    Args:
        code: Acids by codon, ``*`` for a stop.
        starts: Codons that begin a protein.
        motifs: Patterns by name: one of two strands, one that repeats itself, and others with unclear letters.
        limits: Settings by name.
        adapter: Letters behind the end of a read.
    """

    code: Mapping[str, str]
    starts: Sequence[str]
    motifs: Mapping[str, str]
    limits: Mapping[str, int]
    adapter: str

    @classmethod
    def draw(cls, rng: random.Random, changes: Sequence[str]) -> Species:
        code = dict(zip(CODON_NAMES, STANDARD, strict=True)) | {codon: CHANGES[codon] for codon in changes}
        unit = rng.choice(["CAG", "GAT", "TCA", "ACT"])
        patterns = [
            rng.choice(["GAATTC", "GGATCC", "AAGCTT", "CTGCAG", "GTCGAC"]),
            unit * 2,
            f"{rng.choice(['GC', 'CC', 'CG'])}R{rng.choice(['TGCA', 'TCCA', 'AGTC'])}",
            f"{rng.choice(['TAC', 'TGC'])}V{rng.choice(['GGT', 'GCT'])}",
            f"{rng.choice(['CAT', 'AAT'])}Y{rng.choice(['ACW', 'TGW'])}",
        ]
        names = [f"{name[:3].title()}{place}" for place, name in enumerate(rng.sample(SURNAMES, 5), start=1)]
        limits = {
            "offset": rng.choice([33, 35, 37]),
            "least": rng.randint(18, 23),
            "pass": rng.randint(28, 31),
            "shortest": rng.randint(18, 25),
            "gain": rng.randint(3, 5),
            "loss": rng.randint(1, 2),
            "cost": rng.randint(4, 7),
        }
        adapter = f"{rng.choice(['AGAT', 'CTGT', 'GATC'])}CGG{rng.choice(['AAGA', 'CTTA', 'TTCC'])}"
        starts = ["ATG", *rng.sample(STARTS, 2)]
        return cls(code, starts, dict(zip(names, patterns, strict=True)), limits, adapter)

    @property
    def sense(self) -> list[str]:
        return [codon for codon, acid in self.code.items() if acid != "*"]


@dataclass(frozen=True)
class Feature:
    """A feature; a part whose end is not behind its start goes over the origin. ``phases`` are those of the parts."""

    id: str
    sequence: str
    kind: str
    strand: str
    parts: Sequence[tuple[int, int]]
    phases: Sequence[int | None] = (None,)

    def places(self, size: int) -> list[int]:
        """Return its positions, from 0, in the direction of the forward strand."""
        return [place % size for start, end in self.parts for place in range(start, end if end > start else end + size)]


@dataclass(frozen=True)
class Read:
    """A read: its letters, and their qualities."""

    name: str
    letters: str
    values: Sequence[int]


@dataclass(frozen=True)
class Alignment:
    """Two rows of an alignment, with gaps."""

    query: str
    target: str
    upper: str
    lower: str


@dataclass
class Builder:
    """Draws the sequences and features of a folder."""

    rng: random.Random
    species: Species
    letters: dict[str, str] = field(default_factory=dict)
    features: list[Feature] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers = self.rng.sample(range(100, 999), 30)
        self.ids = [f"{self.rng.choice('abxyQR')}{number}" for number in numbers]
        ordered = ["chr", "Chr", "seq", "old", "Ring", "part", "line", "small", "end", "tail"]
        names = [f"{word}{self.rng.randint(1, 99)}" for word in self.rng.sample(ordered, len(ordered))]
        roles = ("main", "rev", "ring", "rna", "odd", "again", "mini", "tail", "origin", "plain")
        self.names = dict(zip(roles, names, strict=True))
        self.letters = dict.fromkeys(roles, "")

    def add(self, role: str, letters: str) -> tuple[int, int]:
        start = len(self.letters[role])
        self.letters[role] += letters
        return start, len(self.letters[role])

    def fill(self, role: str, low: int, high: int) -> None:
        self.add(role, dna(self.rng, self.rng.randint(low, high)))

    def feature(
        self, role: str, kind: str, strand: str, parts: Sequence[tuple[int, int]], phases: Sequence[int | None] = ()
    ) -> None:
        row = (self.ids.pop(), self.names[role], kind, strand, parts, phases or [None] * len(parts))
        self.features.append(Feature(*row))

    def codons(self, count: int) -> str:
        return "".join(self.rng.choices(self.species.sense, k=count))

    def stop(self) -> str:
        return self.rng.choice([codon for codon, acid in self.species.code.items() if acid == "*"])

    def coding(
        self, role: str, strand: str, letters: str, cuts: Sequence[int] = (), phases: Sequence[int | None] = ()
    ) -> None:
        """Put a coding feature into a sequence, cut into parts with introns between them."""
        text = letters if strand == "+" else other_strand(letters)
        ends, parts = [0, *cuts, len(text)], list[tuple[int, int]]()
        for start, end in itertools.pairwise(ends):
            if parts:
                self.fill(role, 24, 30)
            parts.append(self.add(role, text[start:end]))
        self.feature(role, "cds", strand, parts, phases)

    def build(self) -> None:
        self._forward()
        self._backward()
        self._ring()
        self._unclear()
        self._short()

    def _forward(self) -> None:
        rng, species = self.rng, self.species
        other_start = rng.choice(species.starts[1:])
        self.fill("main", 21, 27)
        prefix = rng.choice([1, 2])
        letters = dna(rng, prefix) + other_start + self.codons(12) + self.stop()
        self.coding("main", "+", letters, [prefix + rng.choice([16, 17])], [prefix, 0])
        self.fill("main", 35, 40)
        unmarked = [codon for codon in species.sense if codon not in species.starts and species.code[codon] != "M"]
        begin = len(self.letters["main"])
        letters = rng.choice(unmarked) + self.codons(9) + self.stop() + self.codons(8) + self.stop()
        self.coding("main", "+", letters)
        self.feature("main", "gene", "+", [(begin - rng.randint(3, 9), len(self.letters["main"]) - 5)])
        self.fill("main", 10, 15)
        self.coding("main", "+", "ATG" + "".join(rng.sample(species.sense, len(species.sense))) + dna(rng, 2))
        self.fill("main", 10, 15)
        for kind, strand in (("repeat", "."), ("nc rna", "-"), ("repeat", ".")):
            self.feature("main", kind, strand, [self.add("main", dna(rng, rng.randint(11, 19)))])
            self.fill("main", 10, 15)
        for pattern in species.motifs.values():
            plain = "".join(BASES[letter][-1] for letter in pattern)
            self.add("main", f"{plain}{dna(rng, 7)}{other_strand(plain)}{dna(rng, 7)}")
        self.add("main", [*species.motifs.values()][1][:3] * 7 + dna(rng, 9))

    def _backward(self) -> None:
        rng = self.rng
        self.fill("rev", 66, 70)
        # Three parts; in an intron is another coding feature of the same strand.
        prefix = rng.choice([1, 2])
        text = other_strand(dna(rng, prefix) + "ATG" + self.codons(14) + self.stop())
        inner = other_strand("ATG" + self.codons(5) + self.stop())
        parts = [self.add("rev", text[:17])]
        self.fill("rev", 6, 9)
        self.feature("rev", "cds", "-", [self.add("rev", inner)])
        self.fill("rev", 6, 9)
        parts.append(self.add("rev", text[17:33]))
        self.fill("rev", 11, 15)
        parts.append(self.add("rev", text[33:]))
        self.feature("rev", "cds", "-", parts, [0, 3 - prefix, prefix])
        self.fill("rev", 11, 15)
        self.coding("rev", "-", "ATG" + self.codons(11) + dna(rng, 1))
        self.fill("rev", 11, 15)
        # Two that overlap, on different strands.
        begin = len(self.letters["rev"])
        self.coding("rev", "+", "ATG" + self.codons(8) + self.stop())
        self.fill("rev", 36, 45)
        self.feature("rev", "cds", "-", [(begin + 18, begin + 54)])

    def _ring(self) -> None:
        rng = self.rng
        letters, strand = "ATG" + self.codons(10) + self.stop(), rng.choice("+-")
        text = letters if strand == "+" else other_strand(letters)
        cut = rng.randint(10, 20)
        self.add("ring", text[cut:])
        self.fill("ring", 80, 110)
        start = self.add("ring", text[:cut])[0]
        self.feature("ring", "cds", strand, [(start, len(text) - cut)])
        pattern = [*self.species.motifs.values()][3].translate(str.maketrans("V", "G"))
        for role in ("origin", "plain"):
            self.add(role, pattern[3:])
            self.fill(role, 6, 9)
            self.add(role, pattern)
            self.fill(role, 50, 60 if role == "origin" else 120)
            self.add(role, pattern[:3])

    def _unclear(self) -> None:
        rng, code = self.rng, self.species.code
        self.fill("rna", 20, 30)
        self.coding("rna", "+", "ATG" + "TTT" + self.codons(8) + self.stop())
        self.fill("rna", 20, 30)
        families = [
            codon[:2]
            for codon in CODON_NAMES
            if codon[2] == "T" and len({code[codon[:2] + base] for base in "ACGT"}) == 1
        ]
        codons = [f"{family}{letter}" for family, letter in zip(rng.sample(families, 3), "NBD", strict=True)]
        mixed = [f"{letter}{rng.choice('AG')}T" for letter in "RYSWKMBDHVN"]
        codons += [codon for codon in mixed if len({code[base + codon[1:]] for base in BASES[codon[0]]}) > 1]
        self.fill("odd", 20, 30)
        self.coding("odd", "-", "ATG" + "".join(rng.sample(codons, len(codons))) + "AAA")
        pattern = [*self.species.motifs.values()][2]
        for letter in "RN":
            self.fill("odd", 5, 9)
            self.add("odd", pattern.replace("R", letter))
        self.fill("odd", 5, 9)

    def _short(self) -> None:
        rng = self.rng
        palindrome = [*self.species.motifs.values()][0]
        self.fill("mini", 30, 99)
        self.add("mini", palindrome)
        self.fill("tail", 30, 60)
        self.add("tail", "".join(rng.choices("acgt", k=rng.randint(21, 29))))


def draw_reads(rng: random.Random, species: Species) -> list[list[Read]]:
    """Draw reads at each limit, with bad letters in the middle and at the end, and with the same letters."""
    limits, reads = species.limits, list[Read]()
    least, enough, shortest = limits["least"], limits["pass"], limits["shortest"]
    names = [f"{rng.choice('MKL')}{number}" for number in rng.sample(range(100, 999), 40)]

    def add(letters: str, values: Sequence[int] = (), *, first: int | None = None) -> None:
        good = [rng.randint(enough + 4, 40) for _ in range(len(letters) - len(values))]
        row = [*good, *values]
        reads.append(Read(names.pop(), letters, row if first is None else [first, *row[1:]]))

    def bad() -> int:
        return rng.randint(2, least - 1)

    add(dna(rng, shortest + 10))
    add(dna(rng, shortest + 13), [bad() for _ in range(5)])
    add(dna(rng, shortest + 12), [bad(), *[40] * rng.randint(6, 8)])
    add(dna(rng, shortest + 12), [2, 2, least + 1])
    for count in (1, 2, 3, 4):
        letters = [*dna(rng, shortest + 9)]
        for place in rng.sample(range(len(letters)), count):
            letters[place] = "N"
        add("".join(letters))
    same = dna(rng, shortest + 6)
    for value in (3, 6, 1):
        add(same, [enough + value] * len(same))
    add(dna(rng, shortest + 5) + species.adapter + dna(rng, 9))
    add(dna(rng, shortest - 3) + species.adapter + dna(rng, 9))
    for count in (shortest, shortest - 1):
        add(dna(rng, count))
    for value in (enough, enough - 1):
        add(dna(rng, shortest + 3), [value] * (shortest + 3))
    add((dna(rng, shortest + 6) + species.adapter + dna(rng, 5)).lower())
    add(dna(rng, shortest + 7), first=ord("@") - limits["offset"])
    reads = rng.sample(reads, len(reads))
    return [reads[:10], reads[10:]]


def draw_alignments(rng: random.Random) -> list[list[Alignment]]:
    """Draw alignments: equally good ones, with neighbouring gaps, and with small letters."""
    numbers = sorted(rng.sample(range(10, 99), 6))
    queries = [f"{'Gene' if place in (3, 5) else 'gene'}{number}" for place, number in enumerate(numbers)]
    targets = [f"{rng.choice(['ref', 'db', 'Ref'])}{number}" for number in rng.sample(range(100, 999), 12)]

    def aligned(query: str, same: int, other: int, gaps: str = "", *, small: bool = False) -> Alignment:
        """Draw an alignment; ``gaps`` are neighbouring columns, ``u`` and ``d`` for one of the upper or lower row."""
        kinds = rng.sample("=" * same + "x" * other, same + other)
        place = rng.randint(3, len(kinds) - 3)
        upper = lower = ""
        for kind in [*kinds[:place], *gaps, *kinds[place:]]:
            letter = rng.choice("ACGT")
            upper += "-" if kind == "u" else "N" if kind == "n" else letter
            lower += {"d": "-", "n": "N", "x": rng.choice("ACGT".replace(letter, ""))}.get(kind, letter)
        return Alignment(query, targets.pop(), upper.lower() if small else upper, lower)

    tie, three, mixed, single, final, inner = queries
    size, gaps = rng.randint(18, 26), rng.choice(["u", "dd"])
    rows = [
        aligned(tie, size, 3, gaps),
        aligned(three, size, 9),
        aligned(three, size + 9, 2),
        aligned(tie, size, 3, gaps),
        aligned(mixed, size, 5, "uuddd" + "n", small=True),
        aligned(single, size + 5, 4, "uu"),
        aligned(three, size + 4, 4, "d"),
        aligned(mixed, 9, 9, "d"),
    ]
    return [[*rows[:4], aligned(inner, size, 4, "d")], [*rows[4:], aligned(final, size, 6, "uu")]]
