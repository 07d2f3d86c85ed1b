"""Shared behavior of CollabLLM's families: the expert, the reward's bookkeeping, options, the goal's secrecy."""

import itertools
import re

import gymnasium
import numpy as np
import pytest
from collab_cases import SCORES, every_id
from hypothesis import given, settings
from hypothesis import strategies as st

import textenvs
from textenvs.scoring.conversation import FORMULAS, formula

LEVELS = ("easy", "medium", "hard")


def rng(seed=0):
    return np.random.default_rng(seed)


def play(env, choose, seed=None, options=None):
    """Return the steps of an episode."""
    env.reset(seed=seed, options=options)
    steps, generator = [], rng(seed)
    while not env.state.done:
        steps.append(env.step(choose(env, generator)))
    return steps


def vague(env, count=1):
    """Return the indices of tasks whose opening tells nothing."""
    indices = (index for index in range(1000) if not env.family.goal(env.tasks[index]).told)
    return list(itertools.islice(indices, count))


def expert(env, generator):
    return env.demonstration(generator)


def babbler(env, generator):
    words = ["how", "many", "what?", "####", "\\boxed{12}", "12", "7", "<document>", "</document>", "the", "party", "?"]
    words += ["\n```\n", "def", "f(x):", "return", "x"]
    return " ".join(words[i] for i in generator.integers(len(words), size=8))


def mixed(env, generator):
    choose = (expert, babbler, lambda env, generator: env.careless_reply(generator), lambda *_: "")
    return choose[generator.integers(4)](env, generator)


@every_id
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_expert_earns_maximum_on_every_task(env_id, level, split):
    env = textenvs.make(env_id, level=level, split=split, token_rate=0.0)
    # Programs run in a sandbox; test_collab_tasks.py has more of them, without one.
    for index in range(4 if env.family.domain == "code" else 30 if level == "hard" else 10):
        steps = play(env, expert, index, {"task_index": index})
        assert sum(step[1] for step in steps) == pytest.approx(1.0), env.state.task.key
        assert env.state.stop == "solved"
        pieces = len(env.goal.pieces) - len(env.goal.told)
        assert len(steps) == -(-pieces // 2) + 1, "every question of the expert's is answered"
        assert sum(step[4]["metrics"]["asked_for"] for step in steps) == pieces
    env = textenvs.make(env_id, level=level, split=split)
    assert 0.9 < sum(step[1] for step in play(env, expert, 0)) < 1.0, "words cost little"


@every_id
@pytest.mark.parametrize("task_reward", ["final", "increment"])
@settings(max_examples=12)
@given(
    seed=st.integers(0, 200),
    name=st.sampled_from(sorted(FORMULAS)),
    turns=st.sampled_from([None, 1, 2, 3, 5]),
    user_turns=st.sampled_from([None, 1, 2]),
    accepts=st.sampled_from(["right", "any"]),
)
def test_return_equals_formula_reward_of_conversation(env_id, task_reward, seed, name, turns, user_turns, accepts):
    """However an episode ends, and however the score is paid out."""
    env = textenvs.make(
        env_id, task_reward=task_reward, formula=name, max_assistant_turns=turns, max_user_turns=user_turns,
        accepts=accepts,
    )  # fmt: skip
    steps = play(env, mixed, seed)
    opening = 1
    chosen = formula(name, domain=env.family.domain)
    charged = env.state.messages if chosen.scope == "all" else env.state.messages[opening:]
    ((score_name, score),) = env.conversation_score().items()
    assert score_name == SCORES[env_id]
    needless = sum(step[4]["terms"]["needless"] for step in steps)
    assert sum(step[1] for step in steps) == pytest.approx(score - chosen.cost(chosen.length(charged)) + needless)
    totals = {term: sum(step[4]["terms"][term] for step in steps) for term in (score_name, "cost")}
    assert totals[score_name] == pytest.approx(score)
    if task_reward == "final":
        assert all(step[4]["terms"][score_name] == 0 for step in steps[:-1])
    assert all(step[4]["terms"]["cost"] <= 0 for step in steps)
    assert steps[-1][4]["metrics"]["score"] == score


@every_id
@pytest.mark.parametrize("task_reward", ["final", "increment"])
def test_failing_first_pays_less(env_id, task_reward):
    # Only the assistant's tokens: the user's phrasings are drawn, and a talk may have shorter ones than another.
    env = textenvs.make(env_id, task_reward=task_reward, formula="repository", level="medium")
    for index in vague(env, 2 if env.family.domain == "code" else 4):
        at_once = sum(step[1] for step in play(env, expert, index, {"task_index": index}))
        for wrong_turn in range(3):

            def first_wrong(env, generator, wrong_turn=wrong_turn):
                return (env.careless_reply if env.state.assistant_turns == wrong_turn else env.demonstration)(generator)

            assert sum(step[1] for step in play(env, first_wrong, index, {"task_index": index})) < at_once


@every_id
@settings(max_examples=15)
@given(data=st.data())
def test_goal_stays_secret(env_id, data):
    env = textenvs.make(env_id, level=data.draw(st.sampled_from(LEVELS)))
    env.reset(seed=data.draw(st.integers(0, 10_000)))
    generator = rng(data.draw(st.integers(0, 99)))
    seen, gold = [], env.state.task.ground_truth
    opening = env.state.messages
    while not env.state.done:
        text = (babbler if data.draw(st.booleans()) else expert)(env, generator)
        if gold in text:
            break
        *_, info = env.step(text)
        seen.append(env.state.messages[-1]["content"])
        assert env.goal.told or env.goal.single_turn_prompt not in " ".join(seen)
        assert not re.search(rf"(?<!\d){re.escape(gold)}(?!\d)", " ".join(seen))
        assert gold not in repr(info) or len(gold) < 4
    (secret,) = env.secrets()
    assert secret == gold
    for number, piece in enumerate(env.goal.pieces):
        disclosed = any(saying in opening[0]["content"] for saying in piece.sayings)
        assert disclosed == (number in env.goal.told), "it starts with what the task says, and no more"


@every_id
def test_private_reasoning_neither_delivers_nor_costs(env_id):
    env = textenvs.make(env_id)
    env.reset(seed=3)
    *_, plain = env.step("Go on.")
    env.reset(seed=3)
    *_, info = env.step(f"<think>{env.solution(env.state.task)}</think>Go on.")
    assert info["metrics"]["delivered"] == 0.0
    assert info["terms"] == plain["terms"]


@every_id
def test_user_ends_fruitless_talk(env_id):
    env = textenvs.make(env_id, max_assistant_turns=None)
    for idle in ("", "Go on."):
        play(env, lambda *_, idle=idle: idle, 0, {"task_index": vague(env)[0]})
        assert (env.state.terminated, env.state.stop, env.state.assistant_turns) == (True, "user_left", 3)

    def then_idle(env, generator):
        return expert(env, generator) if env.user.untold(env.state.memory) else "Go on."

    play(env, then_idle, 0, {"task_index": vague(env)[0]})
    assert (env.state.stop, env.state.assistant_turns) == ("gave_up", 2 + 3)
    play(textenvs.make(env_id, patience=1, max_assistant_turns=None), lambda *_: "", 0)


@every_id
def test_accepts_any_takes_careless_reply_after_disclosure(env_id):
    env = textenvs.make(env_id, accepts="any")
    task = {"task_index": vague(env)[0]}

    def careless(env, generator):
        return env.careless_reply(generator)

    play(env, careless, 0, task)
    assert (env.state.stop, env.state.assistant_turns) == ("user_left", 3), "it is not taken before"

    def asked_and_careless(env, generator):
        return (expert if env.user.untold(env.state.memory) else careless)(env, generator)

    play(env, asked_and_careless, 0, task)
    assert (env.state.stop, env.state.assistant_turns) == ("user_left", 2 + 1)
    play(env, expert, 0)
    assert env.state.stop == "solved"


@every_id
def test_share_of_asking_turns_is_reported(env_id):
    env = textenvs.make(env_id, patience=9)
    env.reset(seed=0, options={"task_index": vague(env)[0]})
    shares = []
    for reply in ("Go on.", None, "Go on.", None, None):
        *_, info = env.step(reply or env.demonstration(rng()))
        shares.append(info["metrics"]["asked"])
    assert shares == [0, 1 / 2, 1 / 3, 1 / 2, 1 / 2], "a delivery is no turn in which to ask"


@every_id
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task_reward": "last"}, "task_reward should be 'final' or 'increment', not 'last'"),
        ({"formula": "mine"}, "formula should be 'textenvs', 'linear', 'paper', 'repository' or 'recipe', not 'mine'"),
        ({"level": "easy", "tasks": "generated:easy"}, "give either tasks or level, not both"),
        ({"tasks": "rows.csv"}, "'rows.csv': not a task source"),
        ({"tasks": "hub:"}, "name the data set"),
    ],
)
def test_options_are_checked(env_id, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        textenvs.make(env_id, **options)


@every_id
def test_rows_without_a_goal_cannot_be_played(env_id):
    env = textenvs.make(env_id)
    row = {"data_source": "x", "prompt": [{"role": "user", "content": "Help!"}], "reward_model": {"ground_truth": "5"}}
    with pytest.raises(textenvs.TaskError, match="single_turn_prompt"):
        env.reset(options={"task": row})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    extra = {"single_turn_prompt": "Buy 5. Then sell 3.", "interaction_kwargs": {"name": "gsm8k"}}
    with pytest.raises(textenvs.TaskError, match="extra_info.name: .*'collabllm'"):
        env.reset(options={"task": {**row, "extra_info": extra}})


@every_id
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_third_of_openings_tell_pieces(env_id, split):
    """So whether to ask is a decision, which counting sentences does not make."""
    env = textenvs.make(env_id, split=split)
    goals = [env.family.goal(env.tasks[index]) for index in range(300)]
    whole, half = (sum(len(goal.told) == len(goal.pieces) for goal in goals), sum(bool(goal.told) for goal in goals))
    assert 0.11 < whole / 300 < 0.23
    assert 0.25 < half / 300 < 0.42
    complete = [
        len(env.tasks[i].prompt[0]["content"].split(".")) for i, goal in enumerate(goals) if len(goal.told) == 3
    ]
    partial = [len(env.tasks[i].prompt[0]["content"].split(".")) for i, goal in enumerate(goals) if len(goal.told) == 2]
    assert min(complete) <= max(partial), "sentences that have no part in the goal stand between"


@every_id
def test_needless_question_costs_and_answer_does_not(env_id):
    env = textenvs.make(env_id, token_rate=0.0)
    index = next(i for i in range(200) if len(env.family.goal(env.tasks[i]).told) == 3)
    env.reset(seed=0, options={"task_index": index})
    assert env.state.messages[-1]["content"].endswith(env.form), "who has told everything says how to deliver"
    *_, info = env.step(env.goal.pieces[0].question)
    assert info["terms"]["needless"] == -0.1
    *_, info = env.step(env.demonstration(rng()))
    assert info["terms"]["needless"] == 0.0
    assert info["stop"] == "solved"
    env.reset(seed=0, options={"task_index": vague(env)[0]})
    first, second = (piece.question for piece in env.goal.pieces[:2])
    assert env.step(first)[-1]["terms"]["needless"] == 0.0
    assert env.step(f"And this: {first}")[-1]["terms"]["needless"] == -0.1, "it was told"
    assert env.step(second)[-1]["terms"]["needless"] == 0.0


@every_id
def test_too_many_wrong_deliveries_end_the_talk(env_id):
    for count in (None, 1, 3):
        env = textenvs.make(env_id, patience=9, deliveries=count)
        play(env, lambda env, generator: env.careless_reply(generator), 0, {"task_index": vague(env)[0]})
        assert (env.state.stop, env.state.assistant_turns) == ("user_left", count or type(env).deliveries)
        assert env.state.assistant_turns <= (count or 2), "no search by feedback"


@every_id
def test_splits_share_no_wording(env_id):
    """Apart from names and numbers: not one saying of a piece, nor a request, is in both."""

    def wordings(split):
        env = textenvs.make(env_id, split=split, level="hard")
        templates = set()
        for index in range(250):
            pieces = env.family.goal(env.tasks[index]).pieces
            values = "|".join(
                re.escape(text) for piece in pieces for text in (piece.requirement or {}).get("texts", ())
            )
            templates |= {re.sub(rf"{values or '0'}|\d+", "#", saying) for piece in pieces for saying in piece.sayings}
        return templates

    train, test = wordings("train"), wordings("test")
    assert len(train) > 100
    assert not train & test
