"""The scripted user of the collaboration tasks, as a state machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.envs.collab.sets import GeneratedGoals
from textenvs.envs.collab.tasks import Piece
from textenvs.envs.collab.user import CollabUser, Delivery, Memory, UserBehavior

PIECES = (
    Piece("trays", ("There are 12 trays.", "It is 12 trays."), ("tray",), "How many trays?"),
    Piece(
        "rolls", ("Each tray holds 9 rolls.", "9 rolls fit on a tray."), ("tray", "each", "per"), "How many per tray?"
    ),
    Piece("burnt", ("5 get burnt.", "I lose 5."), ("burn", "lost"), "Are any lost?"),
)
FORM = "End with ####."
WRONG, RIGHT = Delivery(True, False), Delivery(True, True)
replies = st.tuples(
    st.one_of(
        st.sampled_from(
            ["", " \n", "How many trays?", "Are any lost? And how many per tray?", "Tell me, all of it.", "?"]
        ),
        st.text(max_size=40),
        st.lists(st.sampled_from(["tray", "trays", "per", "each", "lost", "?", "and", ","]), max_size=12).map(" ".join),
    ),
    st.sampled_from([Delivery(), WRONG, Delivery(True, False, "Not that."), RIGHT]),
)
manners = st.builds(UserBehavior, st.integers(1, 4), st.integers(1, 4), st.sampled_from(["right", "any"]))
goals = st.builds(
    lambda domain, level, seed, index: GeneratedGoals(domain, level, seed)[index],
    st.sampled_from(["math", "document", "code"]),
    st.sampled_from(["easy", "medium", "hard"]),
    st.integers(0, 3),
    st.integers(0, 500),
)


def pieces_of(task):
    return tuple(Piece.from_json(value, "test") for value in task.extra["pieces"])


def rng(seed=0):
    return np.random.default_rng(seed)


@given(goals, manners, st.lists(replies, max_size=30), st.integers(0, 99))
def test_what_holds_of_every_talk(task, how, said, seed):
    pieces = pieces_of(task)
    user, memory, generator = CollabUser(pieces, FORM, how), Memory(), rng(seed)
    reactions = []
    for text, delivery in said:
        reaction = user.react(memory, text, delivery, generator)
        assert reaction.text.strip()
        new = reaction.memory.told[len(memory.told) :]
        assert reaction.memory.told[: len(memory.told)] == memory.told
        assert len(set(reaction.memory.told)) == len(reaction.memory.told)  # each piece at most once
        assert len(new) <= how.answers
        assert len(new) < len(pieces)  # never all at once
        for piece in range(len(pieces)):  # what is remembered as told was said, and nothing else was
            spoken = any(saying in reaction.text for saying in pieces[piece].sayings)
            assert spoken == (piece in new)
        accepted = delivery.made and (delivery.right if how.accepts == "right" else not user.untold(memory))
        assert (reaction.memory.lost > memory.lost) == (not new and not accepted)
        assert reaction.asked_for == len(new) or (not delivery.made and len(new) == 1)  # a guess is told nothing
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
    user, memory, generator = CollabUser(pieces, FORM, how), Memory(), rng()
    for turn in range(1, len(pieces) + how.patience + 1):
        text, delivery = data.draw(replies)
        reaction = user.react(memory, text, delivery, generator)
        if reaction.stop is not None:
            assert reaction.stop in ("solved", "user_left", "gave_up")
            assert turn <= len(pieces) + how.patience
            return
        memory = reaction.memory
    raise AssertionError("the talk goes on and on")


@given(goals, manners, st.lists(replies, max_size=12), st.integers(0, 9))
def test_the_same_seed_gives_the_same_talk(task, how, said, seed):
    def talk():
        user, memory, generator, texts = CollabUser(pieces_of(task), FORM, how), Memory(), rng(seed), []
        for text, delivery in said:
            reaction = user.react(memory, text, delivery, generator)
            memory = reaction.memory
            texts.append(reaction)
        return texts

    assert talk() == talk()


def test_phrasings_and_the_piece_that_is_offered_vary_with_the_seed():
    texts = {CollabUser(PIECES).react(Memory(), "Well.", Delivery(), rng(seed)).text for seed in range(60)}
    assert len(texts) > 8
    assert {next(i for i, p in enumerate(PIECES) if any(s in t for s in p.sayings)) for t in texts} == {0, 1, 2}


@pytest.mark.parametrize(
    ("question", "told", "asked"),
    [
        ("How many trays are there?", (), (0,)),
        ("How many rolls per tray?", (), (1,)),  # two of its keywords, and one of the first's
        ("How many trays are there?", (0,), (1,)),  # among equals, the one that is not told
        ("How many trays, and are any lost?", (), (0, 2)),
        ("Are any lost?\nHow many trays?", (), (2, 0)),
        ("How many trays, lost ones and rolls on each tray?", (), (0, 2, 1)),
        ("There are trays.", (), ()),  # no question
        ("I ask about trays? No.", (), (0,)),
        ("BURNT?", (), (2,)),
        ("Why?", (), ()),
        ("How many betrays?", (), ()),  # a keyword begins a word
        ("\u4f60 tray\uff1f", (), (0,)),
    ],
)
def test_what_a_question_asks_for(question, told, asked):
    assert CollabUser(PIECES).asked_for(question, Memory(told)) == asked


def test_what_was_asked_about_comes_first():
    for seed in range(20):
        reaction = CollabUser(PIECES).react(Memory(), "Are any lost?", Delivery(), rng(seed))
        assert (reaction.memory.told, reaction.asked_for) == ((2,), 1)
        reaction = CollabUser(PIECES).react(Memory(), "Go on.", Delivery(), rng(seed))
        assert (len(reaction.memory.told), reaction.asked_for) == (1, 0)


def test_a_question_about_what_is_known_gets_something_new_all_the_same():
    reaction = CollabUser(PIECES).react(Memory((2,)), "Are any lost?", Delivery(), rng())
    assert len(reaction.memory.told) == 2
    assert "already" in reaction.text
    assert reaction.asked_for == 0


def test_when_all_is_told_it_says_how_to_deliver():
    reaction = CollabUser(PIECES, FORM).react(Memory((0, 1)), "Hm.", Delivery(), rng())
    assert reaction.text.endswith(FORM)
    assert CollabUser(PIECES, FORM).react(Memory((0, 1, 2)), "Hm.", Delivery(), rng()).text.endswith(FORM)


def test_the_ends():
    def stop(memory, text, delivery, **how):
        return CollabUser(PIECES, FORM, UserBehavior(**how)).react(memory, text, delivery, rng()).stop

    everything = (0, 1, 2)
    assert stop(Memory(), "x", RIGHT) == "solved"
    assert stop(Memory((0,), 2), "", Delivery()) == "user_left"  # patience is gone, and there was more to tell
    assert stop(Memory(everything, 2), "x", WRONG) == "gave_up"
    assert stop(Memory(everything, 1), "x", WRONG) is None
    assert stop(Memory(), "x", RIGHT, accepts="any") is None  # it cannot tell that this is right
    assert stop(Memory(everything), "x", WRONG, accepts="any") == "user_left"
    assert stop(Memory(everything), "x", RIGHT, accepts="any") == "solved"


def test_who_cannot_tell_right_from_wrong_says_the_same_about_both():
    user = CollabUser(PIECES, FORM, UserBehavior(accepts="any"))
    for memory in (Memory(), Memory((0, 1, 2))):
        for seed in range(10):
            wrong = user.react(memory, "x", Delivery(True, False, "The trays are wrong."), rng(seed))
            assert wrong.text == user.react(memory, "x", RIGHT, rng(seed)).text


def test_a_remark_is_said():
    for told in ((), (0, 1, 2)):
        reaction = CollabUser(PIECES).react(Memory(told), "x", Delivery(True, False, "The order is wrong."), rng())
        assert reaction.text.startswith("The order is wrong.")


@settings(max_examples=5)
@given(st.sampled_from(["tray?" * 200_000, "," * 10**6, "tray " * 200_000 + "?", "\n" * 10**6]))
def test_a_huge_message_is_only_a_message(text):
    assert CollabUser(PIECES).react(Memory(), text + "x", Delivery(), rng()).text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"answers": 0}, "answers must be an integer of at least 1, not 0"),
        ({"patience": True}, "patience must be"),
        ({"patience": 1.5}, "patience must be"),
        ({"accepts": "all"}, "accepts must be one of right, any, not 'all'"),
    ],
)
def test_manners_are_checked(values, says):
    with pytest.raises(ValueError, match=says):
        UserBehavior(**values)


def test_a_user_without_a_goal():
    with pytest.raises(ValueError, match="at least one piece"):
        CollabUser(())
