"""Rules that the programs of the template `finder` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "hyphens",
        "@lib@/words.py",
        "Words with a hyphen are not found as agreed.",
        [
            Option(
                'text = text.replace("-", " ")',
                "A hyphen divides: `cold-start` is the words `cold` and `start`.",
                lambda word: word.split("-"),
            ),
            Option(
                'text = text.replace("-", "")',
                "A hyphen is left out: `cold-start` is the word `coldstart`.",
                lambda word: [word.replace("-", "")],
            ),
            Option(
                'text = text.replace("-", "_")',
                "A hyphen becomes `_`: `cold-start` is the word `cold_start`.",
                lambda word: [word.replace("-", "_")],
            ),
        ],
    ),
    Rule(
        "apostrophes",
        "@lib@/words.py",
        "Words with an apostrophe are not found as agreed.",
        [
            Option(
                'text = re.sub(r"\'\\w*", "", text)',
                "An apostrophe and what is behind it are left out: `miller'sche` is the word `miller`.",
                lambda word: [word.split("'")[0]],
            ),
            Option(
                'text = text.replace("\'", "")',
                "An apostrophe is left out: `miller'sche` is the word `millersche`.",
                lambda word: [word.replace("'", "")],
            ),
            Option(
                'text = text.replace("\'", " ")',
                "An apostrophe divides: `miller'sche` is the words `miller` and `sche`.",
                lambda word: word.split("'"),
            ),
        ],
    ),
    Rule(
        "numbers-as-words",
        "@lib@/words.py",
        "Numbers are not found, or some that should not be.",
        [
            Option("len(word) > 0", "Numbers are terms.", lambda digits: True),
            Option("len(word) > 2", "Numbers of three and more digits are terms, others not.", lambda n: len(n) > 2),
            Option("False", "Numbers are no terms.", lambda digits: False),
            Option("len(word) == 4", "Numbers of four digits are terms, others not.", lambda n: len(n) == 4),
        ],
    ),
    numbers(
        "shortest-word",
        "@lib@/words.py",
        "Short words are not treated as agreed.",
        (2, 3, 4),
        "len(word) >= {}",
        "Words with fewer letters than {} are no terms.",
    ),
    Rule(
        "endings",
        "@lib@/words.py",
        "Other forms of a word are not found, or words that are none.",
        [
            Option("s$", "The ending `s` of a word is left out.", ("s",)),
            Option("(es|s)$", "The ending `es` of a word is left out, or else `s`.", ("es", "s")),
            Option("(ing|s)$", "The ending `ing` of a word is left out, or else `s`.", ("ing", "s")),
            Option("(ed|ing)$", "The endings `ed` and `ing` of a word are left out.", ("ed", "ing")),
        ],
    ),
    Rule(
        "skipped-words",
        "@lib@/words.py",
        "Phrases are found where other words are between theirs, or are not found.",
        [
            Option("else: place += 1", "A word that is no term takes a place in a phrase.", lambda stop: 1),
            Option("else: place += 0", "A word that is no term takes no place in a phrase.", lambda stop: 0),
            Option(
                "else: place += word in STOP",
                "Of the words that are no terms, those of `etc/stop.txt` take a place in a phrase.",
                int,
            ),
        ],
    ),
    Rule(
        "length-of-document",
        "@lib@/lengths.awk",
        "All scores are too high or too low.",
        [
            Option('$3 == "body"', "The length of a document is the number of terms of its body.", ("body",)),
            Option('$3 != "tags"', "The length of a document is the number of terms but tags.", ("title", "body")),
            Option(
                '$3 != ""',
                "The length of a document is the number of all its terms, with those of title and tags.",
                ("title", "tags", "body"),
            ),
        ],
    ),
    numbers(
        "weight-of-title",
        "etc/@ranking@.json",
        "Titles count too much or too little.",
        (3, 4, 6, 8),
        '"title": {}',
        "A word in a title has the weight {}.",
    ),
    Rule(
        "repeated-words",
        "@lib@/ranking.py",
        "A document that repeats a word too often is first, or one that does is last.",
        [
            Option("return count", "Each repetition of a word in a field counts.", lambda count: count),
            Option("return min(count, 3)", "Of a word in a field, up to three repetitions count.", lambda c: min(c, 3)),
            Option("return min(count, 2)", "Of a word in a field, up to two repetitions count.", lambda c: min(c, 2)),
            Option("return (count + 1) // 2", "Of a word in a field, half count, rounded up.", lambda c: (c + 1) // 2),
        ],
    ),
    Rule(
        "rarity",
        "@lib@/ranking.py",
        "Rare words do not count as agreed.",
        [
            Option(
                "total + 1 - having",
                "The factor of a word is the number of documents without it plus 1.",
                lambda total, having: total - having + 1,
            ),
            Option(
                "total // having",
                "The factor of a word is the number of documents, divided by those with it and rounded down.",
                lambda total, having: total // having,
            ),
            Option(
                "1 + 2 * (having < 3)",
                "The factor of a word is 3 where one or two documents have it, and 1 else.",
                lambda total, having: 3 if having <= 2 else 1,
            ),
        ],
    ),
    Rule(
        "normalised-score",
        "@lib@/ranking.py",
        "Long documents have scores that are too high, or short ones.",
        [
            Option(
                "1000 * score // length",
                "A score is 1,000 times the points, divided by the length and rounded down.",
                lambda score, length: 1000 * score // length,
            ),
            Option(
                "1000 * score // (length + 40)",
                "A score is 1,000 times the points, divided by the length plus 40 and rounded down.",
                lambda score, length: 1000 * score // (40 + length),
            ),
            Option(
                "1000 * score // max(length, 60)",
                "A score is 1,000 times the points, divided by the length, or by 60 if that is more, and rounded down.",
                lambda score, length: 1000 * score // (length if length > 60 else 60),
            ),
        ],
    ),
    Rule(
        "needed-clauses",
        "@lib@/search.py",
        "Queries of several words have too many results, or too few.",
        [
            Option("return count", "A document must have all words and phrases of a query.", lambda count: count),
            Option(
                "return min(count, 1)", "A document must have one of the words and phrases of a query.", lambda count: 1
            ),
            Option(
                "return (count + 1) // 2",
                "A document must have half of the words and phrases of a query, rounded up.",
                lambda count: -(-count // 2),
            ),
        ],
    ),
    Rule(
        "excluded-words",
        "@lib@/search.py",
        "Excluded words do not exclude as agreed.",
        [
            Option("if bad: continue", "A document that has an excluded word is no result.", "never"),
            Option(
                'if any("title" in own for own in bad): continue',
                "A document that has an excluded word in its title is no result; elsewhere it makes no difference.",
                "title",
            ),
            Option(
                "score //= 2 if bad else 1",
                "A document that has an excluded word has half of its score, rounded down.",
                "half",
            ),
        ],
    ),
    Rule(
        "order-of-equals",
        "@lib@/search.py",
        "Documents with the same score are in another order than agreed.",
        [
            Option("(-score, name)", "Of equal scores, the names are in the order of letters.", lambda d, size: d.name),
            Option(
                '(-score, -int(facts.day.replace("-", "")), name)',
                "Of equal scores, the newest document is first.",
                lambda d, size: (-d.ordinal, d.name),
            ),
            Option(
                "(-score, facts.day, name)",
                "Of equal scores, the oldest document is first.",
                lambda d, size: (d.ordinal, d.name),
            ),
            Option(
                "(-score, -index.lengths[name], name)",
                "Of equal scores, the longest document is first, then names are in the order of letters.",
                lambda d, size: (-size, d.name),
            ),
        ],
    ),
    numbers(
        "number-of-results",
        "@lib@/search.py",
        "There are too many results, or too few.",
        (3, 4, 5, 6),
        "return results[:{}]",
        "A query has {} results at most.",
    ),
    Rule(
        "bounds-of-days",
        "@lib@/filters.py",
        "Documents of the day that a query names are results, or are not.",
        [
            Option(
                "begin <= facts.day < end",
                "`after:` takes the day itself, `before:` does not.",
                lambda begin, day, end: begin <= day < end,
            ),
            Option(
                "begin <= facts.day <= end",
                "`after:` and `before:` take the day itself.",
                lambda begin, day, end: begin <= day <= end,
            ),
            Option(
                "begin < facts.day < end",
                "`after:` and `before:` do not take the day itself.",
                lambda begin, day, end: begin < day < end,
            ),
            Option(
                "begin < facts.day <= end",
                "`before:` takes the day itself, `after:` does not.",
                lambda begin, day, end: begin < day <= end,
            ),
        ],
    ),
    Rule(
        "phrase-gap",
        "@lib@/matching.py",
        "Phrases have too many results, or too few.",
        [
            Option("other == due", "The terms of a phrase are in the places that they have in the query.", (0, 0)),
            Option(
                "0 <= other - due <= 1",
                "A term of a phrase is in the place that it has in the query, counted from the first, or in the next.",
                (0, 1),
            ),
            Option(
                "abs(other - due) <= 2",
                "A term of a phrase is up to 2 places before or behind the one that it has in the query, counted from "
                "the first.",
                (-2, 2),
            ),
        ],
    ),
    numbers(
        "words-around",
        "@lib@/excerpts.py",
        "Excerpts are too long or too short.",
        (2, 3, 4, 5),
        "around = {}",
        "An excerpt has {} words before and behind the one that was looked for.",
    ),
    Rule(
        "marked-word",
        "@lib@/excerpts.py",
        "The words that somebody looks for are not marked as agreed.",
        [
            Option('f"[{word}]"', "Words in excerpts are marked such as `[word]`.", "[{}]".format),
            Option('f"*{word}*"', "Words in excerpts are marked such as `*word*`.", "*{}*".format),
            Option("word.upper()", "Words in excerpts are marked such as `WORD`.", str.upper),
            Option('f"<b>{word}</b>"', "Words in excerpts are marked such as `<b>word</b>`.", "<b>{}</b>".format),
        ],
    ),
    Rule(
        "line-of-result",
        "@lib@/find.py",
        "The page of results cannot be made of the lines any more.",
        [
            Option(
                'f"{rank}. {name} ({score}): {facts.title}"',
                "A result is printed such as `1. NAME (35): TITLE`, with rank and score.",
                "{0}. {1} ({2}): {3}",
            ),
            Option(
                'f"{score};{rank};{name};{facts.day};{facts.title}"',
                "A result is printed such as `35;1;NAME;2024-05-06;TITLE`: score, rank, name, day and title.",
                "{2};{0};{1};{4};{3}",
            ),
            Option(
                'f"#{rank} {facts.title} [{name}, {score}]"',
                "A result is printed such as `#1 TITLE [NAME, 35]`, with rank and score.",
                "#{0} {3} [{1}, {2}]",
            ),
            Option(
                'f"{facts.day} {name} {facts.title} {rank}/{score}"',
                "A result is printed such as `2024-05-06 NAME TITLE 1/35`, with rank and score at the end.",
                "{4} {1} {3} {0}/{2}",
            ),
        ],
    ),
    Rule(
        "nothing",
        "@lib@/find.py",
        "A query without results is not answered as agreed.",
        [
            Option('"nothing"', "Where there is no result, `nothing` is printed.", "nothing"),
            Option(
                'f"no document has {text}"',
                "Where there is no result, `no document has QUERY` is printed.",
                "no document has {}",
            ),
            Option(
                'f"0 documents: {text}"',
                "Where there is no result, `0 documents: QUERY` is printed.",
                "0 documents: {}",
            ),
            Option('"-"', "Where there is no result, `-` is printed.", "-"),
        ],
    ),
    Rule(
        "points-of-synonyms",
        "@lib@/ranking.py",
        "Synonyms do not count as agreed.",
        [
            Option("share = 1", "A synonym has as many points as the word that a query has.", "full"),
            Option("share = 2", "A synonym has half of the points of a word in that place, rounded down.", "half"),
            Option(
                "share, synonyms = 1, [] if result else synonyms",
                "Synonyms are looked for where no document has the word that a query has, with all points.",
                "otherwise",
            ),
        ],
    ),
    Rule(
        "order-of-vocabulary",
        "bin/terms",
        "The list of terms is in the wrong order.",
        [
            Option(
                "-k1,1nr -k3,3", "`bin/terms` has the terms that most documents have first.", lambda d, t, w: (-d, w)
            ),
            Option("-k2,2nr -k3,3", "`bin/terms` has the terms that are most frequent first.", lambda d, t, w: (-t, w)),
            Option("-k3,3", "`bin/terms` has the terms in the order of letters.", lambda d, t, w: w),
        ],
    ),
    Rule(
        "line-of-term",
        "bin/terms",
        "The list of terms is not printed as agreed.",
        [
            Option(
                '$3 ": " $1 " documents, " $2 " times"',
                "A line of `bin/terms` is such as `cable: 4 documents, 9 times`.",
                "{2}: {0} documents, {1} times",
            ),
            Option(
                '$3 " " $2 "/" $1', "A line of `bin/terms` is such as `cable 9/4`, for 9 in 4 documents.", "{2} {1}/{0}"
            ),
            Option(
                '$1 ";" $2 ";" $3',
                "A line of `bin/terms` is such as `4;9;cable`: documents, times, term.",
                "{0};{1};{2}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "clauses limits chosen against totals met hits begins terms_of heads occurrences follows due places fields "
    "result results folded lines_of counts stemmed place now flush damped rarity normalised synonyms head_of body_of "
    "day_of values marks first around shown queries rank score least having newest own bad"
)
