"""The user of a request: understands many phrasings, tells what it is asked for, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.clarify.tasks import KINDS, GeneratedRequests, Request
from textenvs.envs.clarify.user import Reading, is_right, read, respond
from textenvs.messages import assistant

ALL = {name: kind for kinds in KINDS.values() for name, kind in kinds.items()}


def request_of(name, *missing):
    kind = ALL[name]
    return Request(kind, "Mia", kind.things[0], {slot.name: slot.values[3] for slot in kind.slots}, missing)


def asked(name, text):
    return read(assistant(text), request_of(name)).asked


@pytest.mark.parametrize("name", ALL)
def test_the_experts_question_asks_for_its_slot_and_no_other(name):
    request = request_of(name)
    for slot in request.kind.slots:
        reading = read(assistant(request.question(slot)), request)
        assert reading == Reading("question", asked=(frozenset({slot.name}),))


@pytest.mark.parametrize(
    ("kind", "slot", "phrasings"),
    [
        (
            "sum",
            "have",
            (
                "How many apples did Mia have to begin with?",
                "Could you tell me how many apples Mia started with?",
                "To solve this I need to know the initial number of apples.",
                "what was the original amount",
                "It is unclear how many she had before. Please specify.",
            ),
        ),
        ("sum", "more", ("How many does she get?", "How many apples were added?", "How many extra apples?")),
        ("left", "gone", ("How many does Mia give away?", "What number did she lose?")),
        (
            "change",
            "price",
            (
                "How much does the cap cost?",
                "What's the price of the cap?",
                "The price is missing. Could you provide it?",
                "Could you please let me know how expensive it is?",
                "How much did she pay for the cap?",
            ),
        ),
        ("change", "paid", ("How much money did Mia hand over?", "With which note did she pay?", "What did Mia pay?")),
        ("table", "people", ("For how many people?", "How large is the party?", "How many guests will attend?")),
        ("table", "day", ("Which day would you like?", "What date?", "When should I book it?")),
        ("table", "hour", ("At what time?", "When do you want to eat?", "Which hour?")),
        ("cap", "colour", ("Which color do you want?", "What colour should it be?")),
        ("cap", "size", ("How big is it?", "Do you need a large one?", "What SIZE?")),
        ("shop", "count", ("How many apples does she buy?", "What quantity did Mia purchase?")),
        ("shop", "price", ("How much is one of them?", "What does each cost?")),
        ("trip", "speed", ("At what speed does she drive?", "How many km per hour?", "How fast?")),
        ("trip", "hours", ("How long does Mia drive?", "For how many hours?")),
        ("trip", "rest", ("How far does she drive after that?", "How many km does she drive then?")),
        ("cakes", "eggs", ("How many eggs per cake?", "How many eggs does a cake need?")),
        ("cakes", "have", ("How many eggs has she got already?", "How many eggs does Mia own?")),
        ("room", "nights", ("How long is the stay?", "How many nights will you stay?")),
        ("room", "day", ("When do you arrive?", "What is the check-in date?")),
        ("room", "floor", ("Which level?", "Do you prefer a certain floor?")),
        ("shirts", "material", ("What fabric?", "Should they be made of cotton?")),
        ("shirts", "count", ("How many do you need?", "What quantity?")),
    ],
)
def test_many_phrasings_are_understood(kind, slot, phrasings):
    for text in phrasings:
        assert any(slot in meant for meant in asked(kind, text)), text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sum", "How many apples does Mia have now?"),
        ("left", "How many apples are left?"),
        ("change", "How many coins does Mia get back?"),
        ("shop", "How much change does she get?"),
        ("trip", "How many km is that in all?"),
        ("table", "What is missing?"),
        ("cap", "Can you help me?"),
        ("cap", "The colour is red and the size is 4."),
        ("cap", "<think>What colour?</think>Hello."),
    ],
)
def test_what_does_not_ask_for_a_slot_is_told_nothing(kind, text):
    assert asked(kind, text) == ()
    request = request_of(kind, *(slot.name for slot in ALL[kind].slots))
    assert respond(read(assistant(text), request), request, (), 0).told == ()


@pytest.mark.parametrize("name", ALL)
def test_the_user_tells_what_is_missing_when_asked_and_only_once(name):
    for slot in ALL[name].slots:
        request = request_of(name, slot.name)
        question = read(assistant(request.question(slot)), request)
        speech = respond(question, request, (), 0)
        assert speech.told == (slot.name,)
        assert str(request.values[slot.name]) in speech.text.replace(".", "").split()
        assert not speech.needless
        assert respond(question, request, speech.told, 0).text == "I have told you all."
        assert respond(question, request, speech.told, 1).text == "As I said, I have told you all."
        for other in ALL[name].slots:
            if other is not slot:
                known = respond(read(assistant(request.question(other)), request), request, (), 0)
                assert (known.text, known.told, known.needless) == ("But I have told you that.", (), True)


@pytest.mark.parametrize(
    ("missing", "text", "told", "needless"),
    [
        (("day", "floor"), "From what day, and on what floor?", ("day",), False),
        (("day", "floor"), "On what floor? And from what day?", ("floor",), False),
        (("floor",), "From what day, and on what floor?", ("floor",), True),
        (("floor",), "From what day on that floor?", (), True),  # a part asks for the first thing that it names
    ],
)
def test_of_several_things_the_first_is_told_and_what_is_known_makes_it_needless(missing, text, told, needless):
    request = request_of("room", *missing)
    speech = respond(read(assistant(text), request), request, (), 0)
    assert (speech.told, speech.needless) == (told, needless)
    assert speech.text.endswith("One thing at a time, please.") == (len(told) == 1)


def test_a_word_that_may_mean_two_things_asks_for_the_missing_one():
    for missing, text in (("day", "On Thursday."), ("hour", "At 4.")):
        request = request_of("table", missing)
        assert respond(read(assistant("When?"), request), request, (), 0).text == text


@pytest.mark.parametrize("name", ALL)
def test_asking_for_everything_at_once_is_needless_in_every_kind(name):
    for slot in ALL[name].slots:
        request = request_of(name, slot.name)
        everything = read(assistant(" ".join(map(request.question, ALL[name].slots))), request)
        assert respond(everything, request, (), 0).needless


def test_what_is_neither_a_question_nor_an_answer():
    request = request_of("cap", "size")
    assert respond(read(assistant("Tell me."), request), request, (), 0).text == "What do you want to know?"
    for text in ("", "Hello.", "####", "#### ", "#### I cannot say", "red"):
        reading = read(assistant(text), request)
        assert reading.sort == "neither", text
        assert respond(reading, request, (), 3) == respond(Reading("neither"), request, (), 0)


@pytest.mark.parametrize(
    ("kind", "text", "right"),
    [
        ("sum", "#### 9", True),  # 5 + 4
        ("sum", "5+4=9\n#### 9 apples.", True),
        ("sum", "#### 8\nNo, wait.\n#### 9", True),
        ("sum", "What did she have? #### 9", True),
        ("sum", "#### 9.0", True),
        ("sum", "#### 8", False),
        ("sum", "#### 8 or 9", False),
        ("sum", "#### -9", False),
        ("sum", "#### 5+4=9", False),
        ("sum", "#### " + "9" * 500, False),
        ("sum", "<think>#### 9</think>#### 8", False),
        ("table", "#### 4 5 Thursday", True),
        ("table", "#### 4 o'clock, 5 people, on thursday", True),
        ("table", "#### 5 Thursday 4", False),
        ("table", "#### 4 5", False),
        ("table", "#### 4 5 Thursday Friday", False),
    ],
)
def test_answers(kind, text, right):
    request = request_of(kind)
    reading = read(assistant(text), request)
    assert reading.sort == "answer"
    assert is_right(reading, request) == right


@given(st.text(), st.integers(0, 99))
def test_no_text_makes_it_fail_and_none_is_right_but_an_answer(text, index):
    request = Request.from_task(GeneratedRequests("medium")[index])
    reading = read(assistant(text), request)
    assert is_right(reading, request) <= (reading.sort == "answer")
    respond(reading, request, (), 0)
