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


def slots_in(name, text):
    return read(assistant(text), request_of(name)).slots


@pytest.mark.parametrize("name", ALL)
def test_expert_question_asks_for_one_slot(name):
    request = request_of(name)
    for slot in request.kind.slots:
        reading = read(assistant(request.question(slot)), request)
        assert reading == Reading("question", slots=(frozenset({slot.name}),))


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
def test_phrasings_are_understood(kind, slot, phrasings):
    for text in phrasings:
        assert any(slot in slots for slots in slots_in(kind, text)), text


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
def test_text_without_request_discloses_nothing(kind, text):
    assert slots_in(kind, text) == ()
    request = request_of(kind, *(slot.name for slot in ALL[kind].slots))
    assert respond(read(assistant(text), request), request, (), 0).disclosed == ()


@pytest.mark.parametrize("name", ALL)
def test_missing_slot_is_disclosed_once(name):
    for slot in ALL[name].slots:
        request = request_of(name, slot.name)
        question = read(assistant(request.question(slot)), request)
        speech = respond(question, request, (), 0)
        assert speech.disclosed == (slot.name,)
        assert str(request.values[slot.name]) in speech.text.replace(".", "").split()
        assert not speech.needless
        assert respond(question, request, speech.disclosed, 0).text == "I have told you all."
        assert respond(question, request, speech.disclosed, 1).text == "As I said, I have told you all."
        for other in ALL[name].slots:
            if other is not slot:
                answer = respond(read(assistant(request.question(other)), request), request, (), 0)
                assert (answer.text, answer.disclosed, answer.needless) == ("But I have told you that.", (), True)


@pytest.mark.parametrize(
    ("missing", "text", "disclosed", "needless"),
    [
        (("day", "floor"), "From what day, and on what floor?", ("day",), False),
        (("day", "floor"), "On what floor? And from what day?", ("floor",), False),
        (("floor",), "From what day, and on what floor?", ("floor",), True),
        (("floor",), "From what day on that floor?", (), True),  # a part asks for the first thing that it names
    ],
)
def test_only_first_requested_slot_is_disclosed(missing, text, disclosed, needless):
    request = request_of("room", *missing)
    speech = respond(read(assistant(text), request), request, (), 0)
    assert (speech.disclosed, speech.needless) == (disclosed, needless)
    assert speech.text.endswith("One thing at a time, please.") == (len(disclosed) == 1)


def test_ambiguous_word_asks_for_missing_slot():
    for missing, text in (("day", "On Thursday."), ("hour", "At 4.")):
        request = request_of("table", missing)
        assert respond(read(assistant("When?"), request), request, (), 0).text == text


@pytest.mark.parametrize("name", ALL)
def test_asking_for_everything_is_needless(name):
    for slot in ALL[name].slots:
        request = request_of(name, slot.name)
        everything = read(assistant(" ".join(map(request.question, ALL[name].slots))), request)
        assert respond(everything, request, (), 0).needless


def test_neither_question_nor_answer():
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
def test_any_text_is_read(text, index):
    request = Request.from_task(GeneratedRequests("medium")[index])
    reading = read(assistant(text), request)
    assert is_right(reading, request) <= (reading.sort == "answer")
    respond(reading, request, (), 0)
