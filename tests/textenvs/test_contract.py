"""The one contract that every environment that ships must keep, whatever its family."""

import copy
import functools
import json
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from playable import PLAYABLE as INSTALLED
from served import registered, running

import textenvs
from textenvs import TextEnv, TextVectorEnv
from textenvs.actions import as_reply
from textenvs.messages import assistant
from textenvs.sandbox import SandboxUnavailable
from textenvs.serve.remote import Remote
from textenvs.turn import EpisodeMessages, check_own_terms

# An environment of a server, and what that server plays.
REMOTE, PLAYED_THERE = "textenv/remote", "textenv/gsm8k-tool"
every_id = pytest.mark.parametrize("env_id", [*INSTALLED, REMOTE])


@functools.cache
def refusal(env_id: str) -> str:
    """Return this machine's error where it has no sandbox for an environment that runs programs."""
    try:
        textenvs.make(env_id)
    except SandboxUnavailable as refused:
        return str(refused)
    return ""


# An episode without a limit of its own must still end: this many replies are enough for any scripted one.
ENOUGH = 100

call = {"id": "call_0", "type": "function", "function": {"name": "no_such_tool", "arguments": '{"broken": '}}
GARBAGE = (
    "",
    "no",
    "#### ",
    "#### 1",
    "I think 3 + 4 = 7.\n#### 7",
    "#### -0.5",
    "#### 1,000,000",
    "#### 1e999",
    "#### ٣",
    "#### nan",
    "</think>#### 2",
    "<think>#### 2",
    "\x00\x1b[31m\r\n\u202e\ufeff",
    "lone \ud800 and \udfff",
    "#### " * 3000,
    "1," * 3000,
    "#### " + "9" * 5000,
    "<think>" * 3000,
    "(" * 3000,
    assistant("with a call", [call]),
    assistant("", [call, {**call, "id": "call_1"}]),
    {**assistant("x"), "reasoning_content": "#### 3 \ud800"},
    assistant("\ud800", [{**call, "function": {"name": "\ud83d", "arguments": "\udfff"}}]),
)
# What cannot be anybody's answer.
NONSENSE = (
    "",
    "\x00\x1b[31m\r\n\u202e\ufeff",
    "lone \ud800 and \udfff",
    "lorem ipsum dolor sit amet " * 4000,  # about 100 KB
    '<tool_call>\n{"name": "sub',
    '{"name": "submit", "parameters": {"answer"',
    "Action: submit\nAction Input: {",
    "```python\nprint(",
    assistant("", [call]),
)
any_reply = st.one_of(
    st.sampled_from(GARBAGE),
    st.text(st.characters() | st.characters(categories=["Cs"])),
    st.from_regex(r"#### ?-?\$?[0-9][0-9,]{0,6}(\.[0-9]{1,3})?", fullmatch=True),
)


@pytest.fixture(scope="module", autouse=True)
def server():
    """Serve textenv/remote, whose address an environment variable gives: it is made like any other environment."""
    with (
        running(registered(PLAYED_THERE), allow=["expert"], max_reply_bytes=2**23) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TEXTENVS_URL", server.url)
        yield server


@pytest.fixture(autouse=True)
def playable(request, server):
    """Skips, after a look at the remedy, what this machine cannot offer."""
    env_id = request.node.callspec.params["env_id"] if hasattr(request.node, "callspec") else REMOTE
    if text := refusal(env_id):
        assert "install bubblewrap" in text
        assert "user namespaces" in text
        pytest.skip("no sandbox here")


def secrets_of(env: TextEnv) -> Sequence[str]:
    """Return the texts that only the environment may know; of a remote one, only the server."""
    if not isinstance(env, Remote):
        return env.secrets()
    twin = make(PLAYED_THERE)
    twin.reset(seed=env.state.seed)
    return twin.secrets()


def make(env_id: str) -> TextEnv:
    return textenvs.make(env_id)


def drive(env, choose, seed, options=None):
    """Play an episode to its end; all that can be seen of it, and the actions."""
    rng = np.random.default_rng(seed)
    seen, actions = [env.reset(seed=seed, options=options)], []
    while not env.state.done:
        assert len(actions) < ENOUGH, "the episode does not end"
        actions.append(choose(env, rng))
        seen.append(env.step(actions[-1]))
    return seen, actions


def expert(env, rng):
    return env.demonstration(rng)


def babble(env, rng):
    return GARBAGE[rng.integers(len(GARBAGE))]


def mixed(env, rng):
    return (expert if rng.random() < 0.3 else babble)(env, rng)


def replay(env, actions):
    return [env.step(action) for action in actions]


# ------------------------------------------------------------------ Gymnasium


def test_gymnasium_makes_every_id_without_arguments_or_warnings():
    code = (
        "import gymnasium, socket, sys\n"
        "gymnasium.make('textenvs:' + sys.argv[1])  # the prefix imports the package\n"
        "connect = socket.socket.connect\n"
        "def offline(self, address):\n"
        "    assert address[0] == '127.0.0.1', 'an environment went to the network'\n"
        "    return connect(self, address)\n"
        "socket.socket.connect = offline\n"
        "for env_id in sys.argv[1:]:\n"
        "    env = gymnasium.make(env_id)\n"
        "    env.reset(seed=0)\n"
        "    env.step('no')\n"
        "    env.close()\n"
    )
    played = [*(env_id for env_id in INSTALLED if not refusal(env_id)), REMOTE]
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *played], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr


@every_id
def test_gymnasiums_checker(env_id, capsys):
    with warnings.catch_warnings(record=True) as caught:  # Gymnasium's logger warns through here
        warnings.simplefilter("always")
        check_env(gymnasium.make(env_id).unwrapped)
    assert [str(warning.message) for warning in caught] == []


@every_id
def test_spec_round_trips_as_json(env_id):
    env = gymnasium.make(env_id)
    again = gymnasium.make(EnvSpec.from_json(json.loads(json.dumps(env.spec.to_json()))))
    assert again.spec == env.spec
    assert again.reset(seed=1) == env.reset(seed=1)


# ------------------------------------------------------------------ the episode


@every_id
@pytest.mark.parametrize("choose", [expert, mixed])
def test_turns_keep_the_contract_and_repeat(env_id, choose):
    env, terms = make(env_id), set()
    for seed in range(4):
        seen, actions = drive(env, choose, seed)
        (conversation, info), *steps = seen
        assert set(info) == {"task_key", "task_index", "data_source"}
        assert conversation in env.observation_space
        for i, (grown, reward, terminated, truncated, info) in enumerate(steps):
            assert grown in env.observation_space
            extends = grown[: len(conversation)] == conversation
            assert extends == ("closing" not in info)
            added = grown[len(conversation) :] if extends else info["closing"]
            assert added[0]["role"] == "assistant"
            assert type(reward) is float
            assert reward == pytest.approx(sum(info["terms"].values()))
            assert ("own_terms" in info) == ("earlier" in info)
            check_own_terms(info, reward)
            assert not (terminated and truncated)
            assert (terminated or truncated) == (i == len(steps) - 1) == (info["stop"] is not None)
            assert not info["failed"]
            assert all(type(number) is float for number in (*info["terms"].values(), *info["metrics"].values()))
            json.dumps(info, allow_nan=False)
            json.dumps(grown, ensure_ascii=False).encode("utf-8")
            terms.add(frozenset(info["terms"]))
            conversation = grown
        if env.max_assistant_turns is not None:
            assert len(actions) <= env.max_assistant_turns
        if env.max_user_turns is not None:
            assert info["user_turns"] <= env.max_user_turns
        other = make(env_id)
        assert [other.reset(seed=seed), *replay(other, actions)] == seen
        np.random.seed(seed)  # noqa: NPY002  nothing reads the global generator
        assert [env.reset(seed=seed), *replay(env, actions)] == seen
    assert len(terms) == 1, f"the reward's terms have different names on different turns: {terms}"


@every_id
@settings(max_examples=15)
@given(replies=st.lists(any_reply, min_size=1, max_size=4), seed=st.integers(0, 50))
def test_no_reply_makes_it_raise(env_id, replies, seed):
    env = shared(env_id)
    env.reset(seed=seed)
    for reply in replies:
        if not env.state.done:
            env.step(reply)


@every_id
def test_a_huge_reply_is_only_a_reply(env_id):
    env = make(env_id)
    for part in ("9", "#### ", "1,", "<think>", "a<think>b</think>"):
        env.reset(seed=0)
        env.step(part * (300_000 // len(part)))


@every_id
def test_garbage_earns_nothing(env_id):
    for nonsense in NONSENSE:
        env = make(env_id)
        seen, _ = drive(env, lambda env, rng, nonsense=nonsense: nonsense, seed=1)
        assert all(step[1] <= 0 for step in seen[1:]), f"{nonsense!r:.60} earned {[step[1] for step in seen[1:]]}"


@every_id
def test_the_environment_keeps_its_secrets(env_id):
    env = make(env_id)
    tested = 0
    for seed in range(15):
        seen, actions = drive(env, babble, seed)
        opening = seen[0][0]
        episode = EpisodeMessages.begin(opening)
        for action, (observation, *_, info) in zip(actions, seen[1:], strict=True):
            episode = episode.step(as_reply(action), observation, info.get("closing"))
        opening_text = " ".join(message["content"] for message in opening)
        later = episode.messages[len(opening) :]
        answers = " ".join(message["content"] for message in later if message["role"] != "assistant")
        replies_text = " ".join(map(repr, episode.replies))
        info_text = " ".join(repr(step[-1]) for step in seen)
        for secret in secrets_of(env):
            text = rf"(?<![\w.,]){re.escape(secret)}(?!\w|[.,]\d)"
            if not re.search(text, opening_text) and not re.search(text, replies_text):
                tested += 1
                assert not re.search(text, answers), f"seed {seed}: the environment said {secret!r}"
                # A short number stands in info by chance: a count, a reward of 0.
                assert len(secret) < 4 or not re.search(text, info_text), f"seed {seed}: info has {secret!r}"
    assert tested, "not one secret was put to the test"


# ------------------------------------------------------------------ determinism, snapshots, processes


@every_id
def test_tasks_depend_on_their_index_alone(env_id):
    one, two = make(env_id).tasks, make(env_id).tasks
    size = one.size or 10_000
    indices = [int(i) for i in np.random.default_rng(0).integers(size, size=20)]
    forwards = [one[i] for i in indices]
    assert [two[i] for i in reversed(indices)] == forwards[::-1]
    assert len({task.key for task in forwards}) == len(set(indices))


@every_id
@pytest.mark.parametrize("choose", [expert, mixed])
def test_snapshots_and_forks_continue_alike_from_every_turn(env_id, choose):
    """A long episode is left at some turns, from the last: what is played grows with the square of their number."""
    env, other = make(env_id), make(env_id)
    seen, actions = drive(env, choose, seed=1)
    for turn in range(len(actions))[:: -max(1, len(actions) // 6)]:
        env.reset(seed=1)
        replay(env, actions[:turn])
        saved, fork, moved = env.snapshot(), env.fork(), pickle.loads(pickle.dumps(env))
        other.restore(pickle.loads(pickle.dumps(saved)))
        fork.fork().step("a future that did not happen")
        for copied in (fork, env, moved, other.fork(), copy.deepcopy(other), other):
            assert replay(copied, actions[turn:]) == seen[turn + 1 :]


@every_id
def test_the_vector_environment_plays_like_single_ones(env_id):
    """In the mode with the most to get wrong; test_vector.py has all of them."""
    count, steps = 3, 8
    envs = gymnasium.make_vec(env_id, num_envs=count, autoreset_mode="SameStep")
    assert isinstance(envs, TextVectorEnv)
    singles = [make(env_id) for _ in range(count)]
    rng = np.random.default_rng(0)
    conversations, _ = envs.reset(seed=40)
    assert conversations == tuple(env.reset(seed=40 + i)[0] for i, env in enumerate(singles))
    for _ in range(steps):
        actions = [mixed(env, rng) for env in singles]
        conversations, rewards, terminations, truncations, infos = envs.step(actions)
        for i, env in enumerate(singles):
            conversation, reward, terminated, truncated, info = env.step(actions[i])
            assert (rewards[i], terminations[i], truncations[i]) == (reward, terminated, truncated)
            ended = terminated or truncated
            final = infos["final_info"] if ended else infos
            assert {name: values[i] for name, values in final["terms"].items() if name[0] != "_"} == info["terms"]
            assert final["stop"][i] == info["stop"]
            if ended:
                assert infos["final_obs"][i] == conversation
                conversation, _ = env.reset()
            assert conversations[i] == conversation
    envs.close()


_made: dict[str, TextEnv] = {}


def shared(env_id: str) -> TextEnv:
    """One environment for many hypothesis examples; each resets it."""
    return _made.setdefault(env_id, make(env_id))
