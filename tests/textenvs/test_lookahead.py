"""The multiturn-aware reward: its formulas from their sources, its promises as properties."""

import asyncio
import math
import pickle
import statistics

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playable import PLAYABLE
from skip_time import skip
from toy_envs import KINDS, Guess

import textenvs
from textenvs import EnvironmentFailure, TextEnv, Turn
from textenvs.chat.errors import BudgetExceeded, ChatFailure
from textenvs.event_loop import wait_for
from textenvs.lookahead import FORMULAS, Lookahead, multiturn_aware_reward
from textenvs.messages import assistant, system, user

kinds = pytest.mark.parametrize("kind", KINDS)


def ahead(env, policy, **options):
    return wait_for(multiturn_aware_reward(env, policy, **options))


def played(*replies, kind=Guess, seed=0, **kwargs):
    """An environment in which this was said."""
    env = kind(**kwargs)
    env.reset(seed=seed)
    for reply in replies:
        env.step(reply)
    return env


async def guesser(conversation):
    """Another word every turn."""
    await asyncio.sleep(0)
    return f"guess number {len(conversation)}"


class Chat(TextEnv):
    """A conversation of ten turns that is judged as a whole; the user's words are drawn."""

    def __init__(self, scores=lambda conversation: {"accuracy": 0.25}):
        super().__init__(Guess().tasks, max_assistant_turns=10)
        self.scores = scores

    def opening(self, task):
        return [system("Be brief."), assistant("How may I help?"), user("some words to begin with")]

    def respond(self, reply):
        words = "well " * int(self.np_random.integers(1, 40))
        return Turn([user(words)], reward=1.0)

    def conversation_score(self):
        return self.scores(self.state.messages)


# ------------------------------------------------------------------ the formulas, as their sources have them


def count(text):
    """A tokenizer: one token for three letters."""
    return (len(text) + 2) // 3


def texts_of(messages, *roles):
    return [m["content"].replace("<think>private</think>", "").strip() for m in messages if m["role"] in roles]


def paper(futures, before, judge, unit=5e-4):
    """S(Extract(t), y) - min[lambda * TokenCount(t), 1] + R_LLM(t), averaged over conversations t."""
    values = []
    for t in futures:
        tokens = sum(count(text) for text in texts_of(t, "user", "assistant"))
        values.append(accuracy(t) - min(unit * tokens, 1.0) + (judge(t) if judge else 0.0))
    return sum(values) / len(values)


def repository(futures, before, judge):
    """collabllm/reward.py: sum of metric * weight; token_amount (weight -0.5) = thousands of assistant tokens."""
    values = []
    for t in futures:
        read = sum(count(text) for text in texts_of(t, "assistant")) / 1000.0
        values.append(accuracy(t) * 1 + read * -0.5 + (judge(t) * 1 if judge else 0.0))
    return sum(values) / len(values)


def recipe(futures, before, judge):
    """verl's reward manager: each metric is averaged over rollouts, weighted, clamped to [-1, 1]; then added."""
    metrics = {"accuracy": [accuracy(t) for t in futures]}
    metrics["token_amount"] = [
        sum(len(text.split()) for text in texts_of(t[before:], "user", "assistant")) for t in futures
    ]
    if judge:
        metrics["interactivity"] = [judge(t) for t in futures]
    weights = {"accuracy": 1, "interactivity": 1, "token_amount": -0.0001}
    return sum(np.clip(np.sum(metrics[name]) * weights[name] / len(futures), -1.0, 1.0) for name in metrics)


def own(futures, before, judge):
    """Scores minus a word price without a limit, for all that was said after the opening (three messages here)."""
    values = []
    for t in futures:
        words = sum(len(text.split()) for text in texts_of(t[3:], "user", "assistant"))
        values.append(accuracy(t) - words / 10_000 + (judge(t) if judge else 0.0))
    return sum(values) / len(values)


def linear(futures, before, judge):
    """The same for tokens, at the paper's price."""
    values = []
    for t in futures:
        tokens = sum(count(text) for text in texts_of(t[3:], "user", "assistant"))
        values.append(accuracy(t) - tokens / 2_000 + (judge(t) if judge else 0.0))
    return sum(values) / len(values)


def accuracy(conversation):
    return (sum(len(m["content"]) for m in conversation) % 17) / 16


def interactivity(conversation):
    return (sum(len(m["content"]) for m in conversation if m["role"] == "assistant") % 5) / 4


ORACLES = {"textenvs": own, "linear": linear, "paper": paper, "repository": repository, "recipe": recipe}


def test_each_formula_has_an_oracle():
    assert FORMULAS.keys() == ORACLES.keys()


@pytest.mark.parametrize("judge", [None, interactivity])
@pytest.mark.parametrize("name", FORMULAS)
@given(
    replies=st.lists(
        st.sampled_from(["yes", "<think>private</think> well then", "a longer one " * 20]), min_size=1, max_size=4
    ),
    size=st.sampled_from([1, 3000, 12_000]),
)
@settings(max_examples=15)
def test_a_formula_gives_what_its_source_says(name, judge, replies, size):
    """Also where a conversation is so long that clamps hold, or would."""
    env = played(*replies, kind=lambda: Chat(lambda conversation: {"accuracy": accuracy(conversation)}))
    before = len(env.state.messages) - 2  # what was said before the reply that is rewarded
    result = ahead(env, lambda conversation: "word " * size, formula=name, judge=judge, count_tokens=count, samples=4)
    conversations = [future.conversation for future in result.futures]
    assert len({str(conversation) for conversation in conversations}) > 1
    # The judge sees no system message and no private reasoning.
    seen = judge and (lambda t: judge([{"role": "assistant", "content": text} for text in texts_of(t, "assistant")]))
    assert result.reward == pytest.approx(ORACLES[name](conversations, before, seen), abs=1e-9)
    assert result.reward == math.fsum(result.terms.values())
    assert set(result.terms) == {"accuracy", "cost"} | ({"interactivity"} if judge else set())


def test_weights_and_cost():
    env = played("hm", kind=lambda: Chat(lambda conversation: {"bleu": 0.5, "form": 1.0}))
    options = {"judge": lambda conversation: 0.3, "window": 0}
    result = ahead(env, guesser, weights={"bleu": 2.0, "interactivity": -1.0, "form": 0}, cost=0, **options)
    assert result.terms == {"bleu": 1.0, "form": 0.0, "cost": 0.0, "interactivity": -0.3}
    assert ahead(env, guesser, cost=1.0, **options).terms["cost"] == -ahead(env, guesser, **options).futures[0].length
    with pytest.raises(ValueError, match=r"\['blue'\].*\['bleu', 'form', 'interactivity'\]"):
        ahead(env, guesser, weights={"blue": 2.0}, **options)
    with pytest.raises(ValueError, match=r"weights names \['interactivity'\]"):
        ahead(env, guesser, weights={"interactivity": 2.0})


# ------------------------------------------------------------------ futures


@kinds
def test_futures_go_on_from_the_live_conversation(kind):
    env = played("first", kind=kind, max_assistant_turns=9)
    result = ahead(env, guesser, samples=5, window=3)
    assert (result.samples, len(result.futures), result.policy_calls, result.failures) == (5, 5, 15, ())
    for future in result.futures:
        before, after = future.conversation[: len(env.state.messages)], future.conversation[len(env.state.messages) :]
        assert before == env.state.messages
        assert [message["role"] for message in after] == ["assistant", "user"] * 3
        assert after[0]["content"] == f"guess number {len(before)}"
        assert (future.turns, future.over) == (3, False)
        assert future.words == sum(len(message["content"].split()) for message in after)
    assert len({future.conversation[-1]["content"] for future in result.futures}) == 5  # the user's luck differs
    assert result.terms["return"] == pytest.approx(statistics.fmean(f.scores["return"] for f in result.futures))
    metrics = result.metrics()
    assert metrics == {
        "lookahead_samples": 5.0,
        "lookahead_failures": 0.0,
        "lookahead_policy_calls": 15.0,
        "lookahead_turns": 15.0,
        "lookahead_words": float(sum(future.words for future in result.futures)),
    }


def test_future_score_defaults_to_its_return():
    env = played("a", "b", max_assistant_turns=4)
    so_far = env.state.return_so_far
    for future in ahead(env, guesser, window=9).futures:
        fork = played("a", "b", max_assistant_turns=4)
        lucks = [float(m["content"].split("(")[1].split(")")[0]) for m in future.conversation if "(" in m["content"]]
        assert future.scores["return"] == pytest.approx(sum(lucks), abs=1e-5)
        assert future.over
        assert fork.state.return_so_far == so_far < future.scores["return"]


@given(
    kind=st.sampled_from(KINDS),
    replies=st.lists(st.sampled_from(["no", "tool", "other"]), min_size=1, max_size=3),
    seed=st.integers(0, 50),
    window=st.integers(0, 3),
)
def test_looking_ahead_changes_nothing_and_can_be_repeated(kind, replies, seed, window):
    env, alone = kind(), Guess()
    start = env.reset(seed=seed)
    assert start == alone.reset(seed=seed)
    for reply in replies:
        assert env.step(reply) == alone.step(reply)
        before = env.snapshot()
        first = ahead(env, guesser, window=window)
        assert env.snapshot() == before
        assert ahead(env, guesser, window=window) == first
    assert alone.snapshot() == env.snapshot()


def test_seeds():
    env = played("no", max_assistant_turns=9)

    def futures(env, **options):
        return {future.conversation for future in map(Hashable, ahead(env, guesser, **options).futures)}

    assert futures(env, samples=3) < futures(env, samples=5)
    assert not futures(env, seed=1) & futures(env, seed=2)
    assert not futures(env) & futures(played("no", seed=1, max_assistant_turns=9))


class Hashable:
    def __init__(self, future):
        self.conversation = str(future.conversation)


@pytest.mark.parametrize(
    ("replies", "limit", "over"), [(["quit"], 4, True), (["no", "no"], 2, True), (["no"], 4, False)]
)
def test_what_is_over_is_scored_as_it_stands(replies, limit, over):
    def unexpected_policy(conversation):
        raise AssertionError("the policy must not be called")

    env = played(*replies, max_assistant_turns=limit)
    assert env.state.done == over
    result = ahead(env, unexpected_policy, samples=3, window=2 if over else 0, cost=0)
    assert (result.samples, result.policy_calls, len(result.futures)) == (1, 0, 1)
    assert result.futures[0].conversation == env.state.messages
    assert result.reward == env.state.return_so_far
    assert result.futures[0].over == over


def test_there_must_be_an_episode():
    with pytest.raises(gymnasium.error.ResetNeeded, match="Guess"):
        multiturn_aware_reward(Guess(), guesser)
    with pytest.raises(TypeError, match="OrderEnforcing; give its unwrapped"):
        multiturn_aware_reward(gymnasium.make("textenv/gsm8k"), guesser)


async def test_episode_continues_while_futures_are_played():
    env, still = played("no"), played("no")
    pending = multiturn_aware_reward(env, guesser)
    await env.astep("quit")
    assert await pending == await multiturn_aware_reward(still, guesser)


def test_what_policy_and_judge_are_given_is_theirs():
    def greedy(messages):
        messages[0]["content"] = "mine"
        return "no"

    def vandal(messages):
        assert messages[0]["content"] != "mine"
        messages[0]["content"] = "mine"
        return 1.0

    env = played("no")
    for future in ahead(env, greedy, judge=vandal).futures:
        assert future.conversation[: len(env.state.messages)] == env.state.messages == played("no").state.messages


def test_the_judge_sees_what_the_user_saw():
    seen = []
    env = played({**assistant("<think>secret</think>Hello"), "reasoning_content": "secret"}, kind=Chat)
    ahead(env, guesser, judge=lambda messages: seen.append(messages) or 0.5, window=0)
    assert [message["role"] for message in seen[0]] == ["assistant", "user", "assistant", "user"]
    assert seen[0][2] == assistant("Hello")
    assert "secret" not in str(seen)


def test_futures_are_not_rendered(capsys):
    env = played("no", render_mode="human")
    capsys.readouterr()
    ahead(env, guesser)
    assert capsys.readouterr().out == ""


# ------------------------------------------------------------------ concurrency


@kinds
async def test_all_futures_are_played_at_the_same_time(kind):
    barrier = asyncio.Barrier(6)

    async def policy(conversation):
        await asyncio.wait_for(barrier.wait(), 60)  # passes only if the futures of both episodes are here
        return "no"

    envs = [played("no", kind=kind), played("no", kind=kind)]
    await asyncio.gather(*(multiturn_aware_reward(env, policy, samples=3, window=1) for env in envs))


async def test_the_cap_holds_over_all_episodes():
    running, most, three = 0, [], asyncio.Event()

    async def policy(conversation):
        nonlocal running
        running += 1
        most.append(running)
        if running == 3:
            three.set()
        await three.wait()
        await asyncio.sleep(0)
        running -= 1
        return "no"

    lookahead = Lookahead(policy, samples=4, concurrency=3)
    await asyncio.gather(*(lookahead(played("no", seed=seed)) for seed in range(5)))
    assert max(most) == 3
    assert len(most) == 5 * 4 * 2


def test_one_lookahead_serves_several_event_loops():
    lookahead = Lookahead(guesser, concurrency=1)
    results = [asyncio.run(both(lookahead)) for _ in range(2)] + [[wait_for(lookahead(played("no")))] * 2]
    assert results[0] == results[1] == results[2]


async def both(lookahead):
    return await asyncio.gather(lookahead(played("no")), lookahead(played("no")))


# ------------------------------------------------------------------ failures


def failing(*bad, error=None):
    """A policy whose ``bad``-th calls fail: the simulated user does, or ``error`` is raised."""
    calls = iter(range(10_000))

    async def policy(conversation):
        call = next(calls)
        await asyncio.sleep(0)
        if call in bad and error is not None:
            raise error
        return "fail" if call in bad else f"guess {len(conversation)}"

    return policy


@kinds
@pytest.mark.parametrize(
    "error", [None, OSError("no route"), ChatFailure("busy"), EnvironmentFailure("judge_failed", "tired")]
)
def test_a_failed_future_is_left_out_and_counted(kind, error):
    env = played("no", kind=kind, max_assistant_turns=9)
    result = ahead(env, failing(1, 2, error=error), samples=4, window=2)
    assert (len(result.futures), len(result.failures), result.policy_calls) == (2, 2, 2 * 2 + 2)
    assert result.metrics()["lookahead_failures"] == 2.0
    assert {future.turns for future in result.futures} == {2}
    assert (str(error) if error else "user_failed: no answer after 3 tries") in result.failures[0]
    expected = statistics.fmean(future.scores["return"] for future in result.futures)
    assert result.terms["return"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("error", "stop"),
    [
        (None, "user_failed"),
        (OSError("no route"), "judge_failed"),
        (EnvironmentFailure("tool_failed", "tired"), "tool_failed"),
    ],
)
def test_if_all_fail_there_is_no_reward(error, stop):
    with pytest.raises(EnvironmentFailure, match="all 3 futures failed") as caught:
        ahead(played("no"), failing(*range(10), error=error), samples=3)
    assert caught.value.stop == stop
    assert caught.value.__cause__ is not None


def test_a_failing_judge_is_a_failed_future():
    grades = iter([0.5, OSError("busy"), 1.0])

    async def judge(conversation):
        grade = next(grades)
        if isinstance(grade, Exception):
            raise grade
        return grade

    result = ahead(played("no"), guesser, judge=judge)
    assert (result.terms["interactivity"], result.failures) == (0.75, ("OSError: busy",))


def test_an_episode_that_failed_has_no_reward():
    with pytest.raises(EnvironmentFailure, match="itself failed") as caught:
        ahead(played("fail"), guesser)
    assert caught.value.stop == "user_failed"


async def test_bug_is_raised_and_futures_stop():
    started, cancelled = 0, 0

    async def policy(conversation):
        nonlocal started, cancelled
        started += 1
        if started == 3:
            raise KeyError("a bug")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise

    with pytest.raises(KeyError, match="a bug"):
        await multiturn_aware_reward(played("no"), policy)
    assert (started, cancelled) == (3, 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(RuntimeError, match="boom"):
        await multiturn_aware_reward(played("no"), lambda conversation: "boom")
    with pytest.raises(gymnasium.error.InvalidAction):
        await multiturn_aware_reward(played("no"), lambda conversation: 3)
    with pytest.raises(BudgetExceeded, match="all spent"):  # it ends a run, not a future
        await multiturn_aware_reward(played("no"), failing(2, error=BudgetExceeded("all spent")))


def test_which_exceptions_are_failures_can_be_said():
    with pytest.raises(EnvironmentFailure, match="KeyError"):
        ahead(played("no"), failing(*range(10), error=KeyError("x")), failures=(KeyError,))
    with pytest.raises(OSError, match="no route"):
        ahead(played("no"), failing(0, error=OSError("no route")), failures=(EnvironmentFailure,))


async def test_a_future_that_takes_too_long_has_failed():
    calls = iter(range(10))

    async def policy(conversation):
        if next(calls) == 1:
            skip(asyncio.get_running_loop(), 60)
            await asyncio.Event().wait()
        return "no"

    result = await Lookahead(policy, concurrency=1, timeout_s=60)(played("no"))
    assert (len(result.futures), result.failures) == (2, ("TimeoutError: the future took longer than 60 s",))

    async def own(conversation):
        raise TimeoutError("of a client")

    with pytest.raises(TimeoutError, match="of a client"):
        await multiturn_aware_reward(played("no"), own, timeout_s=60, failures=(EnvironmentFailure,))


@pytest.mark.parametrize("grade", [None, "good", float("nan"), True])
def test_a_grade_is_a_finite_number(grade):
    with pytest.raises(ValueError, match="judge must return a finite number"):
        ahead(played("no"), guesser, judge=lambda conversation: grade)


@pytest.mark.parametrize(
    ("scores", "match"),
    [
        (lambda c: {}, "named scores"),
        (lambda c: 0.5, "named scores"),
        (lambda c: {"cost": 1.0}, "names of other|names \\['cost'\\]"),
        (lambda c: {"accuracy": float("inf")}, "finite"),
        (lambda c: {f"after {len(c[-1]['content'])}": 1.0}, "same names"),
    ],
)
def test_scores_are_named_finite_numbers(scores, match):
    with pytest.raises(ValueError, match=match):
        ahead(played("no", kind=lambda: Chat(scores)), guesser, samples=8)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"samples": 0}, "samples should be greater than or equal to 1, not 0"),
        ({"samples": True}, "samples"),
        ({"window": -1}, "window"),
        ({"window": 1.5}, "window"),
        ({"seed": -1}, "seed"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"formula": "papers"}, "textenvs, linear, paper, repository, recipe"),
        ({"formula": "paper"}, "count_tokens"),
        ({"cost": -1e-4}, "cost"),
        ({"cost": float("nan")}, "cost"),
        ({"weights": {"accuracy": "much"}}, r"weights\['accuracy'\]"),
        ({"judge": 0.5}, "judge must be a callable"),
        ({"policy": "no colon"}, "'module:name'"),
        ({"policy": "no_such_module:f"}, "no module 'no_such_module'"),
        ({"policy": "math:no_such_name"}, "has no 'no_such_name'"),
        ({"policy": "math:pi"}, "cannot be called"),
    ],
)
def test_options_are_checked(options, match):
    with pytest.raises(ValueError, match=match):
        Lookahead(**{"policy": guesser} | options)


def test_it_can_be_pickled():
    lookahead = Lookahead(guesser, concurrency=2)
    wait_for(lookahead(played("no")))
    again = pickle.loads(pickle.dumps(lookahead))
    assert wait_for(again(played("no"))) == wait_for(lookahead(played("no")))


# ------------------------------------------------------------------ every environment


@pytest.mark.parametrize("env_id", [env_id for env_id in PLAYABLE if env_id != "textenv/sessions"])
def test_every_environment_can_look_ahead(env_id):
    env, alone = textenvs.make(env_id), textenvs.make(env_id)
    turns = 0
    for seed in range(2):
        env.reset(seed=seed)
        alone.reset(seed=seed)
        while not env.state.done and env.state.assistant_turns < 8:
            rng = np.random.default_rng(seed)
            reply = alone.demonstration(rng) if env.state.assistant_turns == seed % 3 else "I do not know."
            assert env.step(reply) == alone.step(reply)
            result = ahead(env, lambda conversation: "I do not know either.", samples=2)
            assert result.failures == ()
            assert math.isfinite(result.reward)
            assert all(
                future.conversation[: len(env.state.messages)] == env.state.messages for future in result.futures
            )
            assert env.snapshot() == alone.snapshot()
            turns += 1
    assert turns >= 2


def test_lives_of_several_conversations_are_refused():
    env = textenvs.make("textenv/sessions")
    env.reset(seed=0)
    env.step("")
    with pytest.raises(ValueError, match="reward its turns in the environment"):
        ahead(env, lambda conversation: "unknown", samples=1)
