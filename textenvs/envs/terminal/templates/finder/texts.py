"""Files of the template `finder`; what stands between @ is drawn."""

from collections.abc import Mapping, Sequence

MAKEFILE = """# Makes an index of documents. Usage: make -s [DOCS=@texts@] [OUT=out]
DOCS = @texts@
OUT = out
LIB = @lib@
PYTHON = python3 -S -E -X utf8
NAMES = $(wildcard $(DOCS)/*.txt)
PARTS = $(NAMES:$(DOCS)/%.txt=$(OUT)/parts/%.tsv)
# Documents that are newer than their terms, or all of them where something else is.
CHANGED = $(if $(filter-out $(DOCS)/%,$?),$(NAMES),$?)
CODE = $(LIB)/terms.py $(LIB)/words.py $(LIB)/documents.py
TAB = $$(printf '\\t')

.DELETE_ON_ERROR:
.PHONY: all always

all: $(OUT)/index.tsv $(OUT)/facts.tsv $(OUT)/lengths.tsv

@steps@"""

STEP_OF_PARTS = """$(OUT)/terms: $(OUT)/names $(NAMES) $(CODE) etc/stop.txt etc/@folding@
	@mkdir -p $(OUT)/parts
	$(PYTHON) $(LIB)/terms.py $(OUT)/parts $(CHANGED)
	@touch $@

# Is written anew where a document is new or was taken away.
$(OUT)/names: always
	@mkdir -p $(@D)
	@echo $(NAMES) | cmp -s - $@ || echo $(NAMES) > $@
"""

STEP_OF_INDEX = """$(OUT)/index.tsv: $(OUT)/terms $(LIB)/invert.awk
	grep -hv '^#' $(PARTS) | LC_ALL=C sort -t "$(TAB)" -k1,3 -k4,4n | awk -f $(LIB)/invert.awk > $@
"""

STEPS_OF_FACTS = """$(OUT)/facts.tsv: $(OUT)/terms
	grep -h '^#' $(PARTS) | cut -f2- | LC_ALL=C sort > $@

$(OUT)/lengths.tsv: $(OUT)/terms $(LIB)/lengths.awk
	awk -f $(LIB)/lengths.awk $(PARTS) > $@
"""

FIND = """#!/bin/sh
# Answers queries, one a line. Usage: bin/find DOCS OUT FILE
exec python3 -S -E -X utf8 "$(dirname "$0")/../@lib@/find.py" "$@"
"""

TERMS_REPORT = """#!/bin/sh
# Prints the terms that many documents have. Usage: bin/terms OUT
lib=$(dirname "$0")/../@lib@
awk -f "$lib/terms.awk" "$1/index.tsv" |
    LC_ALL=C sort -t "$(printf '\\t')" @order_of_vocabulary@ |
    awk -F '\\t' '{ print @line_of_term@ }'
"""

TAGS_REPORT = """#!/bin/sh
# Prints how many documents have a tag, and the day of the newest one. Usage: bin/tags OUT
awk -f "$(dirname "$0")/../@lib@/tags.awk" "$1/facts.tsv" | LC_ALL=C sort
"""

LETTERS = '''import os
import unicodedata

ETC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "etc")


def lines_of(name):
    """Return the lines of a table, without comments."""
    with open(os.path.join(ETC, name), encoding="utf-8") as file:
        lines = [line.partition("#")[0].strip() for line in file]
    return [line for line in lines if line]


LETTERS = dict(line.split("\\t") for line in lines_of("@folding@"))


def folded(text):
    text = unicodedata.normalize("NFC", text).lower()
    return "".join(LETTERS.get(letter, letter) for letter in text)
'''

WORDS = '''"""Words of texts become terms."""
import re
@letters@

STOP = {folded(word) for line in lines_of("stop.txt") for word in line.split()}


def counts(word):
    """Tell whether a word is a term."""
    if word.isdigit():
        return @numbers_as_words@
    return @shortest_word@ and word not in STOP


def stemmed(word):
    return re.sub(r"@endings@", "", word)


def terms(text):
    """Return the terms of a text, with their places."""
    text = folded(text)
    @hyphens@
    @apostrophes@
    place, result = 0, []
    for word in re.findall(r"\\w+", text):
        if counts(word):
            place += 1
            result.append((place, stemmed(word)))
        @skipped_words@
    return result
'''

DOCUMENTS = '''"""Documents: a head with lines of KEY: VALUE, an empty line, and a body."""
import os
import re
from collections import namedtuple

Document = namedtuple("Document", "name title day tags draft body")

@readers@

def read(path):
    with open(path, encoding="utf-8-sig") as file:
        head, _, body = file.read().partition("\\n\\n")
    values = head_of(head)
    tags = [tag.strip().lower() for tag in values.get("tags", "").split(",") if tag.strip()]
    draft = values.get("status", "").lower() == "draft"
    name = os.path.basename(path).removesuffix(".txt")
    return Document(name, values["title"], day_of(values["date"]), tags, draft, body_of(body))
'''

READER_OF_DAYS = '''
def day_of(text):
    """Return a day such as 2024-05-06; 6.5.2024 is the same."""
    if "." in text:
        date, month, year = text.split(".")
        text = f"{year}-{int(month):02}-{int(date):02}"
    return text
'''

READER_OF_HEADS = r"""
def head_of(text):
    values = {}
    for line in re.sub(r"\n[ \t]+", " ", text).split("\n"):
        key, _, value = line.partition(":")
        values[key.strip().lower()] = value.strip()
    return values
"""

READER_OF_BODIES = r"""
def body_of(text):
    lines = [line for line in text.split("\n") if not line.startswith(">")]
    return re.sub(r"-\n[ \t]*", "", "\n".join(lines))
"""

TERMS = '''"""Writes TERM NAME FIELD PLACE of documents into files, with tabs between them, behind a line of facts."""
import sys

import documents
import words


def lines_of_terms(document):
    yield "#", document.name, document.day, ",".join(document.tags), document.title
    fields = [("title", document.title), ("tags", " ".join(document.tags)), ("body", document.body)]
    for field, text in fields:
        for place, term in words.terms(text):
            yield term, document.name, field, str(place)


def main(folder, *paths):
    for path in paths:
        document = documents.read(path)
        with open(f"{folder}/{document.name}.tsv", "w", encoding="utf-8") as file:
            for line in [] if document.draft else lines_of_terms(document):
                print(*line, sep="\\t", file=file)


main(*sys.argv[1:])
'''

INVERT = r"""# Reads TERM NAME FIELD PLACE, sorted; prints TERM NAME FIELD COUNT PLACES, with tabs between them.
function flush() {
    if (many) print key, many, substr(places, 2)
    many = 0
    places = ""
}
BEGIN { FS = OFS = "\t" }
{
    now = $1 OFS $2 OFS $3
    if (now != key) flush()
    key = now
    many++
    places = places "," $4
}
END { flush() }
"""

LENGTHS = r"""# Prints NAME LENGTH of documents, with a tab between them.
BEGIN { FS = OFS = "\t" }
/^#/ { next }
@length_of_document@ { size[$2]++ }
END { for (name in size) print name, size[name] }
"""

VOCABULARY_BY_ARRAYS = r"""# Prints DOCUMENTS TIMES TERM of the terms that many documents have, with tabs between them.
BEGIN { FS = OFS = "\t" }
{
    if (!(($1, $2) in met)) having[$1]++
    met[$1, $2] = 1
    times[$1] += $4
}
END { for (term in having) if (having[term] >= @often@) print having[term], times[term], term }
"""

VOCABULARY_BY_LINES = r"""# Prints DOCUMENTS TIMES TERM of the terms that many documents have, with tabs between them.
function flush() {
    if (having >= @often@) print having, times, term
    having = times = 0
    name = ""
}
BEGIN { FS = OFS = "\t" }
{
    if ($1 != term) flush()
    if ($2 != name) having++
    term = $1
    name = $2
    times += $4
}
END { flush() }
"""

TAGS = r"""# Reads facts; prints TAG DOCUMENTS NEWEST.
BEGIN { FS = "\t" }
{
    many = split($3, own, ",")
    for (i = 1; i <= many; i++) {
        number[own[i]]++
        if ($2 > newest[own[i]]) newest[own[i]] = $2
    }
}
END { for (tag in number) print tag, number[tag], newest[tag] }
"""

INDEX = '''"""The index that make has made."""
from collections import namedtuple

Facts = namedtuple("Facts", "day tags title")


def rows(path):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\\n").split("\\t") for line in file]


class Index:
    def __init__(self, folder):
        self.postings, self.facts, self.lengths = {}, {}, {}
        for term, name, field, _, places in rows(f"{folder}/index.tsv"):
            fields = self.postings.setdefault(term, {}).setdefault(name, {})
            fields[field] = {int(place) for place in places.split(",")}
        for name, day, tags, title in rows(f"{folder}/facts.tsv"):
            self.facts[name] = Facts(day, tags.split(","), title)
        for name, length in rows(f"{folder}/lengths.tsv"):
            self.lengths[name] = int(length)
'''

QUERY = r'''"""Queries become clauses and filters."""
import re
from collections import namedtuple

import words

Clause = namedtuple("Clause", "excluded field terms begins")
PART = re.compile(r'(-?)(?:(tag|after|before|title|body):)?("[^"]*"|\S+)')


def terms_of(value, begins):
    """Return the terms of a word or a phrase, or what terms begin with."""
    return [(1, words.folded(value[:-1]))] if begins else words.terms(value)


def parse(text):
    clauses, filters = [], []
    for sign, field, value in PART.findall(text):
        value = value.strip('"')
        if field in ("tag", "after", "before"):
            filters.append((field, value))
            continue
        begins = value.endswith("*")
        clause = Clause(sign == "-", field, terms_of(value, begins), begins)
        if clause.terms:
            clauses.append(clause)
    return clauses, filters
'''

MATCHING = '''"""Where clauses are in documents."""


def heads(index, clause):
    """Return the first terms that a clause can have."""
    term = clause.terms[0][1]
    return [other for other in index.postings if other.startswith(term)] if clause.begins else [term]


def follows(index, name, field, place, terms):
    """Tell whether a phrase whose first term is at a place goes on behind it."""
    (start, _), *rest = terms
    for offset, term in rest:
        due = place + offset - start
        places = index.postings.get(term, {}).get(name, {}).get(field, ())
        if not any(@phrase_gap@ for other in places):
            return False
    return True


def occurrences(index, clause):
    """Return how often fields of documents have a clause, by name and field."""
    result = {}
    for term in heads(index, clause):
        for name, fields in index.postings.get(term, {}).items():
            for field, places in fields.items():
                if clause.field not in ("", field):
                    continue
                @count@
                if count:
                    own = result.setdefault(name, {})
                    own[field] = own.get(field, 0) + count
    return result
'''

COUNTS: Sequence[str] = (
    "count = sum(follows(index, name, field, place, clause.terms) for place in places)",
    "count = len([place for place in places if follows(index, name, field, place, clause.terms)])",
)

SIMILAR = '''"""Words that mean the same."""
import words

SIMILAR = {}
for line in words.lines_of("synonyms.tsv"):
    word, _, rest = line.partition("\\t")
    for _, term in words.terms(word):
        SIMILAR[term] = [other for _, other in words.terms(rest)]


def similar(clause):
    """Return the clauses of the synonyms of a word."""
    if clause.begins or len(clause.terms) > 1:
        return []
    place, term = clause.terms[0]
    return [clause._replace(terms=[(place, other)]) for other in SIMILAR.get(term, [])]
'''

RANKING = '''"""Points of documents."""
import json
import os

import words
from matching import occurrences
from similar import similar

with open(os.path.join(words.ETC, "@ranking@.json"), encoding="utf-8") as file:
    WEIGHTS = json.load(file)

@functions@

def hits(index, clause):
    """Return the points that a clause gives to documents, by name."""
    result = {name: points(own) for name, own in occurrences(index, clause).items()}
    synonyms = similar(clause)
    @points_of_synonyms@
    for other in synonyms:
        for name, own in occurrences(index, other).items():
            result[name] = result.get(name, 0) + points(own) // share
    return result
'''

POINTS = """
def damped(count):
    @repeated_words@


def points(own):
    return sum(WEIGHTS[field] * damped(count) for field, count in own.items())
"""

FACTORS = '''
def rarity(total, having):
    """Return the factor of a clause that some of all documents have."""
    return @rarity@


def normalised(score, length):
    return @normalised_score@
'''

FILTERS_BY_CASES = '''"""Filters of queries."""
from documents import day_of


def passes(facts, filters):
    """Tell whether a document has the tags that a query names, and is of its time."""
    begin, end = "0000", "9999"
    for kind, value in filters:
        if kind == "tag" and value.lower() not in facts.tags:
            return False
        if kind == "after":
            begin = day_of(value)
        if kind == "before":
            end = day_of(value)
    return @bounds_of_days@
'''

FILTERS_BY_KIND = '''"""Filters of queries."""
from documents import day_of


def days(filters, kind, default):
    return ([day_of(value) for name, value in filters if name == kind] or [default])[-1]


def passes(facts, filters):
    """Tell whether a document has the tags that a query names, and is of its time."""
    begin, end = days(filters, "after", "0000"), days(filters, "before", "9999")
    if any(kind == "tag" and value.lower() not in facts.tags for kind, value in filters):
        return False
    return @bounds_of_days@
'''

SEARCH = '''"""Searches."""
from collections import Counter

import filters
import query
import ranking
from matching import occurrences


def least(count):
    """Return how many of the clauses of a query a document must have."""
    @needed_clauses@


def order(index, score, name):
    facts = index.facts[name]
    return @order_of_equals@


def search(index, text):
    """Return scores and names of documents, the best first."""
    clauses, limits = query.parse(text)
    chosen = [clause for clause in clauses if not clause.excluded]
    against = [occurrences(index, clause) for clause in clauses if clause.excluded]
    totals, met, results = {}, Counter(), []
    for clause in chosen:
        hits = ranking.hits(index, clause)
        for name, value in hits.items():
            totals[name] = totals.get(name, 0) + value * ranking.rarity(len(index.facts), len(hits))
            met[name] += 1
    if limits and not chosen:
        totals = dict.fromkeys(index.facts, 0)
    for name, total in totals.items():
        if met[name] < least(len(chosen)) or not filters.passes(index.facts[name], limits):
            continue
        score = ranking.normalised(total, index.lengths[name])
        bad = [own[name] for own in against if name in own]
        @excluded_words@
        results.append((score, name))
    results.sort(key=lambda result: order(index, *result))
    @number_of_results@
'''

EXCERPTS = '''"""Excerpts of documents."""
import words


def is_hit(word, clauses):
    """Tell whether a query looks for a word of a text."""
    terms = [term for _, term in words.terms(word)]
    for clause in clauses:
        for _, target in clause.terms:
            if any(term == target or clause.begins and term.startswith(target) for term in terms):
                return True
    return False


def excerpt(body, clauses):
    """Return the words around the first one that a query looks for."""
    text = body.split()
    marks = [place for place, word in enumerate(text) if is_hit(word, clauses)]
    first = marks[0] if marks else 0
    around = @words_around@
    begin, end = max(first - around, 0), first + around + 1
    shown = [@marked_word@ if place in marks else word for place, word in enumerate(text)][begin:end]
    return " ".join(["..."] * (begin > 0) + shown + ["..."] * (end < len(text)))
'''

MAIN = """import sys

import documents
import query
from excerpts import excerpt
from index import Index
from search import search


def queries(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("#")]


def main(folder, out, path):
    index = Index(out)
    for text in queries(path):
        print(f"? {text}")
        results = search(index, text)
        clauses = [clause for clause in query.parse(text)[0] if not clause.excluded]
        if not results:
            print(@nothing@)
        for rank, (score, name) in enumerate(results, start=1):
            facts = index.facts[name]
            print(@line_of_result@)
            print("   ", excerpt(documents.read(f"{folder}/{name}.txt").body, clauses))


main(*sys.argv[1:])
"""

RANKS = """{
  @weight_of_title@,
  "tags": 2,
  "body": 1
}
"""

#: Letters of texts, and what they become.
FOLDING: Mapping[str, str] = {
    "ä": "ae",
    "ö": "oe",
    "ü": "ue",
    "ß": "ss",
    "é": "e",
    "è": "e",
    "å": "a",
    "ç": "c",
    "ñ": "n",
    "ø": "o",
    "’": "'",
}

PAGE = """# Documents and queries

`make` makes an index of the documents of a folder, `bin/find DOCS OUT FILE` answers the queries of a file with it,
`bin/terms OUT` prints the terms that @often@ or more documents have, and `bin/tags OUT` how many documents have a
tag, with the day of the newest one. Documents may be changed, added and taken away between two calls of `make`.

A document is a file in UTF-8, perhaps with a byte order mark and with ends of lines of other systems. Its head has
lines `Title: TEXT`, `Date: 2024-05-06` or `Date: 6.5.2024`, `Tags: ONE, TWO` and perhaps `Status: draft`, with keys
in any case of letters; a line that begins with a space continues the one before. What is behind the first empty line
is the body. A word that a hyphen divides at the end of a line is one word. Lines that begin with `>` are quotations:
they are not searched. Drafts are not in the index. The name of a document is that of its file without `.txt`.

Terms are made of words of letters, digits and `_`: in small letters, with the letters of `etc/@folding@` replaced,
without the words of `etc/stop.txt` (in any case of letters, several a line), and without endings.

A line of queries has words and phrases in double quotes, with spaces between them; a line with `#` is a comment. A
word that becomes several terms is a phrase. `title:WORD` and `body:WORD` are about that field alone, `-WORD`
excludes, `WORD*` is whatever begins like that, with letters replaced and nothing else; `tag:TAG`, `after:DAY` and
`before:DAY` filter, and with filters alone all documents are results that pass. Synonyms of words, not of phrases and
beginnings, are in `etc/synonyms.tsv`: a word, a tab, and words that are looked for as well.

A word or phrase gives a document the sum over its fields of the field's weight (`etc/@ranking@.json`), times how
often the field has it, as far as repetitions count, and all that times a factor for rare ones. The score is the sum
of all, divided with respect to the document's length. The higher score comes first.

Behind a result is an excerpt of the body around the first word that the query looks for (synonyms do not count), or
else around the first word; such words are marked. Points are put where it does not begin or end with the body.
"""
