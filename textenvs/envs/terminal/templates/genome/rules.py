"""Rules that the programs of the template `genome` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _rest_of_three(values: list[int], least: int) -> int:
    """Return how many values remain where the last three must have a mean."""
    while len(values) > 2 and sum(values[-3:]) < 3 * least:
        values = values[:-1]
    return len(values)


def _before_bad(values: list[int], least: int) -> int:
    return next((place for place, value in enumerate(values) if value < least), len(values))


def _to_last_good(values: list[int], least: int) -> int:
    return max((place for place, value in enumerate(values, start=1) if value >= least), default=0)


RULES = (
    Rule(
        "title-of-report",
        "bin/genome",
        "The laboratory's pages do not show the reports.",
        [
            Option('"[$report]"', "A report begins with a line such as `[hits]`.", "[{}]".format),
            Option('"== $report =="', "A report begins with a line such as `== hits ==`.", "== {} ==".format),
            Option('"${report^^}"', "A report begins with a line such as `HITS`.", str.upper),
            Option('"# $report"', "A report begins with a line such as `# hits`.", "# {}".format),
        ],
    ),
    Rule(
        "order-of-summary",
        "@functions_file@",
        "The summary cannot be compared with the one of last year.",
        [
            Option(
                "-k2,2nr -k1,1",
                "The summary has the longest sequence first; equal ones are in the order of names.",
                lambda row: (-row[1], row[0]),
            ),
            Option("-k1,1 -k2,2", "The summary is in the order of names.", lambda row: row[0]),
            Option(
                "-k3,3n -k1,1",
                "The summary has the lowest share of G and C first; equal ones are in the order of names.",
                lambda row: (row[2], row[0]),
            ),
            Option(
                "-k4,4nr -k1,1",
                "The summary has the sequence with most unclear letters first; equal ones are in the order of names.",
                lambda row: (-row[3], row[0]),
            ),
        ],
    ),
    Rule(
        "repeated-sequence",
        "@code@/flat.awk",
        "A sequence that was sent again has the wrong letters.",
        [
            Option("if (name in shapes) return", "Of several sequences with one name, the first counts.", "first"),
            Option('if (text == "") return', "Of several sequences with one name, the last counts.", "last"),
            Option(
                "if (name in shapes && length(letters[name]) >= length(text)) return",
                "Of several sequences with one name, the longest counts.",
                "longest",
            ),
        ],
    ),
    Rule(
        "masked-letters",
        "@code@/flat.awk",
        "Sequences with small letters are not read as agreed.",
        [
            Option("$0 = toupper($0)", "Small letters of sequences are the same as capital ones.", str.upper),
            Option(
                'gsub(/[a-z]/, "N")',
                "Small letters of sequences are masked: all of them are read as `N`.",
                lambda text: "".join("N" if letter.islower() else letter for letter in text),
            ),
            Option(
                'gsub(/[a-z]/, "")',
                "Small letters of sequences are left out.",
                lambda text: "".join(letter for letter in text if not letter.islower()),
            ),
        ],
    ),
    Rule(
        "share-of-what",
        "@code@/sizes.awk",
        "The shares of G and C are too low, or too high.",
        [
            Option("whole = size", "The share of G and C is one of all letters.", lambda text: len(text)),
            Option(
                "whole = size - masked",
                "The share of G and C is one of all letters but `N`.",
                lambda text: len(text) - text.count("N"),
            ),
            Option(
                "whole = strong + weak",
                "The share of G and C is one of the letters A, C, G and T.",
                lambda text: sum(map(text.count, "ACGT")),
            ),
        ],
    ),
    Rule(
        "rounded-share",
        "@code@/sizes.awk",
        "Some shares differ by a tenth from those of the other laboratory.",
        [
            Option("share = int(1000 * strong / whole)", "Shares are rounded down to tenths.", lambda a, b: a // b),
            Option(
                "share = int((2000 * strong + whole) / (2 * whole))",
                "Shares are rounded to the nearest tenth, a half up.",
                lambda a, b: (2 * a + b) // (2 * b),
            ),
            Option(
                "share = int((1000 * strong + whole - 1) / whole)",
                "Shares are rounded up to tenths.",
                lambda a, b: -(-a // b),
            ),
        ],
    ),
    Rule(
        "middle-length",
        "@code@/middle.awk",
        "The middle length is not the one that was agreed.",
        [
            Option(
                f"if (sum * {below} >= total * {above})",
                f"Sequences of the middle length and longer ones have at least {share} % of all letters.",
                (above, below),
            )
            for share, above, below in ((50, 1, 2), (75, 3, 4), (90, 9, 10))
        ],
    ),
    Rule(
        "listed-types",
        "@code@/features.py",
        "Features are listed that should not be, or the other way round.",
        [
            *(
                Option(
                    f'feature.kind != "{name}"',
                    f"`features` lists all types but `{name}`.",
                    lambda kind, name=name: kind != name,
                )
                for name in ("repeat", "gene", "nc rna")
            ),
            Option('feature.kind == "cds"', "`features` lists the type `cds` alone.", lambda kind: kind == "cds"),
        ],
    ),
    Rule(
        "printed-coordinates",
        "@code@/features.py",
        "The genome browser shows other places than those of the features.",
        [
            Option(
                'f"{start + 1}-{end + 1}"',
                "Places of features are printed such as `11-20`: counted from 1, with the last position.",
                lambda start, end, size: f"{start + 1}-{end + 1}",
            ),
            Option(
                'f"{start}..{end}"',
                "Places of features are printed such as `10..19`: counted from 0, with the last position.",
                lambda start, end, size: f"{start}..{end}",
            ),
            Option(
                'f"{start}-{end + 1}"',
                "Places of features are printed such as `10-20`: counted from 0, with the position behind the last.",
                lambda start, end, size: f"{start}-{end + 1}",
            ),
            Option(
                'f"{start + 1}+{size}"',
                "Places of features are printed such as `11+10`: counted from 1, with the length of all parts.",
                lambda start, end, size: f"{start + 1}+{size}",
            ),
        ],
    ),
    Rule(
        "marked-overlaps",
        "@code@/features.py",
        "Features are marked that should not be, or the other way round.",
        [
            Option(
                "return one.strand == other.strand",
                "Features that overlap are marked where they are on the same strand.",
                lambda one, other: one.strand == other.strand,
            ),
            Option(
                "return one.kind == other.kind",
                "Features that overlap are marked where they have the same type.",
                lambda one, other: one.kind == other.kind,
            ),
            Option("return True", "All features that overlap are marked.", lambda one, other: True),
        ],
    ),
    Rule(
        "first-codon",
        "@codons_file@",
        "The first acid of some proteins is not the one that was agreed.",
        [
            Option(
                'acids[0] = "M" if codons[0] in STARTS else acids[0]',
                "A first codon that is marked as a start is M.",
                lambda acid, start: "M" if start else acid,
            ),
            Option('acids[0] = "M"', "The first codon is always M.", lambda acid, start: "M"),
            Option(
                "acids[0] = acid_of(codons[0])",
                "The first codon is translated as all others are.",
                lambda acid, start: acid,
            ),
        ],
    ),
    Rule(
        "stop-codon",
        "@codons_file@",
        "Proteins end in the wrong place.",
        [
            Option(
                'protein.partition("*")[0]',
                "A protein ends before its first stop.",
                lambda protein: protein.split("*")[0],
            ),
            Option(
                '"".join(protein.partition("*")[:2])',
                "A protein ends with its first stop, which is printed as `*`.",
                lambda protein: protein[: protein.find("*") + 1] or protein,
            ),
            Option(
                'protein.removesuffix("*")',
                "A stop at the very end of a protein is left out; others are printed as `*`, and it goes on.",
                lambda protein: protein[:-1] if protein[-1] == "*" else protein,
            ),
        ],
    ),
    Rule(
        "ambiguous-codon",
        "@codons_file@",
        "Codons with unclear letters are not translated as agreed.",
        [
            Option(
                'return acids.pop() if len(acids) == 1 else "X"',
                "A codon with unclear letters is the acid of all codons that it may be, or X where these differ.",
                lambda acids: acids[0] if len(acids) == 1 else "X",
            ),
            Option('return "X"', "A codon with unclear letters is X.", lambda acids: "X"),
            Option(
                "return min(acids)",
                "A codon with unclear letters is the acid of a codon that it may be: the first in ASCII order.",
                lambda acids: acids[0],
            ),
        ],
    ),
    Rule(
        "surplus-letters",
        "@codons_file@",
        "The ends of proteins without a stop are not as agreed.",
        [
            Option('"X" * (surplus > 0)', "One or two letters at the end, too few for a codon, are one X.", "01"),
            Option('"X" * surplus', "One or two letters at the end, too few for a codon, are an X each.", "012"),
            Option('"" * surplus', "One or two letters at the end, too few for a codon, are left out.", ""),
        ],
    ),
    Rule(
        "mass-of-protein",
        "@code@/proteins.py",
        "Masses of proteins are wrong.",
        [
            Option(
                "return total - 1802 * (len(plain) - 1)",
                "The mass of a protein is the sum of its acids, less 18.02 for each bond between two of them.",
                lambda count: count - 1,
            ),
            Option("return total", "The mass of a protein is the sum of its acids.", lambda count: 0),
            Option(
                "return total - 1802 * len(plain)",
                "The mass of a protein is the sum of its acids, less 18.02 for each of them.",
                lambda count: count,
            ),
        ],
    ),
    Rule(
        "protein-line",
        "@code@/proteins.py",
        "The program that folds proteins does not read them.",
        [
            Option(
                'yield f"{feature.id} {weight} {protein}"',
                "A protein is printed such as `ID 1234.56 MKV`.",
                lambda id, weight, protein: [f"{id} {weight} {protein}"],
            ),
            *(
                Option(
                    f'yield f">{{feature.id}} {{weight}}"\n        for place in range(0, len(protein), {width}):\n'
                    f"            yield protein[place : place + {width}]",
                    f"A protein is printed as `>ID 1234.56`, and lines of {width} letters.",
                    lambda id, weight, protein, width=width: [
                        f">{id} {weight}",
                        *(protein[start : start + width] for start in range(0, len(protein), width)),
                    ],
                )
                for width in (20, 30)
            ),
            Option(
                'yield f"{protein};{weight};{feature.id}"',
                "A protein is printed such as `MKV;1234.56;ID`.",
                lambda id, weight, protein: [f"{protein};{weight};{id}"],
            ),
        ],
    ),
    Rule(
        "letters-that-fit",
        "@code@/motifs.py",
        "Motifs are missing where letters are unclear, or some are wrong.",
        [
            Option(
                "return BASES[letter] <= BASES[wish]",
                "A letter of a sequence fits where all bases that it may be fit the pattern.",
                lambda letter, wish: all(base in wish for base in letter),
            ),
            Option(
                "return bool(BASES[letter] & BASES[wish])",
                "A letter of a sequence fits where one base that it may be fits the pattern.",
                lambda letter, wish: any(base in wish for base in letter),
            ),
            Option(
                "return letter in BASES[wish]",
                "Letters of a sequence that are no A, C, G or T fit no pattern.",
                lambda letter, wish: letter in [*wish],
            ),
        ],
    ),
    Rule(
        "hits-apart",
        "@code@/motifs.py",
        "There are too many hits of motifs that repeat themselves, or too few.",
        [
            Option("place += 1", "Hits of a motif may overlap.", lambda size: 1),
            Option(
                "place += len(pattern) if hit else 1",
                "Hits of a motif on a strand do not overlap: the first one counts, by its position.",
                lambda size: size,
            ),
            Option(
                "place += len(pattern) + 3 if hit else 1",
                "Between hits of a motif on a strand are three letters at least: the first counts, by its position.",
                lambda size: size + 3,
            ),
        ],
    ),
    Rule(
        "strands-of-palindromes",
        "@code@/motifs.py",
        "Sites that are the same on both strands are not listed as agreed.",
        [
            Option('strands = "+-"', "A motif that is the same on both strands is listed for both.", "+-"),
            Option(
                'strands = "+" if reverse(pattern) == pattern else "+-"',
                "A motif that is the same on both strands is listed for `+` alone.",
                "+",
            ),
            Option(
                'strands = "-" if reverse(pattern) == pattern else "+-"',
                "A motif that is the same on both strands is listed for `-` alone.",
                "-",
            ),
        ],
    ),
    Rule(
        "trimmed-end",
        "@code@/reads.awk",
        "Reads are cut in the wrong places.",
        [
            Option(
                "while (last > 0 && value(last) < least) last--",
                "Bad letters at the end of a read are cut off, up to the first one that is not bad.",
                _to_last_good,
            ),
            Option(
                "for (i = 1; i <= last; i++) if (value(i) < least) last = i - 1",
                "A read ends before its first bad letter.",
                _before_bad,
            ),
            Option(
                "while (last > 2 && value(last) + value(last - 1) + value(last - 2) < 3 * least) last--",
                "While the mean quality of a read's last three letters is that of a bad one, its last one is cut off.",
                _rest_of_three,
            ),
        ],
    ),
    numbers(
        "unclear-letters",
        "@code@/reads.awk",
        "Too many reads are dropped, or too few.",
        (0, 1, 2, 3),
        "{}) next",
        "A read with more than {} letters `N`, after it is cut, does not count.",
    ),
    Rule(
        "equal-reads",
        "@code@/reads.awk",
        "Reads with the same letters are not treated as agreed.",
        [
            Option("key = NR", "All reads count, also where letters are the same.", "all"),
            Option("key = text", "Of reads with the same letters, after they are cut, the last counts.", "last"),
            Option(
                "key = text; if (key in lines) next",
                "Of reads with the same letters, after they are cut, the first counts.",
                "first",
            ),
        ],
    ),
    Rule(
        "identity-of-what",
        "@code@/hits.awk",
        "The identities of hits are too high, or too low.",
        [
            Option("whole = plain", "The identity is a share of the pairs of letters, without gaps.", "plain"),
            Option("whole = length(upper)", "The identity is a share of all columns, with gaps.", "all"),
            Option(
                'whole = length(upper) - gsub(/-/, "-", upper)',
                "The identity is a share of the letters of the query in the alignment.",
                "query",
            ),
            Option(
                'whole = length(lower) - gsub(/-/, "-", lower)',
                "The identity is a share of the letters of the target in the alignment.",
                "target",
            ),
        ],
    ),
    Rule(
        "gap-count",
        "@code@/hits.awk",
        "The gaps of hits are not counted as agreed.",
        [
            Option(
                'if (kind != "" && kind != before) gaps++',
                "Neighbouring gaps in one of the two sequences are one gap.",
                lambda kinds: sum(kind not in ("=", old) for old, kind in zip(f"={kinds}", kinds, strict=False)),
            ),
            Option(
                'if (kind != "") gaps++',
                "Each `-` is a gap.",
                lambda kinds: len(kinds) - kinds.count("="),
            ),
            Option(
                'if (kind != "" && before == "") gaps++',
                "Neighbouring gaps are one gap, in whichever of the two sequences they are.",
                lambda kinds: len(kinds.replace("u", "d").replace("=", " ").split()),
            ),
        ],
    ),
)

IDENTIFIERS = (
    "names count shapes form strong weak masked share sizes total often longest marks last place signs value figure "
    "lines one other kind plain same gaps whole score query target upper lower best turned twice joined "
    "first begin listed marked coding surplus acids hit searched around wish fits places acid_of translated "
    "weight phase_of letters_of overlap"
)
