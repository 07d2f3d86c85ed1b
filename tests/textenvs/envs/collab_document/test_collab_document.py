"""The score of a document: the share of what was told that it has, without false claims."""

import numpy as np
import pytest

import textenvs
from textenvs.envs.collab_document.bleu import sentence_bleu
from textenvs.envs.collab_document.tasks import _CONTENT, FAMILY

LEVELS = ("easy", "medium", "hard")


def rng():
    return np.random.default_rng(0)


def after_full_disclosure(index=0, **options):
    """Return an episode in which the user has told everything."""
    env = textenvs.make("textenv/collab-document", **options)
    env.reset(seed=0, options={"task_index": index})
    while env.user.untold(env.state.memory):
        env.step(env.demonstration(rng()))
    return env


def score(env, document):
    return env.step(f"<document>\n{document}\n</document>")[-1]["metrics"]["score"]


def test_kinds_of_documents_by_split():
    kinds = {kind["name"] for kind in _CONTENT["kinds"]}
    assert len(kinds) >= 10
    drawn = {
        split: {FAMILY.reader.generated("easy", split, 0)[index].extra["kind"] for index in range(200)}
        for split in ("train", "test")
    }
    assert drawn["train"] | drawn["test"] == kinds
    assert not drawn["train"] & drawn["test"]
    assert len(drawn["test"]) >= 3


@pytest.mark.parametrize("level", LEVELS)
def test_faithful_document_in_other_words_scores_one(level):
    """Labels, stock sentences and blank lines are not required."""
    for index in range(20):
        env = after_full_disclosure(index, level=level)
        values = [line.split(": ", 1)[1] for line in env.state.task.ground_truth.split("\n") if ": " in line]
        title = env.goal.pieces[0].requirement["texts"][0]
        greeting = [p.requirement["texts"][0] for p in env.goal.pieces if p.requirement["kind"] == "opens_line"]
        long = [p.requirement["texts"][0] for p in env.goal.pieces if p.requirement["kind"] == "contains"]
        lines = [f"# {title}", *greeting, *(f"* **Item:** {value}" for value in values), *long]
        *_, info = env.step("<document>\n" + "\n".join(lines) + "\n</document>")
        assert (info["metrics"]["score"], info["stop"]) == (1.0, "solved"), env.state.task.ground_truth


def test_missing_facts_and_untold_claims_cost_shares():
    env = after_full_disclosure(level="medium", patience=99, deliveries=99, max_assistant_turns=None)
    gold, pieces = env.state.task.ground_truth, len(env.goal.pieces)
    lines = gold.split("\n")
    facts = [number for number, line in enumerate(lines) if ": " in line]
    for missing in range(1, len(facts) + 1):
        rest = [line for number, line in enumerate(lines) if number not in facts[:missing]]
        assert score(env, "\n".join(rest)) == pytest.approx(1 - missing / pieces)
    for claims in (1, 2, pieces, pieces + 1):
        numbers = " ".join(str(7_000 + claim) for claim in range(claims))
        assert score(env, f"{gold}\n{numbers}") == pytest.approx(max(0, 1 - claims / pieces))
        assert "I said nothing of" in env.state.messages[-1]["content"], "and a claim that was denied stays one"
    assert score(env, gold) == 1.0


def test_guessed_facts_earn_nothing():
    env = textenvs.make("textenv/collab-document", patience=99, deliveries=99, max_assistant_turns=None)
    index = next(index for index in range(99) if not FAMILY.goal(env.tasks[index]).told)
    env.reset(seed=0, options={"task_index": index})
    gold = env.state.task.ground_truth
    env.step(env.goal.pieces[0].question)
    assert score(env, gold.replace(": ", " - ")) == pytest.approx(1 / len(env.goal.pieces))
    env.reset(seed=0, options={"task_index": index})
    assert score(env, gold) == 0.0


@pytest.mark.parametrize("level", LEVELS)
def test_copied_sentences_earn_less_than_half(level):
    """Even after asking for everything; a copy is no document."""
    scores = []
    for index in range(30):
        env = after_full_disclosure(index, level=level)
        user_texts = [message["content"] for message in env.state.messages[1:] if message["role"] == "user"]
        scores.append(score(env, "\n".join(user_texts).replace(". ", ".\n")))
    assert np.mean(scores) < 0.5


def test_bleu_is_an_option():
    pytest.importorskip("sacrebleu", reason="needs the extra 'bleu'")
    env = after_full_disclosure(bleu="words", token_rate=0.0)
    assert env.score_name == "bleu"
    assert 0 < score(env, env.state.task.ground_truth[:30]) < 1
    *_, info = env.step(env.demonstration(rng()))
    assert info["terms"] == {"bleu": pytest.approx(1.0), "cost": 0.0, "needless": 0.0}
    assert textenvs.make("textenv/collab-document").score_name == "faithfulness"


def test_bleu_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"textenvs\[bleu\]"):
        textenvs.make("textenv/collab-document", bleu="words")
    with pytest.raises(ValueError, match="bleu should be 'words' or 'characters', not 'letters'"):
        textenvs.make("textenv/collab-document", bleu="letters")


@pytest.mark.parametrize("text", ["The feast is at three.", "Our feast begins at noon."])
@pytest.mark.filterwarnings("ignore:[\\s]*The hypothesis contains 0 counts")
def test_characters_are_nltks(text):
    """CollabLLM's own code passes strings to NLTK, which takes them for lists of characters."""
    pytest.importorskip("sacrebleu", reason="needs the extra 'bleu'")
    bleu_score = pytest.importorskip("nltk.translate.bleu_score", reason="needs the extra 'dev'")
    reference = "Our feast begins at noon."
    assert sentence_bleu(text, reference, "characters") == pytest.approx(bleu_score.sentence_bleu([reference], text))
    assert sentence_bleu("zzz", reference, "characters") == 0.0
