"""The template *genome*: sequences, annotations with coordinates, proteins, motifs, reads and alignments.

It needs bash, awk (mawk is enough), sort and Python 3.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...project import Check, Edit, Fault, Project, Question
from ..parts import ASKED, SURNAMES, asked_together, fault_of_command, file_in_the_way, lost_permission, notes, token
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from .data import (
    ACIDS,
    BASES,
    CHANGES,
    CODON_NAMES,
    LETTERS,
    MASSES,
    STANDARD,
    STARTS,
    Alignment,
    Builder,
    Feature,
    Read,
    Species,
    dna,
    draw_alignments,
    draw_reads,
    other_strand,
)
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import (
    APART,
    CODONS,
    FEATURES,
    FLAT,
    FORMATS,
    FORMS,
    GENOME,
    HITS,
    LIMITS,
    MAIN,
    MIDDLES,
    MOTIFS,
    PROTEINS,
    READS,
    REVERSES,
    SIZES,
    STEPS,
    STRAND_FUNCTIONS,
    STRANDS,
    TABLES,
    TOGETHER,
    VALUES,
)

#: Rules whose options may give the same summary by chance.
_BY_CHANCE = ("rounded-share", "share-of-what", "order-of-summary", "middle-length", "repeated-sequence")


@dataclass(frozen=True)
class _Genome:
    """A folder, and reports on it by the rules of a project.

    Args:
        variant: Its rules.
        species: Its tables and settings.
        records: Name, shape and letters of sequences, by files.
        features: Features, by files.
        reads: Reads, by files; the first file ends with a part of another one.
        alignments: Alignments, by files.
    """

    variant: Variant
    species: Species
    records: Sequence[Sequence[tuple[str, str, str]]]
    features: Sequence[Sequence[Feature]]
    reads: Sequence[Sequence[Read]]
    alignments: Sequence[Sequence[Alignment]]

    @classmethod
    def draw(cls, rng: random.Random, variant: Variant, species: Species) -> _Genome:
        builder = Builder(rng, species)
        builder.build()
        letters, names = builder.letters, builder.names
        letters["rna"] = letters["rna"].replace("T", "U")
        again = rng.sample(range(30, 120), 3)
        again = [sorted(again)[place] for place in (1, 2, 0)]
        rows = [
            (names[role], "circular" if role in ("ring", "origin") else "linear", text)
            for role, text in letters.items()
            if role != "again"
        ]
        rows = rng.sample(rows, len(rows))
        rows.insert(rng.randint(0, 2), (names["again"], "linear", dna(rng, again[0])))
        files = [rows[:4], rows[4:7], rows[7:]]
        files[1] = [files[1][0], (names["again"], "linear", dna(rng, again[1])), *files[1][1:]]
        files[2] = [(names["again"], "linear", dna(rng, again[2])), *files[2]]
        features = rng.sample(builder.features, len(builder.features))
        coding = [one for one in features if one.kind == "cds"]
        features = [one for one in features if one.kind != "cds"]
        tables = [[*coding[::2], *features[::2]], [*coding[1::2], *features[1::2]]]
        return cls(variant, species, files, tables, draw_reads(rng, species), draw_alignments(rng))

    def text(self, names: Sequence[str]) -> str:
        lines = list[str]()
        for name in names:
            lines += [self.variant["title-of-report"](name), *getattr(self, f"_{name}")()]
        return "\n".join(lines)

    def summary_by(self, variant: Variant) -> str:
        """Return the summary by other rules."""
        return replace(self, variant=variant).text(["summary"])

    @property
    def _sequences(self) -> dict[str, tuple[str, str]]:
        versions = dict[str, list[tuple[str, str]]]()
        for name, shape, letters in itertools.chain(*self.records):
            text = self.variant["masked-letters"](letters).replace("U", "T")
            versions.setdefault(name, []).append((shape, text))
        choose = {
            "first": lambda rows: rows[0],
            "last": lambda rows: rows[-1],
            "longest": lambda rows: max(rows, key=lambda row: len(row[1])),
        }[self.variant["repeated-sequence"]]
        return {name: choose(rows) for name, rows in versions.items()}

    def _summary(self) -> list[str]:
        variant, rows = self.variant, list[tuple[str, int, int, int, str]]()
        for name, (shape, text) in self._sequences.items():
            strong, whole = text.count("G") + text.count("C"), variant["share-of-what"](text)
            unclear = len(text) - strong - text.count("A") - text.count("T")
            rows.append((name, len(text), variant["rounded-share"](1000 * strong, whole), unclear, shape))
        lines = [
            f"{name} {size} {share / 10:g}% {unclear} {shape}"
            for name, size, share, unclear, shape in sorted(rows, key=variant["order-of-summary"])
        ]
        above, below = variant["middle-length"]
        sizes = sorted((row[1] for row in rows), reverse=True)
        sums = itertools.accumulate(sizes)
        middle = next(size for size, total in zip(sizes, sums, strict=True) if total * below >= sum(sizes) * above)
        return [*lines, f"middle {middle}"]

    def _features(self) -> list[str]:
        variant, sequences = self.variant, self._sequences
        rows = [one for one in itertools.chain(*self.features) if one.sequence in sequences]
        places = {one.id: one.places(len(sequences[one.sequence][1])) for one in rows}
        lines = list[tuple[str, int, str, str]]()
        for one in rows:
            if not variant["listed-types"](one.kind):
                continue
            marked = any(
                other.id != one.id
                and other.sequence == one.sequence
                and not set(places[one.id]).isdisjoint(places[other.id])
                and variant["marked-overlaps"](one, other)
                for other in rows
            )
            own = places[one.id]
            place = variant["printed-coordinates"](own[0], own[-1], len(own))
            line = f"{one.id} {one.kind} {one.sequence}:{place} {one.strand} {len(own)}{' !' * marked}"
            lines.append((one.sequence, own[0], one.id, line))
        return [line for *_, line in sorted(lines)]

    def _proteins(self) -> list[str]:
        sequences, lines = self._sequences, list[str]()
        for one in sorted(itertools.chain(*self.features), key=lambda one: one.id):
            if one.kind != "cds" or one.sequence not in sequences:
                continue
            text = sequences[one.sequence][1]
            letters = "".join(text[place] for place in one.places(len(text)))
            if one.strand == "-":
                letters = other_strand(letters)
            phase = one.phases[-1 if one.strand == "-" else 0]
            protein = self._protein(letters[phase or 0 :])
            acids = [MASSES[acid] for acid in protein if acid != "*"]
            mass = sum(acids) - 1802 * self.variant["mass-of-protein"](len(acids))
            lines += self.variant["protein-line"](one.id, f"{mass // 100}.{mass % 100:02}", protein)
        return lines

    def _protein(self, letters: str) -> str:
        variant, code, protein = self.variant, self.species.code, ""
        while len(letters) > 2:
            codon, letters = letters[:3], letters[3:]
            acids = sorted({code["".join(plain)] for plain in itertools.product(*map(BASES.__getitem__, codon))})
            acid = acids[0] if codon in code else variant["ambiguous-codon"](acids)
            protein += acid if protein else variant["first-codon"](acid, codon in self.species.starts)
        surplus = {"": 0, "01": int(letters != ""), "012": len(letters)}[variant["surplus-letters"]]
        return str(variant["stop-codon"](protein + "X" * surplus))

    def _motifs(self) -> list[str]:
        lines, variant = list[str](), self.variant
        for name, (shape, text) in self._sequences.items():
            for motif, pattern in self.species.motifs.items():
                strands = variant["strands-of-palindromes"] if other_strand(pattern) == pattern else "+-"
                for strand in strands:
                    wishes = [BASES[letter] for letter in (pattern if strand == "+" else other_strand(pattern))]
                    around = text + text[: len(wishes) - 1] * (shape == "circular")
                    hits, place = list[int](), 0
                    for place in range(len(around) - len(wishes) + 1):
                        if hits and place + 1 < hits[-1] + variant["hits-apart"](len(wishes)):
                            continue
                        if all(
                            variant["letters-that-fit"](BASES[letter], wish)
                            for letter, wish in zip(around[place:], wishes, strict=False)
                        ):
                            hits.append(place + 1)
                    if hits:
                        lines.append(f"{name} {motif}{strand} {' '.join(map(str, hits))}")
        return lines

    def _reads(self) -> list[str]:
        variant, limits, lines = self.variant, self.species.limits, dict[str, str]()
        reads = [*itertools.chain(*self.reads)]
        for number, read in enumerate(reads):
            letters = read.letters.upper().partition(self.species.adapter)[0]
            letters = letters[: variant["trimmed-end"]([*read.values[: len(letters)]], limits["least"])]
            if len(letters) < limits["shortest"] or letters.count("N") > variant["unclear-letters"]:
                continue
            quality = sum(read.values[: len(letters)]) // len(letters)
            if quality < limits["pass"]:
                continue
            key = str(number) if variant["equal-reads"] == "all" else letters
            if key not in lines or variant["equal-reads"] == "last":
                lines[key] = f"{read.name} {len(letters)} {quality}"
        return [*lines.values(), f"{len(lines)} of {len(reads)}"]

    def _hits(self) -> list[str]:
        variant, limits, best = self.variant, self.species.limits, dict[str, tuple[int, str]]()
        for one in itertools.chain(*self.alignments):
            columns = [*zip(one.upper.upper(), one.lower.upper(), strict=True)]
            kinds = "".join("u" if a == "-" else "d" if b == "-" else "=" for a, b in columns)
            same = sum(a == b != "N" for a, b in columns)
            whole = {
                "plain": kinds.count("="),
                "all": len(kinds),
                "query": len(kinds) - kinds.count("u"),
                "target": len(kinds) - kinds.count("d"),
            }[variant["identity-of-what"]]
            gaps = variant["gap-count"](kinds)
            score = same * limits["gain"] - (kinds.count("=") - same) * limits["loss"] - gaps * limits["cost"]
            if one.query not in best or best[one.query][0] < score:
                best[one.query] = (score, f"{one.query} {one.target} {100 * same // whole}% {gaps} {score}")
        return [line for _, (_, line) in sorted(best.items())]

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files: some lack the end of their last line, or have those of another system."""
        files = dict[str, str]()
        for place, records in enumerate(self.records):
            lines = [f"; {token(rng)} of box {rng.randint(1, 9)}", ""] * (place != 1)
            for number, (name, shape, letters) in enumerate(records):
                words = "circular clone" if shape == "circular" else ["clone", "of a circular map"][number % 2]
                lines.append(f">{name} {words} {token(rng, 4)}")
                width = rng.choice([40, 60])
                for start in range(0, len(letters), width):
                    line = letters[start : start + width]
                    if place == 2:
                        groups = [line[group : group + 10] for group in range(0, len(line), 10)]
                        line = f"{start + 1:>6} {' '.join(groups)}"
                    lines.append(line)
            ends = "\r\n" if place == 1 else "\n"
            files[f"{place + 1}{rng.choice(['chrom', 'clones', 'sequences'])}.fa"] = ends.join(lines) + ends * bool(
                place
            )
        files |= self._tables(rng)
        offset = self.species.limits["offset"]
        for place, reads in enumerate(self.reads):
            lines = [
                line
                for read in reads
                for line in (
                    f"@{read.name} lane={rng.randint(1, 8)}",
                    read.letters,
                    "+",
                    "".join(chr(offset + value) for value in read.values),
                )
            ]
            files[f"{'ab'[place]}.fq"] = "\n".join([*lines, *[f"@{token(rng)}", dna(rng, 30)] * (place == 0)]) + "\n"
        for place, alignments in enumerate(self.alignments):
            lines = list[str]()
            for one in alignments:
                lines += ["", f"# {token(rng)}"] if lines else []
                width = rng.randint(10, 14)
                for start in range(0, len(one.upper), width):
                    lines.append(f"Q {one.query} {one.upper[start : start + width]}")
                    lines.append(f"T {one.target} {one.lower[start : start + width]}")
            files[f"{'ab'[place]}.aln"] = "\n".join([*lines, ""])
        return {f"{folder}/{name}": text for name, text in files.items()}

    def _tables(self, rng: random.Random) -> dict[str, str]:
        """Return the tables of features: the first one counts from 0; later parts stand before earlier ones."""
        files = dict[str, str]()
        for place, features in enumerate(self.features):
            lines, base = ["#base 0"] * (place == 0), place
            lines.append(f"# curated by {rng.choice(SURNAMES)}")
            for one in features:
                for (start, end), phase in zip(one.parts[::-1], one.phases[::-1], strict=True):
                    mark = "." if phase is None else str(phase)
                    note = f"{token(rng, 4)} geprüft" if rng.random() < 0.3 else token(rng, 4)
                    row = (one.id, one.sequence, one.kind, start + base, end, one.strand, mark, note)
                    lines.append("\t".join(map(str, row)))
            if place:
                lines.insert(3, "\t".join(["z99", f"lost{rng.randint(1, 99)}", "cds", "5", "40", "+", "0", "gelöscht"]))
            files[f"{'ab'[place]}{rng.choice(['genes', 'features'])}.ann"] = "\n".join([*lines, ""])
        return files


def _shapes(rng: random.Random) -> dict[str, str]:
    """Draw which of several ways programs are written in, and in which files their functions stand."""
    apart, middle = rng.random() < 0.5, rng.choice(MIDDLES)
    return {
        "form": rng.choice(FORMS),
        "value": rng.choice(VALUES),
        "reverse": rng.choice(REVERSES),
        "middle": middle,
        "strands": STRANDS + "".join(rng.sample(STRAND_FUNCTIONS, len(STRAND_FUNCTIONS))),
        "imports": APART[0] if apart else f"{TOGETHER}{CODONS}",
        "codons": f'"""Translation of codons."""\n{APART[1]}\n{CODONS}\n' if apart else "",
        "steps": '. "$root/@code@/steps.sh"' if rng.random() < 0.5 else STEPS,
    }


def _shaped(text: str, shapes: Mapping[str, str]) -> str:
    for name, shape in shapes.items():
        text = text.replace(f"<<{name}>>", shape)
    return text


def _table(code: Mapping[str, str], starts: Sequence[str]) -> str:
    rows = [f"{codon}\t{acid}\t{'start' if codon in starts else '-'}" for codon, acid in code.items()]
    return "\n".join(["# codon, acid, start", *rows, ""])


def _names(rng: random.Random, species: Species, changes: Sequence[str], table: int) -> dict[str, object]:
    keys = {
        "offset": ["offset", "zero_sign", "base_of_signs"],
        "least": ["least", "bad_below", "min_letter"],
        "pass": ["pass", "min_mean", "mean_from"],
        "shortest": ["shortest", "min_length", "length_from"],
        "gain": ["gain", "same_points", "points_of_same"],
        "loss": ["loss", "other_points", "points_of_other"],
        "cost": ["cost", "gap_points", "points_of_gap"],
        "adapter": ["adapter", "adaptor", "tail_of_reads"],
    }
    names: dict[str, object] = {f"{name}_key": rng.choice(words) for name, words in keys.items()}
    acids = [f"{codon}, which is {CHANGES[codon]}" for codon in sorted(changes)]
    names |= {"changes": " and ".join(acids), "table": f"code{table}", "offset_sign": chr(species.limits["offset"])}
    names |= dict(species.limits) | {"adapter": species.adapter}
    return names | {
        "code": rng.choice(["src", "lib", "tools", "parts", "steps"]),
        "limits": rng.choice(["limits", "settings", "defaults", "laboratory"]),
    }


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: tables of etc, programs, an example of a folder, logs of runs, and lists of tubes."""
    codons = rng.sample(sorted(CHANGES), len(CHANGES))
    tables, pairs = rng.sample(range(1, 34), 3), [codons[:2], codons[2:4], codons[4:]]
    species, shapes = Species.draw(rng, pairs[0]), _shapes(rng)
    names = _names(rng, species, pairs[0], tables[0])
    apart, with_steps = shapes["codons"] != "", shapes["steps"] != STEPS
    names["codons_file"] = f"{names['code']}/{'codons' if apart else 'proteins'}.py"
    order = sorted(f"code{table}.tsv" for table in tables)
    names["neighbour"] = (order.index(f"code{tables[0]}.tsv") + 1) % 3
    names["turned_adapter"] = other_strand(species.adapter)
    names["functions_file"] = f"{names['code']}/steps.sh" if with_steps else "bin/genome"
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/genome": GENOME,
        "@code@/flat.awk": FLAT,
        "@code@/sizes.awk": SIZES,
        "@code@/middle.awk": shapes["middle"],
        "@code@/reads.awk": READS,
        "@code@/hits.awk": HITS,
        "@code@/main.py": MAIN,
        "@code@/tables.py": TABLES,
        "@code@/strands.py": shapes["strands"],
        "@code@/features.py": FEATURES,
        "@code@/proteins.py": PROTEINS,
        "@code@/motifs.py": MOTIFS,
        "etc/@limits@.conf": LIMITS,
    }
    texts |= {"@code@/codons.py": shapes["codons"]} if apart else {}
    texts |= {"@code@/steps.sh": f"# Functions of bin/genome: a report each.\n{STEPS}\n"} if with_steps else {}
    files = variant.files({path: _shaped(text, shapes) for path, text in texts.items()}) | variant.document(rng)
    files["docs/files.md"] = variant.words(FORMATS)
    files["docs/notes.md"] = notes(rng, "Notes on the laboratory", 10)
    for table, changes in zip(tables, pairs, strict=True):
        code = dict(zip(CODON_NAMES, STANDARD, strict=True)) | {codon: CHANGES[codon] for codon in changes}
        starts = species.starts if table == tables[0] else ["ATG", rng.choice(STARTS)]
        files[f"etc/code{table}.tsv"] = _table(code, starts)
    files["etc/letters.tsv"] = "\n".join(
        ["# letter, complement, bases", *(row.replace(" ", "\t") for row in LETTERS), ""]
    )
    files["etc/acids.tsv"] = "\n".join(["# letter, name, mass", *(row.replace(" ", "\t") for row in ACIDS), ""])
    files["etc/motifs.tsv"] = "".join(f"{name}\t{pattern}\n" for name, pattern in species.motifs.items())
    # Nothing reads these.
    files["old/reads.awk"] = variant.outdated(_shaped(READS, shapes)).replace("FNR", "NR")
    files["old/hits.awk"] = variant.outdated(HITS).replace("toupper", "tolower")
    files["old/limits.conf"] = variant.words(LIMITS).replace(f"={species.limits['pass']}\n", "=20\n")
    files |= _Genome.draw(rng, variant, species).files(rng, "example")
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("example/", "runs/", "tubes/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        rows = []
        for names in (("summary", "features", "reads", "hits"), ("proteins", "motifs")):
            for _ in range(DRAWS):
                genome = _Genome.draw(fresh, variant, species)
                if variant.separates(_BY_CHANCE, genome.summary_by):
                    break
            inputs = genome.files(fresh, "run 1")
            command = f'bin/genome "$IN/run 1" {" ".join(names)}'
            rows.append(Check(names[0], command, genome.text(names), inputs))
        return rows

    about = (
        "`bin/genome FOLDER REPORT...` prints reports on sequences and what belongs to them: summary, features, "
        "proteins, motifs, reads and hits, for example `bin/genome example summary hits`. `docs/files.md` describes "
        f"files, tables and reports, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -80", "cat bin/genome docs/files.md etc/*.conf", f"tail -n +1 {names['code']}/*"]
    rows = [(*row[:3], _shaped(row[3], shapes), _shaped(row[4], shapes)) for row in EDITS]
    faults = [
        *variant.edits(rows, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, files, species, tables[1], looks),
    ]
    setup = f"ln -s code{tables[0]}.tsv etc/codons.tsv"
    return Project(about, files, faults, checks, {"bin/genome": 0o755}, setup=setup, fixed=fixed, questions=questions)


def _faults_of_files(
    variant: Variant, files: Mapping[str, str], species: Species, table: int, looks: Sequence[str]
) -> list[Fault]:
    """Return faults of tables, links, and files in the way of others."""
    code, own = variant.names["code"], variant.names["table"]
    stale = Edit(
        "bin/genome",
        variant.text(f'awk -f "$root/{code}/flat.awk" "$folder"/*.fa > "$work/flat.tsv"'),
        f'mkdir -p "$root/cache"\n[ -s "$root/cache/flat.tsv" ] || awk -f "$root/{code}/flat.awk" "$folder"/*.fa '
        '> "$root/cache/flat.tsv"\ncp "$root/cache/flat.tsv" "$work"',
    )
    codon = next(codon for codon in ("ACC", "CCA", "GGA") if codon not in species.starts)
    table_edit = Edit(f"etc/{own}.tsv", f"{codon}\t{species.code[codon]}\t", f"{codon}\tV\t").of_lines(
        files[f"etc/{own}.tsv"]
    )
    return [
        Fault(
            "stale-sequences",
            "Whatever folder it is, the summary has the same sequences.",
            [*looks, "ls cache"],
            f"{stale.undo} && rm -r cache",
            [stale],
            added={"cache/flat.tsv": "old1\tlinear\tACGTTGCATTAGGC\n"},
        ),
        Fault(
            "acid-of-codon",
            "One acid of proteins is another one than in the data base of proteins.",
            [*looks, "cat etc/codons.tsv"],
            table_edit.undo,
            [table_edit],
        ),
        fault_of_command(
            "link-to-other-code",
            "Proteins are those of another species.",
            [*looks, "ls -l etc"],
            f"ln -sf code{table}.tsv etc/codons.tsv",
            f"ln -sf {own}.tsv etc/codons.tsv",
        ),
        file_in_the_way(
            "etc/local.conf",
            variant.words("# Trial\n@shortest_key@=@shortest@4\n@gain_key@=1@gain@\n"),
            [*looks, "ls etc"],
            "Hardly any read counts, and hits have far too many points.",
            "trial-settings",
        ),
        file_in_the_way(
            f"{code}/pathlib.py",
            '"""Paths of the laboratory."""\n\nPATHS = ["/freezer/2", "/freezer/5"]\n',
            looks,
            "It ends with an ImportError, though nobody has changed a program.",
            "laboratory-pathlib",
        ),
        lost_permission("bin/genome"),
    ]


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw logs of runs and lists of tubes, and ask about them."""
    machines = [f"{word}-{rng.randint(10, 99)}" for word in ("mi", "next", "nova", "pro", "seq", "ion", "long", "hi")]
    longest = draw_journal(
        rng,
        files,
        "runs/2025-{:02}.log",
        machines,
        range(500, 90_000),
        lambda month, machine, seconds, run: (
            f"2025-{month:02}-{rng.randint(1, 28):02} {machine} cell={run} seconds={seconds}"
        ),
    )
    tissues = ("blood", "leaf", "root", "skin", "soil")
    rack_of = draw_lists(rng, files, "tubes", "rack", lambda tube: f"{rng.choice(tissues)} {tube}", counts=(18, 30))
    return [
        asked_together([_longest_run(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_rack_of_tube(one, rack_of[one]) for one in rng.sample(sorted(rack_of), ASKED)]),
    ]


def _longest_run(machine: str, cell: str) -> Question:
    command = f"grep -h ' {machine} ' runs/* | sed 's/.*cell=\\(.*\\) seconds=/\\1 /' | sort -k2,2n | tail -1"
    return Question(
        "longest-run-of-machine",
        f"Which cell had the longest run of {machine}, by runs/?",
        cell,
        ["head -3 runs/2025-01.log", f"{command} | cut -d' ' -f1"],
    )


def _rack_of_tube(tube: str, rack: str) -> Question:
    return Question(
        "rack-of-tube",
        f"Which rack is the tube {tube} in, by tubes/?",
        rack,
        [f"grep -r {tube} tubes", f"grep -l ' {tube}$' tubes/* | xargs sed -n 's/^rack //p'"],
    )
