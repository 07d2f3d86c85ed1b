"""Manners of scripted users change words, patience and order; not what is true, hidden or earned."""

import re

import numpy as np
import pytest

import textenvs
from textenvs.messages import text_of
from textenvs.users.manners import NAMES, PLAIN, Manner, manners_of

IDS = ("textenv/clarify", "textenv/collab-math", "textenv/collab-document", "textenv/service-desk")
LEVELS = {"textenv/clarify": "medium", "textenv/collab-math": "hard", "textenv/service-desk": "hard"}
ALL = dict.fromkeys(NAMES, 1.0)  # at once
MANNERS = (*NAMES, ALL)
every_manner = pytest.mark.parametrize(
    "manner", MANNERS, ids=lambda manner: manner if isinstance(manner, str) else "together"
)
GARBAGE = ("", ".", "What else?", "Tell me more.", "#### 3", "Which day, and how many people?", "Why?")


def play(env, seed, asks=1.0):
    """Play an episode of the expert, who says something useless instead in a share of the turns."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)]
    while not env.state.done:
        allowed = sayable(env)
        action = env.demonstration(rng) if rng.random() < asks else GARBAGE[rng.integers(len(GARBAGE))]
        seen.append(env.step(action))
        yield action, allowed, seen[-1]


def words_of(env):
    return " ".join(text_of(message) for message in env.state.messages if message["role"] == "user")


def hidden_in(env):
    """Return what was not told so far, as texts."""
    state, name = env.state, env.spec.id
    if "clarify" in name:
        request = env._request
        return [str(request.values[slot]) for slot in request.missing if slot not in state.disclosed]
    if "desk" in name:
        persona = state.story.persona
        first = state.story.wishes[0]  # with the next wish, the customer forgets what it said of this one
        slots = {"email": persona.email, "zip": persona.zip_code}
        slots |= {"order": first.order_id} if state.caller.wish == first else {}
        return [value for slot, value in slots.items() if value and slot not in state.caller.disclosed]
    untold = [piece for i, piece in enumerate(state.goal.pieces) if i not in state.memory.disclosed]
    if "document" in name:
        return [text for piece in untold for text in (piece.requirement or {}).get("texts", ())]
    numbers = [number for piece in untold for number in re.findall(r"\d+", piece.sayings[0])]
    return [*numbers, state.task.ground_truth]


def sayable(env):
    """Return what a plain user with this memory may have said, in words."""
    state = env.state
    if "clarify" in env.spec.id:
        request = env._request
        return " ".join([request.text, *(request.telling(s) for s in request.kind.slots if s.name in state.disclosed)])
    if "collab" in env.spec.id:
        return " ".join(
            [state.task.prompt[0]["content"], *(state.goal.pieces[i].sayings[0] for i in state.memory.disclosed)]
        )
    return ""


@every_manner
@pytest.mark.parametrize("env_id", IDS)
def test_unasked_facts_stay_hidden(env_id, manner):
    options = {"level": LEVELS[env_id]} if env_id in LEVELS else {}
    env = textenvs.make(env_id, manner=manner, **options)
    for seed in range(4):
        for _ in play(env, seed, asks=0.5):
            texts, allowed = words_of(env), sayable(env)
            for text in hidden_in(env):
                whole = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")
                assert whole.search(allowed) or not whole.search(texts), (text, texts)


@every_manner
@pytest.mark.parametrize("env_id", IDS)
def test_expert_solves_tasks_under_any_manner(env_id, manner):
    options = {"level": LEVELS[env_id]} if env_id in LEVELS else {}
    env, plain = textenvs.make(env_id, manner=manner, **options), textenvs.make(env_id, **options)
    # Of clarify: a question that is evaded is paid for; of collab: the words of the user are.
    lost = {"textenv/clarify": 0.1, "textenv/service-desk": 0.0}.get(env_id, 0.2)
    for seed in range(100, 105):
        list(play(env, seed))
        list(play(plain, seed))
        assert env.state.stop == "solved" == plain.state.stop
        assert env.state.task.key == plain.state.task.key  # a seed is the same task in every manner
        assert env.state.return_so_far >= plain.state.return_so_far - lost - 1e-9


@every_manner
@pytest.mark.parametrize("env_id", IDS)
def test_seed_determines_manner_across_forks(env_id, manner):
    env, twin = textenvs.make(env_id, manner=[manner, "plain"]), textenvs.make(env_id, manner=[manner, "plain"])
    for seed in range(3):
        actions = [action for action, *_ in play(env, seed, asks=0.6)]
        twin.reset(seed=seed)
        for number, action in enumerate(actions):
            fork, restored = twin.fork(), textenvs.make(env_id, manner=[manner, "plain"])
            restored.restore(twin.snapshot())
            results = [copy.step(action) for copy in (twin, fork, restored)]
            assert results[0] == results[1] == results[2], number
        assert twin.state.messages == env.state.messages
        assert (twin.state.manner, twin.state.mood) == (env.state.manner, env.state.mood)


@pytest.mark.parametrize("env_id", IDS)
def test_plain_manner_equals_no_manner(env_id):
    env, plain = textenvs.make(env_id), textenvs.make(env_id, manner="plain")
    for seed in range(5):
        list(play(env, seed, asks=0.7))
        list(play(plain, seed, asks=0.7))
        assert env.state.messages == plain.state.messages
        assert env.np_random.bit_generator.state == plain.np_random.bit_generator.state


def test_impatient_user_leaves_earlier():
    for env_id, replies in (
        ("textenv/collab-math", (2, 3)),
        ("textenv/clarify", (2, 4)),
        ("textenv/service-desk", (4, 8)),
    ):
        for manner, limit in zip(("impatient", None), replies, strict=True):
            env = textenvs.make(env_id, manner=manner)
            env.reset(seed=1)
            while not env.state.done:
                env.step(f"{env.state.assistant_turns} bananas.")
            assert env.state.assistant_turns == limit, env_id


def test_evaded_question_can_be_repeated_verbatim():
    env = textenvs.make("textenv/collab-math", manner="vague")
    env.reset(seed=0)
    question = env.demonstration(np.random.default_rng(0))
    first, second = env.step(question), env.step(question)
    assert first[4]["metrics"]["told"] == 0 < second[4]["metrics"]["told"]
    assert second[4]["metrics"]["asked_for"] == 1  # one thing at a time
    assert env.state.memory.lost == 0


def test_manners_drawn_evenly_and_named_in_errors():
    env = textenvs.make("textenv/clarify", manner="all")
    drawn = []
    for seed in range(140):
        env.reset(seed=seed)
        drawn.append(env.state.manner)
    assert set(drawn) == {PLAIN, *map(Manner.of, NAMES)}
    assert max(map(drawn.count, drawn)) < 40
    assert manners_of({"wordy": 0.5}) == (Manner(wordy=0.5),)
    for wrong in ("rude", [], {"wordy": 2.0}, {"rude": 1.0}, 3):
        with pytest.raises(ValueError, match="manner"):
            textenvs.make("textenv/clarify", manner=wrong)


def test_respelling_keeps_facts():
    rng = np.random.default_rng(0)
    text = 'Please tell the "the the you" W1234567 what you need at the old mill, about 5 pm, ann.the@example.com.'
    for _ in range(50):
        respelt = Manner(non_native=1.0).say(text, rng, keep=["the old mill"])
        assert all(
            part in respelt for part in ('"the the you"', "W1234567", "the old mill", "5 pm", "ann.the@example.com")
        )
    assert respelt != text
