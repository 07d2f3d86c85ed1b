"""The scripted user of the collaboration tasks, as a state machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs import collab_code, collab_document, collab_math
from textenvs.envs.collab.tasks import GeneratedGoals, Piece
from textenvs.envs.collab.user import Check, CollabUser, Memory

PIECES = (
    Piece("trays", ("There are 12 trays.", "It is 12 trays."), ("tray",), "How many trays?"),
    Piece(
        "rolls", ("Each tray holds 9 rolls.", "9 rolls fit on a tray."), ("tray", "each", "per"), "How many per tray?"
    ),
    Piece("burnt", ("5 get burnt.", "I lose 5."), ("burn", "lost"), "Are any lost?"),
)
FORM = "End with ####."
WRONG, RIGHT = Check(0.0, False), Check(1.0, True)
replies = st.tuples(
    st.one_of(
        st.sampled_from(
            [
                "",
                " \n",
                "How many trays?",
                "Are any lost? And how many per tray?",
                "Tell me everything.",
                "?",
                "What else?",
            ]
        ),
        st.text(max_size=40),
        st.lists(st.sampled_from(["tray", "trays", "per", "each", "lost", "?", "and", ","]), max_size=12).map(" ".join),
    ),
    st.sampled_from([None, WRONG, Check(0.0, False, "Not that."), RIGHT]),
)
manners = st.fixed_dictionaries(
    {
        "answers": st.integers(1, 4),
        "patience": st.integers(1, 4),
        "deliveries": st.integers(1, 4),
        "accepts": st.sampled_from(["right", "any"]),
        "volunteers": st.booleans(),
    }
)
goals = st.builds(
    lambda env, level, seed, index: GeneratedGoals(env.family, level, seed)[index],
    st.sampled_from([collab_math.CollabMath, collab_document.CollabDocument, collab_code.CollabCode]),
    st.sampled_from(["easy", "medium", "hard"]),
    st.integers(0, 3),
    st.integers(0, 500),
)


def pieces_of(task):
    return tuple(Piece(**value) for value in task.extra["pieces"])


def rng(seed=0):
    return np.random.default_rng(seed)


@given(goals, manners, st.lists(replies, max_size=30), st.integers(0, 99))
def test_invariants_of_every_talk(task, how, turns, seed):
    pieces = pieces_of(task)
    user, memory, generator = CollabUser(pieces, FORM, **how), Memory(), rng(seed)
    reactions = []
    for text, delivery in turns:
        reaction = user.react(memory, text, delivery, generator)
        assert reaction.text.strip()
        new = reaction.memory.disclosed[len(memory.disclosed) :]
        assert reaction.memory.disclosed[: len(memory.disclosed)] == memory.disclosed
        assert len(set(reaction.memory.disclosed)) == len(reaction.memory.disclosed)  # each piece at most once
        assert len(new) <= how["answers"]
        assert len(new) < len(pieces)  # never all at once
        for piece in range(len(pieces)):  # what is remembered as told was said, and nothing else was
            spoken = any(saying in reaction.text for saying in pieces[piece].sayings)
            assert spoken == (piece in new)
        accepted = delivery is not None and (delivery.right if how["accepts"] == "right" else not user.untold(memory))
        unclear = user.inquiry(text, memory).unclear > 0
        assert (reaction.memory.lost > memory.lost) == (not accepted and (not new or unclear))
        assert reaction.asked_for == len(new) or (not delivery and len(new) == 1)  # a guess gets no information
        assert how["volunteers"] or bool(new) == reaction.asks, "nothing is disclosed that was not asked for"
        assert 0 <= reaction.asked_for <= len(new)
        reactions.append(reaction)
        memory = reaction.memory
        if reaction.stop is not None:
            break
    whole = " ".join(reaction.text for reaction in reactions)
    assert task.extra["single_turn_prompt"] not in whole
    assert task.ground_truth not in whole.split()  # the answer of a problem
    if len(task.ground_truth) > 12:
        assert task.ground_truth not in whole  # a document


@given(goals, manners, st.data())
def test_every_talk_ends(task, how, data):
    """Each turn tells a piece or costs patience."""
    pieces = pieces_of(task)
    user, memory, generator = CollabUser(pieces, FORM, **how), Memory(), rng()
    for turn in range(1, len(pieces) + how["patience"] + 1):
        text, delivery = data.draw(replies)
        reaction = user.react(memory, text, delivery, generator)
        if reaction.stop is not None:
            assert reaction.stop in ("solved", "user_left", "gave_up")
            assert turn <= len(pieces) + how["patience"]
            return
        memory = reaction.memory
    raise AssertionError("the conversation never ends")


def test_seed_varies_phrasing_and_volunteered_piece():
    texts = {CollabUser(PIECES).react(Memory(), "What else?", None, rng(seed)).text for seed in range(60)}
    assert len(texts) > 8
    assert {next(i for i, p in enumerate(PIECES) if any(s in t for s in p.sayings)) for t in texts} == {0, 1, 2}


def disclosures_of(*replies, **how):
    """Return how many pieces the user tells in answer to each reply, one after the other."""
    user, memory, numbers = CollabUser(PIECES, FORM, **{"patience": 9} | how), Memory(), []
    for text in replies:
        reaction = user.react(memory, text, None, rng())
        numbers.append(len(reaction.memory.disclosed) - len(memory.disclosed))
        memory = reaction.memory
    return numbers


@pytest.mark.parametrize(
    ("replies", "counts"),
    [
        ([".", "Go on.", "?", "ok", "Okay?", "Why?", "Yes, please continue."], [0] * 7),
        (["How many trays?"] * 3, [1, 0, 0]),  # once asked is enough
        (["How many trays?", "HOW MANY   trays!? "], [1, 0]),
        (["How many trays?", "And how many on each tray?"], [1, 1]),
        (["What else should I know?"] * 3, [1, 0, 0]),
        (["What else?", "Any further details?", "Tell me more."], [1, 0, 0]),  # one open question a talk
        (["How many trays? Anything else?", "Is there more?"], [1, 1]),
        (["How many trays? How many on each tray? Are any lost?", "Are any lost?"], [2, 1]),  # not answered yet
        (["Please tell me the number of trays.", "Could you share how many get burnt."], [1, 1]),
        (["I need to know:\n1. how many trays\n2. how many get lost\n\nThank you.", "Hm."], [2, 0]),
        (["There are 3 trays, and 4 are lost.", "My list:\n- trays\n- lost ones"], [0, 0]),
        (["How old are you?", "Do you like music?"], [0, 0]),
        (["a? b? c? d? e? f? g? h? How many trays?"], [0]),  # a flood of questions is not heard to its end
    ],
)
def test_pieces_disclosed_by_replies(replies, counts):
    assert disclosures_of(*replies) == counts


@pytest.mark.parametrize(
    ("text", "disclosed", "lost"),
    [
        ("tray each per burn lost box price shelf hour?", 0, 1),  # words, and no question
        ("Trays, rolls, burnt ones, prices, hours?", 0, 1),
        ("How many tray box shelf row class bucket basket crate hall?", 0, 1),  # more than a question has
        ("Which tray, box, shelf and burnt price cost wage hour week day row?", 1, 1),  # answered, and not for nothing
        ("How many trays? tray each per burn lost box price shelf?", 1, 1),
        ("How many of the tray, box, row, hall?", 1, 0),
        ("What box shelf hour tray price?", 0, 1),  # mostly about nothing that it has in mind
        ("How many trays of rolls do you bake?", 1, 0),
        ("Could you please tell me how many rolls fit on each tray, and whether any get burnt?", 2, 0),
        ("Trays?", 1, 0),
        ("The trays?", 1, 0),
        ("To help you, I need to know:\n- the number of trays\n- the burnt ones", 2, 0),
    ],
)
def test_word_list_is_no_question(text, disclosed, lost):
    memory = CollabUser(PIECES, FORM, patience=9).react(Memory(), text, None, rng()).memory
    assert (len(memory.disclosed), memory.lost) == (disclosed, lost)


@given(goals, st.integers(0, 99), st.data())
def test_all_keywords_at_once_disclose_nothing(task, seed, data):
    """Whatever words a goal has: a reply with all that any goal might have is not understood."""
    pieces = pieces_of(task)
    words = sorted({word for piece in pieces for word in piece.keywords} | {"price", "hour", "box", "garden", "ticket"})
    salad = "How many " + " ".join(data.draw(st.permutations(words))) + " mountain elephant violin?"
    reaction = CollabUser(pieces, FORM).react(Memory(), salad, None, rng(seed))
    assert not reaction.memory.disclosed
    assert reaction.memory.lost == 1


def test_volunteering_user_answers_any_word():
    assert disclosures_of("", ".", "Go on.", "Go on.", "Go on.", volunteers=True) == [0, 1, 1, 1, 0]


def test_hints_answer_questions_not_idle_turns():
    user = CollabUser(PIECES)
    for text, hinted in (("How old are you?", True), ("Anything else?", True), ("Go on.", False), ("?", False)):
        reaction = user.react(Memory((0, 1), opened=True), text, None, rng())
        assert ("burnt" in reaction.text) == hinted
        assert not reaction.asks
        assert reaction.memory.lost == 1


@pytest.mark.parametrize(
    ("question", "disclosed", "requested"),
    [
        ("How many trays are there?", (), (0,)),
        ("How many rolls per tray?", (), (1,)),  # two of its keywords, and one of the first's
        ("How many trays are there?", (0,), (1,)),  # among equals, the one that is not told
        ("How many trays, and are any lost?", (), (0, 2)),
        ("Are any lost?\nHow many trays?", (), (2, 0)),
        ("How many trays, lost ones and rolls on each tray?", (), (0, 2, 1)),
        ("There are trays.", (), ()),  # no question
        ("Tell me about the trays.", (), (0,)),
        ("I ask about trays? No.", (), (0,)),
        ("BURNT?", (), (2,)),
        ("Why?", (), ()),
        ("How many betrays?", (), ()),  # a keyword begins a word
        ("\u4f60 tray\uff1f", (), (0,)),
    ],
)
def test_pieces_requested_by_question(question, disclosed, requested):
    assert CollabUser(PIECES).inquiry(question, Memory(disclosed)).pieces == requested


def test_full_disclosure_ends_with_delivery_form():
    reaction = CollabUser(PIECES, FORM).react(Memory((0, 1)), "Are any lost?", None, rng())
    assert reaction.text.endswith(FORM)
    assert CollabUser(PIECES, FORM).react(Memory((0, 1, 2)), "Hm.", None, rng()).text.endswith(FORM)


def test_stop_reasons():
    def stop(memory, text, delivery, **how):
        return CollabUser(PIECES, FORM, **how).react(memory, text, delivery, rng()).stop

    everything = (0, 1, 2)
    assert stop(Memory(), "x", RIGHT) == "solved"
    assert stop(Memory((0,), 2), "", None) == "user_left"  # patience is gone, and there was more to tell
    assert stop(Memory(everything, 2), "x", WRONG) == "gave_up"
    assert stop(Memory(everything, 1), "x", WRONG) is None
    assert stop(Memory(), "x", RIGHT, accepts="any") is None  # it cannot tell that this is right
    assert stop(Memory(everything), "x", WRONG, accepts="any") == "user_left"
    assert stop(Memory(everything), "x", RIGHT, accepts="any") == "solved"


def test_indifferent_user_answers_right_and_wrong_alike():
    user = CollabUser(PIECES, FORM, accepts="any")
    for memory in (Memory(), Memory((0, 1, 2))):
        for seed in range(10):
            wrong = user.react(memory, "x", Check(0.0, False, "The trays are wrong."), rng(seed))
            assert wrong.text == user.react(memory, "x", RIGHT, rng(seed)).text


def test_remark_is_said():
    for disclosed in ((), (0, 1, 2)):
        reaction = CollabUser(PIECES).react(Memory(disclosed), "x", Check(0.0, False, "The order is wrong."), rng())
        assert reaction.text.startswith("The order is wrong.")
