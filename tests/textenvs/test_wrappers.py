"""The wrappers: Gymnasium's rules, both interfaces alike, and what each of them promises."""

import math
import pickle
import warnings

import gymnasium
import pytest
from gymnasium import wrappers as stock
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import KINDS, AsyncGuess, Guess

import textenvs
from textenvs.lookahead import multiturn_aware_reward
from textenvs.messages import transcript
from textenvs.wrappers import MultiturnAwareReward, RewardTerms, TextObservation, TextWrapper

kinds = pytest.mark.parametrize("kind", KINDS)
words = st.sampled_from(["no", "tool", "quit", "secret3word", "other"])


def policy(conversation):
    """Another word every turn; also what 'test_wrappers:policy' names."""
    return f"guess {len(conversation)}"


def last(conversation):
    return conversation[-1]["content"]


WRAPPERS = {
    "TextObservation": lambda env: TextObservation(env),
    "TextObservation, template": lambda env: TextObservation(env, "test_wrappers:last"),
    "RewardTerms": lambda env: RewardTerms(env, {}, others=0.5),
    "MultiturnAwareReward": lambda env: MultiturnAwareReward(env, "test_wrappers:policy", samples=2, window=1),
    "MultiturnAwareReward, difference": lambda env: MultiturnAwareReward(env, policy, credit="difference"),
}
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


def play(env, actions, seed=0):
    seen = [env.reset(seed=seed)]
    for action in actions:
        if len(seen[-1]) == 5 and (seen[-1][2] or seen[-1][3]):
            break
        seen.append(env.step(action))
    return seen


async def aplay(env, actions, seed=0):
    seen = [await env.areset(seed=seed)]
    for action in actions:
        if len(seen[-1]) == 5 and (seen[-1][2] or seen[-1][3]):
            break
        seen.append(await env.astep(action))
    return seen


# ------------------------------------------------------------------ all of them


@every_wrapper
def test_gymnasiums_checker(wrap, capsys):
    env = wrap(gymnasium.make("textenv/gsm8k-interact"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    texts = [str(warning.message) for warning in caught]
    assert [text for text in texts if "different from the unwrapped" not in text] == []  # it asks for env.unwrapped


@pytest.mark.parametrize("name", sorted(set(WRAPPERS) - {"MultiturnAwareReward, difference"}))
def test_its_spec_is_json_where_callables_are_named(name):
    env = WRAPPERS[name](gymnasium.make("textenv/gsm8k-interact"))
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert play(again, ["no", "no"]) == play(env, ["no", "no"])


@every_wrapper
@kinds
def test_wrapper_is_picklable_during_an_episode(wrap, kind):
    env = wrap(kind())
    play(env, ["no"])
    moved = pickle.loads(pickle.dumps(env))
    assert moved.step("other") == env.step("other")


@every_wrapper
@kinds
async def test_both_interfaces_are_alike(wrap, kind):
    actions = ["no", "tool", "other", "secret5word"]
    expected = play(wrap(Guess()), actions)
    env = wrap(kind())
    assert await aplay(env, actions) == expected
    assert play(env, actions) == expected
    await env.aclose()
    assert env.unwrapped.cleaned == [True]


@every_wrapper
@given(kind=st.sampled_from(KINDS), actions=st.lists(words, min_size=1, max_size=5), seed=st.integers(0, 9))
@settings(max_examples=10)
def test_terms_sum_to_the_reward(wrap, kind, actions, seed):
    env = wrap(kind())
    for result in play(env, actions, seed):
        assert result[0] in env.observation_space
        if len(result) == 5:
            assert result[1] == pytest.approx(math.fsum(result[4]["terms"].values()), abs=1e-9)


@every_wrapper
async def test_wrapper_goes_around_gymnasiums_own(wrap):
    made = wrap(gymnasium.make("textenv/gsm8k-interact", render_mode="ansi"))
    plain = wrap(textenvs.make("textenv/gsm8k-interact"))
    assert await aplay(made, ["no", "no"], seed=4) == await aplay(plain, ["no", "no"], seed=4)
    assert made.render() == transcript(made.unwrapped.state.messages)
    assert made.step("no") == plain.step("no")
    await made.aclose()


@every_wrapper
async def test_unknown_wrapper_is_kept(wrap):
    limited = wrap(gymnasium.make("textenv/gsm8k-interact", max_episode_steps=1))
    assert limited.reset(seed=0)
    assert limited.step("no")[3]
    with pytest.raises(TypeError, match="TimeLimit has no astep.*max_assistant_turns"):
        await limited.areset(seed=0)


@every_wrapper
def test_only_text_environments_are_wrapped(wrap):
    with pytest.raises(TypeError, match="CartPole"):
        wrap(gymnasium.make("CartPole-v1"))


@every_wrapper
def test_wrappers_of_gymnasium_go_on_top(wrap):
    env = stock.RecordEpisodeStatistics(stock.TimeLimit(wrap(Guess()), 2))
    *_, (_, _, terminated, truncated, info) = play(env, ["no", "no", "no"])
    assert (terminated, truncated, info["episode"]["l"]) == (False, True, 2)


def test_wrappers_over_wrappers():
    env = TextObservation(MultiturnAwareReward(RewardTerms(Guess(), {"luck": 0.0}), policy, window=1))
    (start, _), (text, reward, *_, info) = play(env, ["no"])
    assert text.startswith(start)
    assert info["turn_reward"] == 0.0  # luck does not count,
    assert info["terms"]["return"] > 0  # except for the environment itself


async def test_own_wrapper_needs_one_hook():
    class Shout(TextWrapper[tuple]):
        def after_reset(self, observation, info):
            return observation, info | {"shout": True}

        async def after_step(self, action, result):
            return *result[:4], result[4] | {"shout": True}

    for env in (Shout(Guess()), Shout(AsyncGuess())):
        assert [result[-1]["shout"] for result in play(env, ["no"])] == [True, True]
        assert await aplay(env, ["no"]) == play(env, ["no"])


# ------------------------------------------------------------------ TextObservation


def test_the_conversation_as_text():
    env = TextObservation(Guess())
    for text, *_ in play(env, ["no", "tool"]):
        assert text.startswith("user: Guess word 5.")
    assert text == transcript(env.unwrapped.state.messages)
    assert env.observation_space != env.unwrapped.observation_space
    short = TextObservation(Guess(), last)
    assert [result[0] for result in play(short, ["no"])][1] == env.unwrapped.state.messages[3]["content"]
    with pytest.raises(ValueError, match="template"):
        TextObservation(Guess(), 3)


# ------------------------------------------------------------------ RewardTerms


@given(
    actions=st.lists(words, min_size=1, max_size=4),
    weights=st.dictionaries(st.sampled_from(["correct", "luck"]), st.floats(-3, 3)),
    default=st.floats(-3, 3),
)
def test_weighted_terms(actions, weights, default):
    plain = play(Guess(), actions)[1:]
    weighted = play(RewardTerms(Guess(), weights, default), actions)[1:]
    for before, after in zip(plain, weighted, strict=True):
        expected = {name: weights.get(name, default) * term for name, term in before[4]["terms"].items()}
        assert after[4]["terms"] == pytest.approx(expected)
        assert after[1] == pytest.approx(sum(expected.values()))
        assert {**after[4], "terms": 0} == {**before[4], "terms": 0}
        assert (after[0], *after[2:4]) == (before[0], *before[2:4])


def test_overflowing_weighted_term_is_refused():
    env = RewardTerms(Guess(), {}, others=1e300)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="RewardTerms: the weighted terms must be .* at most 1e\\+12"):
        env.step("no")


def test_unknown_terms_and_weights_are_refused():
    env = RewardTerms(Guess(), {"correctness": 1.0})
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"\['correctness'\].*\['correct', 'luck'\]"):
        env.step("no")
    for weights, default in (({"luck": float("nan")}, 1.0), ({"luck": "1"}, 1.0), ({}, float("inf"))):
        with pytest.raises(ValueError, match=r"weights\['luck'\]|others"):
            RewardTerms(Guess(), weights, default)


# ------------------------------------------------------------------ MultiturnAwareReward


@given(kind=st.sampled_from(KINDS), actions=st.lists(words, min_size=1, max_size=5), seed=st.integers(0, 9))
@settings(max_examples=15)
def test_turn_reward_is_that_of_futures(kind, actions, seed):
    options = {"samples": 2, "window": 1, "formula": "recipe", "judge": lambda messages: len(messages) / 10}
    env, bare = MultiturnAwareReward(kind(), policy, **options), Guess()
    expected = play(bare, actions, seed)
    seen = play(env, actions, seed)
    bare.reset(seed=seed)
    for action, before, after in zip(actions, expected[1:], seen[1:], strict=False):
        bare.step(action)
        result = textenvs.event_loop.wait_for(multiturn_aware_reward(bare, policy, **options))
        assert after[1] == result.reward
        assert (after[0], *after[2:4]) == (before[0], *before[2:4])
        info = dict(after[4])
        assert info.pop("turn_reward") == before[1]
        assert info.pop("terms") == result.terms
        assert info.pop("metrics") == before[4]["metrics"] | result.metrics()
        assert info == {name: before[4][name] for name in info}


@given(actions=st.lists(words, min_size=1, max_size=4), seed=st.integers(0, 9))
def test_differences_sum_to_conversation_score(actions, seed):
    env = MultiturnAwareReward(Guess(max_assistant_turns=len(actions)), policy, credit="difference")
    seen = play(env, actions, seed)[1:]
    assert seen[-1][2] or seen[-1][3]
    score = textenvs.event_loop.wait_for(multiturn_aware_reward(env.unwrapped, policy))
    assert sum(result[1] for result in seen) == pytest.approx(score.reward)
    for name, term in score.terms.items():
        assert sum(result[4]["terms"][name] for result in seen) == pytest.approx(term)


@pytest.mark.parametrize("ending", ["no", "quit"])
async def test_if_all_futures_fail_the_episode_has_failed(ending):
    def judge(messages):
        raise OSError("no judge")

    for start, step in (("reset", "step"), ("areset", "astep")):
        env = MultiturnAwareReward(Guess(), policy, judge=judge)
        await settled(getattr(env, start)(seed=0))
        _, reward, terminated, truncated, info = await settled(getattr(env, step)(ending))
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert (info["stop"], info["failed"], info["terms"]) == ("judge_failed", True, {"reward": 0.0})
        assert "no judge" in info["failure"]
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("no")
        await settled(getattr(env, start)(seed=0))


async def settled(value):
    return await textenvs.event_loop.settle(value)


def test_a_failed_turn_is_not_looked_at():
    env = MultiturnAwareReward(Guess(), policy)
    _, reward, _, truncated, info = play(env, ["fail"])[1]
    assert (reward, truncated, info["stop"], info["turn_reward"]) == (0.0, True, "user_failed", 0.0)


async def test_a_turn_whose_lookahead_raised_has_not_happened():
    raises = [False, True, False]

    def careless(conversation):
        if raises and raises.pop(0):
            raise KeyError("a bug")
        return "no"

    options = {"samples": 1, "window": 1, "credit": "difference"}
    for start, step in (("reset", "step"), ("areset", "astep")):
        raises[:] = [False, True]
        env, other = (
            MultiturnAwareReward(Guess(), wrapped, **options) for wrapped in (careless, lambda messages: "no")
        )
        for wrapped in (env, other):
            await settled(getattr(wrapped, start)(seed=0))
            await settled(getattr(wrapped, step)("one"))
        with pytest.raises(KeyError, match="a bug"):
            await settled(getattr(env, step)("two"))
        assert env.unwrapped.snapshot() == other.unwrapped.snapshot()
        assert await settled(getattr(env, step)("two")) == await settled(getattr(other, step)("two"))


def test_its_options_are_those_of_lookahead():
    with pytest.raises(ValueError, match="credit"):
        MultiturnAwareReward(Guess(), policy, credit="all")
    with pytest.raises(ValueError, match="samples"):
        MultiturnAwareReward(Guess(), policy, samples=0)
    env = MultiturnAwareReward(Guess(), policy, failures=(KeyError,), cost=0.5, weights={"return": 2.0})
    assert env.lookahead.failures == (KeyError,)
    assert env.lookahead.formula.rate == 0.5
    assert env.lookahead.weights == {"return": 2.0}


def test_uncopyable_policy_is_shared():
    class Model:
        def __call__(self, conversation):
            return "no"

        def __deepcopy__(self, memo):
            raise AssertionError("a model must not be copied")

    model = Model()
    assert MultiturnAwareReward(Guess(), model).lookahead.policy is model
