"""Files of the template `genome`; what stands between @ is drawn, and between << and >> stands a drawn shape."""

GENOME = r"""#!/bin/bash
# Prints reports on a folder: summary, features, proteins, motifs, reads, hits. Usage: bin/genome FOLDER REPORT...
set -eu
export LC_ALL=C
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/etc/@limits@.conf"
[ ! -f "$root/etc/local.conf" ] || . "$root/etc/local.conf"
folder=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -f "$root/@code@/flat.awk" "$folder"/*.fa > "$work/flat.tsv"
<<steps>>

for report in "$@"; do
    echo @title_of_report@
    "show_$report"
done
"""

STEPS = r"""show_summary() {
    awk -f "$root/@code@/sizes.awk" "$work/flat.tsv" > "$work/sizes.tsv"
    sort -t $'\t' @order_of_summary@ "$work/sizes.tsv" | awk -F '\t' '{ print $1, $2, $3 / 10 "%", $4, $5 }'
    awk -f "$root/@code@/middle.awk" "$work/sizes.tsv"
}

show_reads() {
    awk -v offset="$@offset_key@" -v least="$@least_key@" -v pass="$@pass_key@" -v shortest="$@shortest_key@" \
        -v adapter="$@adapter_key@" -f "$root/@code@/reads.awk" "$folder"/*.fq
}

show_hits() {
    awk -v gain="$@gain_key@" -v loss="$@loss_key@" -v cost="$@cost_key@" \
        -f "$root/@code@/hits.awk" "$folder"/*.aln | sort -k1,1
}

show_features() { in_python features; }
show_proteins() { in_python proteins; }
show_motifs() { in_python motifs; }

in_python() {
    python3 -S -E -X utf8 "$root/@code@/main.py" "$folder" "$work/flat.tsv" "$1"
}"""

FLAT = r"""# Joins the lines of sequences. Prints NAME, SHAPE (linear or circular) and LETTERS.
function finish() {
    if (name == "") return
    @repeated_sequence@
    if (!(name in shapes)) names[++count] = name
    shapes[name] = form
    letters[name] = text
}
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
/^;/ || /^[ \t]*$/ { next }
/^>/ {
    finish()
    name = substr($1, 2)
    text = ""
    <<form>>
    next
}
{
    gsub(/[ \t0-9]/, "")
    @masked_letters@
    gsub(/U/, "T")
    text = text $0
}
END {
    finish()
    for (i = 1; i <= count; i++) print names[i], shapes[names[i]], letters[names[i]]
}
"""

FORMS = (
    'form = ($2 == "circular") ? "circular" : "linear"',
    'form = "linear"\n    if ($2 == "circular") form = $2',
)

SIZES = r"""# Prints NAME, LENGTH, SHARE of G and C of 1,000, NUMBER of unclear letters, and SHAPE.
BEGIN { FS = OFS = "\t" }
{
    text = $3
    strong = gsub(/[GC]/, "&", text)
    weak = gsub(/[AT]/, "&", text)
    masked = gsub(/N/, "&", text)
    size = length(text)
    @share_of_what@
    @rounded_share@
    print $1, size, share, size - strong - weak, $2
}
"""

#: Two ways to put lengths into order.
MIDDLES = (
    r"""# Prints the middle length, from NAME and LENGTH.
BEGIN { FS = "\t" }
{
    total += $2
    for (i = NR; i > 1 && sizes[i - 1] < $2; i--) sizes[i] = sizes[i - 1]
    sizes[i] = $2
}
END {
    for (i = 1; i <= NR; i++) {
        sum += sizes[i]
        @middle_length@ break
    }
    print "middle", sizes[i]
}
""",
    r"""# Prints the middle length, from NAME and LENGTH.
BEGIN { FS = "\t" }
{
    total += $2
    often[$2 + 0]++
    if ($2 + 0 > longest) longest = $2 + 0
}
END {
    for (i = longest; i > 0; i--) {
        sum += i * often[i]
        @middle_length@ break
    }
    print "middle", i
}
""",
)

READS = r"""# Cuts and filters reads, of four lines: @NAME, letters, + and signs of quality. Prints NAME LENGTH QUALITY.
<<value>>
{ sub(/\r$/, "") }
FNR % 4 == 1 { name = substr($1, 2) }
FNR % 4 == 2 { text = toupper($0) }
FNR % 4 == 0 {
    total++
    marks = $0
    last = length(text)
    place = index(text, adapter)
    if (place) last = place - 1
    @trimmed_end@
    text = substr(text, 1, last)
    if (last < shortest) next
    if (gsub(/N/, "N", text) > @unclear_letters@
    sum = 0
    for (i = 1; i <= last; i++) sum += value(i)
    figure = int(sum / last)
    if (figure < pass) next
    @equal_reads@
    if (!(key in lines)) keys[++count] = key
    lines[key] = name " " last " " figure
}
END {
    for (i = 1; i <= count; i++) print lines[keys[i]]
    print count + 0 " of " total + 0
}
"""

VALUES = (
    r"""BEGIN { for (i = offset; i < 127; i++) signs = signs sprintf("%c", i) }
function value(place) {
    return index(signs, substr(marks, place, 1)) - 1
}""",
    r"""BEGIN { for (i = offset; i < 127; i++) signs[sprintf("%c", i)] = i - offset }
function value(place) {
    return signs[substr(marks, place, 1)]
}""",
)

HITS = r"""# Prints the best hit of every query, from alignments: QUERY TARGET IDENTITY% GAPS SCORE.
function finish(    i, one, other, kind, before, plain, same, gaps, whole, score) {
    if (query == "") return
    for (i = 1; i <= length(upper); i++) {
        one = substr(upper, i, 1)
        other = substr(lower, i, 1)
        kind = ""
        if (one == "-") kind = "up"
        if (other == "-") kind = "down"
        if (kind == "") plain++
        if (one == other && one != "N") same++
        @gap_count@
        before = kind
    }
    @identity_of_what@
    score = same * gain - (plain - same) * loss - gaps * cost
    if (!(query in best) || score > best[query]) {
        best[query] = score
        lines[query] = query " " target " " int(100 * same / whole) "% " gaps + 0 " " score
    }
    query = upper = lower = ""
}
FNR == 1 { finish() }
{ sub(/\r$/, "") }
/^[ \t]*$/ { finish() }
$1 == "Q" { query = $2; upper = upper toupper($3) }
$1 == "T" { target = $2; lower = lower toupper($3) }
END {
    finish()
    for (query in lines) print lines[query]
}
"""

MAIN = r'''"""Prints a report in Python. Usage: main.py FOLDER FLAT REPORT"""
import sys
from pathlib import Path

import features
import motifs
import proteins
import tables


def main(folder, flat, name):
    sequences = tables.sequences(flat)
    annotations = tables.annotations(Path(folder), sequences)
    module = {"features": features, "proteins": proteins, "motifs": motifs}[name]
    for line in module.report(annotations, sequences):
        print(line)


main(*sys.argv[1:])
'''

TABLES = r'''"""Sequences, annotations, and tables of etc/."""
from collections import namedtuple
from pathlib import Path

ETC = Path(__file__).resolve().parent.parent / "etc"

Part = namedtuple("Part", "start end phase")


class Feature:
    def __init__(self, id, sequence, kind, strand):
        self.id, self.sequence, self.kind, self.strand = id, sequence, kind, strand
        self.parts = []


def rows(path):
    """Yield the fields of a table's lines."""
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield [field.strip() for field in line.split("\t")]


def sequences(flat):
    """Return shapes and letters, by name."""
    return {name: (shape, letters) for name, shape, letters in rows(flat)}


def annotations(folder, sequences):
    """Return the features of a folder's tables."""
    features = {}
    for path in sorted(folder.glob("*.ann")):
        base = 1
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("#base"):
                base = int(line.split()[1])
            if not line.strip() or line.startswith("#"):
                continue
            id, sequence, kind, start, end, strand, phase = [field.strip() for field in line.split("\t")][:7]
            if sequence not in sequences:
                continue
            begin, end = int(start) - base, int(end)
            if begin >= end:
                end += len(sequences[sequence][1])
            feature = features.setdefault(id, Feature(id, sequence, kind, strand))
            feature.parts.append(Part(begin, end, int(phase) if phase != "." else 0))
    for feature in features.values():
        feature.parts.sort()
    return list(features.values())
'''

#: Functions of strands.py, which stand there in a drawn order.
STRANDS = '''"""Strands of sequences, and parts of them."""
from tables import ETC, rows

COMPLEMENTS = {letter: other for letter, other, _ in rows(ETC / "letters.tsv")}
BASES = {letter: set(bases) for letter, _, bases in rows(ETC / "letters.tsv")}
'''

STRAND_FUNCTIONS = (
    '''

def reverse(letters):
    """Return the letters of the other strand."""
    turned = letters[::-1]
    <<reverse>>
''',
    '''

def letters_of(feature, sequences):
    """Return the letters of a feature, in the direction of its strand."""
    shape, text = sequences[feature.sequence]
    twice = text + text
    joined = "".join(twice[part.start : part.end] for part in feature.parts)
    return reverse(joined) if feature.strand == "-" else joined
''',
    '''

def phase_of(feature):
    """Return how many letters stand before the first codon."""
    first = feature.parts[-1] if feature.strand == "-" else feature.parts[0]
    return first.phase
''',
    """

def positions(feature, sequences):
    size = len(sequences[feature.sequence][1])
    return {place % size for part in feature.parts for place in range(part.start, part.end)}
""",
)

REVERSES = (
    'return "".join(COMPLEMENTS[letter] for letter in turned)',
    "return turned.translate({ord(letter): other for letter, other in COMPLEMENTS.items()})",
)

FEATURES = '''"""The report `features`."""
from strands import positions


def overlap(one, other, sequences):
    if one.sequence != other.sequence or not positions(one, sequences) & positions(other, sequences):
        return False
    @marked_overlaps@


def report(annotations, sequences):
    listed = [feature for feature in annotations if @listed_types@]
    for feature in sorted(listed, key=lambda one: (one.sequence, one.parts[0].start, one.id)):
        whole = len(sequences[feature.sequence][1])
        size = sum(part.end - part.start for part in feature.parts)
        start, end = feature.parts[0].start, (feature.parts[-1].end - 1) % whole
        place = @printed_coordinates@
        marked = any(other is not feature and overlap(feature, other, sequences) for other in annotations)
        yield f"{feature.id} {feature.kind} {feature.sequence}:{place} {feature.strand} {size}{' !' * marked}"
'''

PROTEINS = '''"""The report `proteins`."""
<<imports>>


def mass(protein):
    """Return the mass in hundredths, as those of the table are."""
    plain = protein.replace("*", "")
    total = sum(MASSES[acid] for acid in plain)
    @mass_of_protein@


def report(annotations, sequences):
    coding = [feature for feature in annotations if feature.kind == "cds"]
    for feature in sorted(coding, key=lambda one: one.id):
        letters = letters_of(feature, sequences)
        protein = translated(letters[phase_of(feature) :])
        weight = mass(protein)
        weight = f"{weight // 100}.{weight % 100:02}"
        @protein_line@
'''

#: Where the next functions stand in codons.py: imports of proteins.py, and of codons.py.
APART = (
    """from codons import translated
from strands import letters_of, phase_of
from tables import ETC, rows

MASSES = {letter: int(mass) for letter, _, mass in rows(ETC / "acids.tsv")}""",
    """from itertools import product

from strands import BASES
from tables import ETC, rows
""",
)

#: Where they stand in proteins.py.
TOGETHER = """from itertools import product

from strands import BASES, letters_of, phase_of
from tables import ETC, rows

MASSES = {letter: int(mass) for letter, _, mass in rows(ETC / "acids.tsv")}
"""

CODONS = '''CODONS = {codon: acid for codon, acid, _ in rows(ETC / "codons.tsv")}
STARTS = {codon for codon, _, mark in rows(ETC / "codons.tsv") if mark == "start"}


def acid_of(codon):
    if codon in CODONS:
        return CODONS[codon]
    acids = {CODONS["".join(plain)] for plain in product(*(BASES[letter] for letter in codon))}
    @ambiguous_codon@


def translated(letters):
    """Return the protein of coding letters."""
    size = len(letters) // 3 * 3
    codons = [letters[place : place + 3] for place in range(0, size, 3)]
    acids = [acid_of(codon) for codon in codons]
    @first_codon@
    surplus = len(letters) - size
    protein = "".join(acids) + @surplus_letters@
    return @stop_codon@'''

MOTIFS = '''"""The report `motifs`."""
from strands import BASES, reverse
from tables import ETC, rows


def fits(letter, wish):
    @letters_that_fit@


def places(text, pattern):
    """Return where a pattern fits."""
    place, places = 0, []
    while place + len(pattern) <= len(text):
        hit = all(fits(text[place + i], wish) for i, wish in enumerate(pattern))
        if hit:
            places.append(place)
        @hits_apart@
    return places


def report(annotations, sequences):
    for name, (shape, text) in sequences.items():
        for motif, pattern in rows(ETC / "motifs.tsv"):
            around = text + text[: len(pattern) - 1] if shape == "circular" else text
            @strands_of_palindromes@
            for strand in strands:
                searched = pattern if strand == "+" else reverse(pattern)
                hits = [str(place + 1) for place in places(around, searched)]
                if hits:
                    yield f"{name} {motif}{strand} {' '.join(hits)}"
'''

LIMITS = """# Reads.
@offset_key@=@offset@
@least_key@=@least@
@pass_key@=@pass@
@shortest_key@=@shortest@
@adapter_key@=@adapter@
# Hits.
@gain_key@=@gain@
@loss_key@=@loss@
@cost_key@=@cost@
"""

FORMATS = """# Files of a folder

- `*.fa`: sequences. `>NAME circular` and any other words, or without `circular` for a linear one; then lines of
  letters, in which spaces and numbers of letters do not count. `;` begins a comment. `U` is read as `T`.
- `*.ann`: ID, sequence, type, start, end, strand, phase and notes, with tabs between them. Positions count from 1, and
  the end belongs to the feature; behind `#base 0`, until the end of the file, they count from 0, and the
  end is the first position that does not belong to it. Lines with one ID are parts of one feature, in any order.
  On a circular sequence, a part that ends before its start goes over the origin. The phase is
  the number of letters, in the direction of the strand, before the first codon of a part, `.` for 0; that of the
  feature's first part counts. Features of sequences that are not there are left out.
- `*.fq`: reads of four lines. The last one of a file may be incomplete; it does not count. Small letters are the same.
- `*.aln`: alignments, with empty lines between them; a file ends one, too. Lines `Q NAME LETTERS` are of the query,
  `T NAME LETTERS` of the target, and an alignment may have several of both. Small letters are the same as capital ones.

# Tables in etc

- `codons.tsv` is a link to the code that we use: @table@.tsv, the standard code, but for @changes@. Others are
  for other species.
- `letters.tsv`: the usual letters for bases, their complements, and the bases that they may be.
- `acids.tsv`: letter, name and mass, in hundredths.
- `motifs.tsv`: names and patterns, in the letters of `letters.tsv`. They are searched on both strands, and those over
  the origin of a circular sequence are hits as well.
- `@limits@.conf`: limits for reads, and scores of hits. `@offset_key@` is the number of the sign for the quality 0;
  that of our machine is @offset_sign@, number @offset@. The adapter, which is @adapter@, and all letters behind it are
  not of the read. After it is cut, a read has at least @shortest@ letters, and a mean quality, rounded down, of at
  least @pass@. Letters below @least@ are bad. `local.conf` is for trials, and is not there usually.

# Reports

- `summary`: name, length, share of G and C, number of letters that are no A, C, G, T, and shape; then the middle
  length.
- `features`: ID, type, sequence and place, strand, length of all parts, and `!` for overlaps: parts have a position in
  common, on the same sequence. The order is that of sequences, starts and IDs.
- `proteins`: of type `cds`, by ID, with their masses.
- `motifs`: the first position of hits, from 1, on the forward strand.
- `reads`: name, length and mean quality. `hits`: query, target, identity in per cent, gaps, score; the best hit of a
  query, or the first of several. A letter that is the same is @gain@ points, another one is @loss@ less, and a gap
  is @cost@ less. `N` is never the same.
"""
