"""BLEU, against sacreBLEU and NLTK."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.collab_document.bleu import sentence_bleu, tokenize

WORDS = [
    "cat",
    "cat",
    "the mat,",
    "isn't",
    "it?",
    "(3.5-4)",
    "$1,000",
    "&quot;x&quot;",
    "<b>{y}",
    "a/b",
    "7-8 end.",
    "-\n",
]
WORDS += ["~`^_|\\", "é 你", "- \n"]
texts = st.one_of(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join), st.text(max_size=60))


@given(texts, texts)
def test_words_are_sacrebleus(text, reference):
    sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra 'dev'")
    expected = sacrebleu.sentence_bleu(text, [reference]).score / 100
    assert sentence_bleu(text, reference) == pytest.approx(expected, abs=1e-12)


@given(texts)
def test_tokens_are_sacrebleus(text):
    module = pytest.importorskip("sacrebleu.tokenizers.tokenizer_13a", reason="needs the extra 'dev'")
    assert tokenize(text) == module.Tokenizer13a()(text.rstrip()).split()


@given(texts, texts)
@pytest.mark.filterwarnings("ignore:[\\s]*The hypothesis contains 0 counts")
def test_characters_are_nltks(text, reference):
    bleu_score = pytest.importorskip("nltk.translate.bleu_score", reason="needs the extra 'dev'")
    # NLTK has 2.2e-308 for log(0), and so 1e-77 and more where we have 0.
    assert sentence_bleu(text, reference, "characters") == pytest.approx(
        bleu_score.sentence_bleu([reference], text), rel=1e-9, abs=1e-50
    )


@given(texts, texts, st.sampled_from(["words", "characters"]))
def test_it_is_a_score(text, reference, unit):
    assert 0.0 <= sentence_bleu(text, reference, unit) <= 1.0 + 1e-12
    assert sentence_bleu("", reference, unit) == 0.0


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_only_the_reference_itself_is_perfect(unit):
    reference = "Dear guests, our garden party is on Saturday."
    assert sentence_bleu(reference, reference, unit) == pytest.approx(1.0)
    assert 0 < sentence_bleu(reference[:-12], reference, unit) < 0.9
    assert 0 < sentence_bleu(f"{reference} {reference}", reference, unit) < 0.7
    assert sentence_bleu("zzz", reference, unit) == 0.0


def test_the_two_units_are_far_apart():
    """Why a figure of CollabLLM's cannot be compared with sacreBLEU's."""
    text, reference = "The party starts at three in the park.", "Our feast begins at noon near the lake."
    assert sentence_bleu(text, reference, "characters") > 2 * sentence_bleu(text, reference, "words")


def test_a_long_text_takes_no_long_time():
    assert sentence_bleu("lorem ipsum " * 40_000, "dolor sit amet", "words") == 0.0


def test_an_unknown_unit():
    with pytest.raises(ValueError, match="unit must be one of words, characters, not 'chars'"):
        sentence_bleu("a", "a", "chars")
