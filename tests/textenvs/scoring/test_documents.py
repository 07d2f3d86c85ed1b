"""Finding documents, and checking them against requirements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring.documents import last_document, respects, untold_claims


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("Here: <document>\nA\n\nB\n</document> Like it?", "A\n\nB"),
        ("<document>1</document> or <document>2</document>", "2"),
        ("<document>open", None),
        ("</document><document>", None),
        ("<document> \n </document>", None),
        ("<document>draft <document>final</document>", "final"),
        ("no document at all", None),
        ("```\nA\n```", "A"),
        ("```markdown\nA\n```\nand\n~~~\nB\n~~~", "B"),
        ("```python\nprint(", None),
        ("```\nA\n```\n```python\nprint(", "A"),
        ("````\n```\ninner\n```\n````", "```\ninner\n```"),
        ("text ```not a fence``` text", None),
        ("```\n\n```", None),
        ("```\n<document>in a fence</document>\n```", "in a fence"),
    ],
)
def test_what_a_reply_delivers(text, document):
    assert last_document(text) == document


@given(st.text(st.characters(exclude_categories=["Cs"]).filter(lambda c: c not in "<`~")), st.text("ab <>/`\n"))
def test_a_marked_document_is_found(document, around):
    around = around.replace("<", "")
    assert last_document(f"{around}<document>{document}</document>{around}") == (document.strip() or None)


@given(st.text("`~ \nabc<>/dotcumen", max_size=80))
def test_no_text_breaks_it(text):
    document = last_document(text)
    assert document is None or (document and document == document.strip() and document in text)


@pytest.mark.parametrize(
    "text", ["<document>" * 10**5, "</document>" * 10**5, "```\n" * 10**5, "`" * 10**6, "~~~ " * 10**5]
)
def test_a_huge_reply_takes_no_long_time(text):
    last_document(text)


DOCUMENT = "Summer Party\n\nDear guests,\n\nWhen: 5 May\nWhere:  the old\nmill"


@pytest.mark.parametrize(
    ("requirement", "respected"),
    [
        ({"kind": "contains", "texts": ["5 May", "the old mill"]}, True),
        ({"kind": "contains", "texts": ["5 MAY"]}, True),
        ({"kind": "contains", "texts": ["5 May", "6 May"]}, False),
        ({"kind": "contains_one_of", "texts": ["6 May", "5 May"]}, True),
        ({"kind": "contains_one_of", "texts": ["6 May"]}, False),
        ({"kind": "excludes", "texts": ["6 May", "7 May"]}, True),
        ({"kind": "excludes", "texts": ["6 May", "5 May"]}, False),
        ({"kind": "first_line", "texts": ["summer party"]}, True),
        ({"kind": "first_line", "texts": ["Summer"]}, False),
        ({"kind": "order", "texts": ["5 May", "the old mill"]}, True),
        ({"kind": "order", "texts": ["the old mill", "5 May"]}, False),
        ({"kind": "order", "texts": ["5 May", "5 May"]}, False),
        ({"kind": "line", "texts": ["5 may"]}, True),  # behind a label
        ({"kind": "line", "texts": ["Dear guests"]}, False),
        ({"kind": "line", "texts": ["May"]}, False),
        ({"kind": "opens_line", "texts": ["When: 5"]}, True),
        ({"kind": "opens_line", "texts": ["guests"]}, False),
        ({"kind": "max_words", "words": 11}, True),
        ({"kind": "max_words", "words": 10}, False),
    ],
)
def test_requirements(requirement, respected):
    assert len(DOCUMENT.split()) == 11
    assert respects(DOCUMENT, requirement) is respected


def test_a_title_may_be_a_heading():
    assert respects("# **Summer Party**\nx", {"kind": "first_line", "texts": ["Summer Party"]})


@pytest.mark.parametrize(
    "line", ["- **When:** 5 May", "* When: 5 May.", "2. When: `5 May`", "> When: 5 MAY", "When:  5   May"]
)
def test_markup_is_no_part_of_a_line(line):
    assert respects(f"Title\n{line}\nEnd", {"kind": "line", "texts": ["5 May"]})


@pytest.mark.parametrize("line", ["It is on 5 May.", "15 May", "When: 5 May, or 6 May", "Put down 5 May as the time."])
def test_a_copied_sentence_is_no_line(line):
    assert not respects(f"Title\n{line}\nEnd", {"kind": "line", "texts": ["5 May"]})


@pytest.mark.parametrize(
    ("document", "claims"),
    [
        ("Summer Party\nWhen: 5 May, 14:00", []),
        ("Summer Party\n1. When: 5 May\n2. Bring a cake", []),  # numbers of a list
        ("Summer Party\nWhen: 6 May", ["6"]),
        ("Garden Fair\nWhen: 5 May", ["garden fair"]),
        ("Summer Party, Garden Fair, GARDEN FAIR", ["garden fair"]),
        ("Gardens", []),  # a part of a word
        ("Room 12 or 12 or 13", ["12", "13"]),
        ("", []),
    ],
)
def test_untold_claims(document, claims):
    disclosed = 'Call it "Summer Party". It is on 5 May, 14:00. Bring a cake.'
    found_claims = untold_claims(
        document, disclosed, ["Garden Fair", "a cake", "Garden"][: 2 if "Garden" in document else 3]
    )
    assert [claim.lower() for claim in found_claims] == claims


@pytest.mark.parametrize(
    ("document", "claims"),
    [
        ("Summer Party\nWhen: 5 May\n- Bring: a cake.", []),
        ("Summer Party: a title\nWhere we meet", []),  # a first line, and one without a label
        ("Summer Party\nx: on 5 May\nx: 5 May\nx: May", ["x: on 5 May", "x: May"]),
        ("Summer Party\nWhen: 5 May\nAgain: 5 May", ["Again: 5 May"]),
        ("Summer Party\nWhen: 6 May", ["6"]),  # once
        ("Summer Party\nx: 6 May\ny: 6 June", ["6", "y: 6 June"]),
    ],
)
def test_labelled_line_is_fact_or_claim(document, claims):
    disclosed = 'Call it "Summer Party". It is on 5 May. Bring a cake.'
    assert untold_claims(document, disclosed, [], ["5 May", "a cake"]) == claims


@given(st.lists(st.sampled_from(["7", "Fair", "on 7 May", "a cake or 7", "Fair 7", "5 May"]), max_size=8))
def test_labelled_lines_without_facts_are_claims(values):
    """Whatever number or rival it shares with others."""
    document = "\n".join(["Summer Party", *(f"x: {value}" for value in values)])
    claims = untold_claims(document, 'Call it "Summer Party". It is on 5 May.', ["Fair"], ["5 May"])
    assert len(claims) >= len(values) - ("5 May" in values)


@given(st.text("ab1 2\n", max_size=40))
def test_what_was_told_is_no_claim(text):
    assert untold_claims(text, text, [text] if text.strip() else []) == []
