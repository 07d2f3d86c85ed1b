"""Programs of several roles: how a call names one, and which turns a reward is of."""

import json
import urllib.error

import pytest
from agent_kit import TASKS, ask, make, post

from textenvs import frozen_roles
from textenvs.chat.answer import Completion
from textenvs.envs.agent import Agent
from textenvs.messages import assistant, user

ROLES = ("solver", "verifier")


def refused(function, *arguments, **fields):
    """Return the status and the message of a request that is refused."""
    with pytest.raises(urllib.error.HTTPError) as refusal:
        function(*arguments, **fields)
    return refusal.value.code, json.load(refusal.value)["error"]["message"]


def solving(value, post_to=None):
    """Return a program whose solver and verifier speak twice each, and which returns ``value``."""

    def program(task, url, key):
        talks = {role: [user("Begin.")] for role in ROLES}
        for number in range(4):
            role = ROLES[number % 2]
            talks[role].append(ask(url, key, *talks[role], model=f"policy/{role}"))
            talks[role].append(user("Go on."))
        if post_to is not None:
            post(url, key, "rewards", {"reward": 0.5, **post_to})
        return value

    return program


def test_roles_have_conversations_and_rewards_of_their_own():
    env = make(solving({"verifier": [{"strict": 0.25}, -1.0], "solver": 2.0}), roles=ROLES)
    infos = [env.step(f"reply {number}")[-1] for number in range(4)]
    assert [info["role"] for info in infos] == ["verifier", "solver", "verifier", "verifier"]
    assert infos[-1]["stop"] == "solved"
    assert infos[-1]["terms"] == {"reward": 1.0, "strict": 0.25}
    assert infos[-1]["earlier"] == {1: {"strict": 0.25}, 2: {"reward": 2.0}}
    replies = [assistant(f"reply {number}") for number in range(4)]
    asides = (user("Begin."), replies[0], user("Go on."), replies[2])
    assert (env.state.contexts, env.state.context_roles) == ((asides,), ("solver",))
    assert env.state.messages == (user("Begin."), replies[1], user("Go on."), replies[3])


@pytest.mark.parametrize(
    ("value", "posted", "stop"),
    [
        ({"solver": 1.0, "verifier": -1.0}, None, "solved"),  # their sum is 0
        ({"solver": 0.0, "verifier": 5.0}, None, "done"),
        ([0.0, 5.0, 1.0, 0.0], None, "solved"),
        (None, {"role": "solver", "reward": 1.0}, "solved"),
        (None, {"reward": 1.0}, "done"),
    ],
)
def test_first_role_solves_the_task(value, posted, stop):
    env = make(solving(value, posted), roles=ROLES)
    assert [env.step("x")[-1]["stop"] for _ in range(4)] == [None] * 3 + [stop]


def test_posted_reward_may_name_a_role():
    def program(task, url, key):
        refusals.append(refused(post, url, key, "rewards", {"reward": 1.0, "role": "solver"}))
        ask(url, key, user("?"), model="policy/solver")
        ask(url, key, user("?"), model="policy/verifier")
        post(url, key, "rewards", {"terms": {"late": 1.0}, "role": "solver"})
        post(url, f"{key}/solver", "rewards", {"terms": {"late": 2.0}})
        post(url, key, "rewards", {"reward": 0.5})
        refusals.append(refused(post, url, f"{key}/solver", "rewards", {"reward": 1.0, "role": "verifier"}))

    refusals = []
    env = make(program, roles=ROLES)
    env.step("x")
    info = env.step("y")[-1]
    assert info["earlier"] == {0: {"late": 3.0}}
    assert info["terms"] == {"late": 3.0, "reward": 0.5}
    assert refusals[0] == (409, "no call of the role solver has a reply yet, so there is no turn to reward")
    assert refusals[1] == (400, "role names the role verifier, and the key's end solver")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "returned 1.0; with the option roles, rewards are by role, as in {'solver': 1.0} (of solver, verifier)"),
        ({"right": 1.0}, "rewards are by role"),
        ({"solver": 1.0, "right": 1.0}, "rewards are by role"),
        ({}, "rewards are by role"),
        ({"solver": [1.0]}, "for the role solver, 1 reward, and there were 2 turns"),
        ({"solver": "yes"}, "for the role solver, 'yes', which is neither a number"),
        ([1.0, 2.0], "2 rewards, and there were 4 turns"),
    ],
)
def test_other_rewards_pay_nothing(value, words):
    env = make(solving(value), roles=ROLES)
    info = [env.step("x")[-1] for _ in range(4)][-1]
    assert info["stop"] == "program_error"
    assert words in info["reason"]


@pytest.mark.parametrize(("worth", "stop"), [(0.0, "done"), (1.0, "program_error")])
def test_role_without_a_turn_earns_nothing(worth, stop):
    def program(task, url, key):
        ask(url, key, user("?"), model="policy/verifier")
        return {"solver": worth, "verifier": 1.0}

    info = make(program, roles=ROLES, success=0.0).step("x")[-1]
    assert info["stop"] == stop
    if worth:
        assert "for the role solver, 1.0, and it had no turn" in info["reason"]


def test_calls_name_a_role_by_model_or_key():
    pytest.importorskip("openai")
    import openai

    def program(task, url, key):
        with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
            models.extend(model.id for model in client.models.list())
            assert client.models.retrieve("policy/verifier").id == "policy/verifier"
        for name in ("policy/nobody", "policy", "gpt-5"):
            refusals.append(refused(ask, url, key, user("?"), model=name))
        refusals.append(refused(ask, url, f"{key}/nobody", user("?"), model="gpt-5"))
        refusals.append(refused(ask, url, f"{key}/solver", user("?"), model="policy/verifier"))
        ask(url, f"{key}/verifier", user("?"), model="gpt-5")
        ask(url, f"{key}/solver", user("?"), model="gpt-5")
        return {"solver": 1.0}

    models, refusals = [], []
    env = make(program, roles=ROLES)
    assert env.state.role == "verifier"
    assert env.step("x")[-1]["role"] == "solver"
    assert env.step("y")[-1]["stop"] == "solved"
    assert models == ["policy/solver", "policy/verifier"]
    declared = "and the roles are solver, verifier (the environment's option roles)"
    nameless = "names no role; call policy/solver or policy/verifier, or put a slash and the role's name behind the key"
    assert refusals == [
        (400, f"model names the role 'nobody', {declared}"),
        (400, f"model: 'policy' {nameless}"),
        (400, f"model: 'gpt-5' {nameless}"),
        (400, f"the key's end names the role 'nobody', {declared}"),
        (400, "model names the role verifier, and the key's end solver"),
    ]


def test_role_that_is_not_declared_is_refused():
    def program(task, url, key):
        refusals.append(refused(ask, url, key, user("?"), model="policy/solver"))
        ask(url, key, user("?"), model="gpt-5")
        return 1.0

    refusals = []
    env = make(program)
    assert env.step("x")[-1]["stop"] == "solved"
    text = "model names the role 'solver', and there are no roles (the environment's option roles)"
    assert refusals == [(400, text)]


@pytest.mark.parametrize(
    ("roles", "words"),
    [("solver", "a list of names"), ([], "a list of names"), (["a", "a"], "twice"), (["a/b"], "letters, digits")],
)
def test_names_of_roles_are_checked(roles, words):
    with pytest.raises(ValueError, match=words):
        Agent(solving(None), roles=roles)
    with pytest.raises(ValueError, match="a simulated user"):
        Agent(solving(None), roles=["user"])


@pytest.mark.parametrize("role", ROLES)
def test_fixed_model_may_play_a_role(role, monkeypatch):
    class Fixed:
        async def complete(self, observation, **options):
            return Completion("", assistant(f"frozen {len(observation)}"), "stop", None)

    async def client_for(spec):
        return Fixed()

    monkeypatch.setattr(frozen_roles, "client_for", client_for)
    options = {"agent": solving({"verifier": -1.0, "solver": 2.0}), "tasks": TASKS, "roles": ROLES}
    env = frozen_roles.FrozenRoles("textenv/agent", options, frozen={role: {"model": "m"}})
    env.reset(seed=0)
    _, earlier, *_ = env.step("mine")
    _, reward, *_, info = env.step("mine again")
    own = {"solver": 2.0, "verifier": -1.0}[next(name for name in ROLES if name != role)]
    assert (earlier, reward, info["stop"]) == (0.0, own, "solved")
    contents = [message["content"] for message in env.env.state.messages if message["role"] == "assistant"]
    assert contents in (["frozen 1", "frozen 3"], ["mine", "mine again"])
