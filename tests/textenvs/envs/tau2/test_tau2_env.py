"""textenv/tau2: rewards that sum to tau2's, forks, users scripted and modelled, hostile calls and rows."""

import functools
import inspect
import json
import pickle
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tau2_data import DATA, SETS, needs_data

import textenvs
from textenvs.actions import as_reply
from textenvs.audit import Subject, contract
from textenvs.audit.twins import twins
from textenvs.envs.tau2 import Tau2, user
from textenvs.envs.tau2.evaluator import Criteria
from textenvs.envs.tau2.world import tools_of
from textenvs.messages import assistant
from textenvs.task import Rows, Task, TaskError
from textenvs.tools import call
from textenvs.users.moves import move_of

sys.path.insert(0, str(Path(__file__).parents[2] / "chat"))
from fake_service import FakeService  # noqa: E402

RNG = np.random.default_rng(0)
TASKS = [
    {
        "id": "one",
        "user_scenario": {
            "instructions": {
                "reason_for_call": "You want a task 'Tea'.",
                "known_info": "You are user_1.",
                "task_instructions": "You are brief. After the agent confirms, use dismiss_notification on notif_1.",
            }
        },
        "initial_state": {
            "initialization_actions": [
                {
                    "env_type": "user",
                    "func_name": "add_notification",
                    "arguments": {"notification_id": "notif_1", "message": "Hello."},
                }
            ]
        },
        "evaluation_criteria": {
            "actions": [{"action_id": "a", "name": "create_task", "arguments": {"user_id": "user_1", "title": "Tea"}}],
            "env_assertions": [
                {
                    "env_type": "user",
                    "func_name": "assert_notification_status",
                    "arguments": {"notification_id": "notif_1", "expected_status": "read"},
                }
            ],
            "communicate_info": ["12 o'clock"],
            "nl_assertions": ["The agent was polite.", "The agent did not say no."],
            "reward_basis": ["ACTION", "ENV_ASSERTION", "COMMUNICATE", "NL_ASSERTION"],
        },
    },
    {"id": "nothing to do", "user_scenario": {"instructions": "You want to chat."}, "evaluation_criteria": None},
]


@pytest.fixture
def own(tmp_path):
    """A data folder in tau2's form, with tasks of our own."""
    domain, user = tmp_path / "tau2" / "domains" / "mock", tmp_path / "tau2" / "user_simulator"
    domain.mkdir(parents=True)
    user.mkdir()
    users = {"user_1": {"user_id": "user_1", "name": "Ada", "tasks": []}}
    files = {
        "db.json": {"tasks": {}, "users": users},
        "user_db.json": {"notifications": {}},
        "tasks.json": TASKS,
        "split_tasks.json": {"base": [task["id"] for task in TASKS]},
    }
    for name, content in files.items():
        (domain / name).write_text(json.dumps(content))
    (domain / "policy.md").write_text("Be polite.")
    (user / "simulation_guidelines_tools.md").write_text("Say ###STOP### to leave.")
    return str(tmp_path)


@pytest.fixture(scope="module")
def service():
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    with FakeService() as service:
        yield service


def play(env, reply, index=0):
    """Play an episode, and return the rewards and the last info. ``reply`` is called with the environment."""
    env.reset(seed=0, options={"task_index": index})
    rewards = []
    while not env.state.done:
        action = reply(env)
        _, reward, _, _, info = env.step(action)
        rewards.append(reward)
        if env.player is None:  # a scripted user names its move wherever it is spoken to
            parsed = env.format.parse(as_reply(action))
            assert (move_of(info["metrics"]) is None) == bool(parsed.calls or parsed.problems)
    return rewards, info


def expert(env):
    return env.demonstration(RNG)


# ------------------------------------------------------------------ tau2's own tasks


@needs_data
@pytest.mark.parametrize(("domain", "split"), SETS)
def test_expert_solves_tasks_solvable_by_their_actions(domain, split):
    env = Tau2(domain=domain, split=split, data=str(DATA))
    # In two tasks of mock, tau2's own code does not pay the actions of the task either (test_tau2_reference.py).
    unsolved = {"mock/update_task_with_history_and_env_assertions", "mock/update_task_with_user_tools"}
    for index in range(env.tasks.size):
        rewards, info = play(env, expert, index)
        solved = env.task.key not in unsolved
        assert sum(rewards) == pytest.approx(float(solved), abs=1e-9), env.task.key
        assert info["stop"] == ("solved" if solved else "unsolved")


@needs_data
@pytest.mark.parametrize(("domain", "split"), SETS)
def test_silence_and_random_words_earn_nothing(domain, split):
    env = Tau2(domain=domain, split=split, data=str(DATA))
    rng = np.random.default_rng(1)
    for index in range(env.tasks.size):
        for reply in (lambda env: "", lambda env: " ".join(rng.choice(["x", "no", "tea", "?", "42"], 3))):
            assert sum(play(env, reply, index)[0]) == pytest.approx(0.0, abs=1e-9), env.task.key


@needs_data
@pytest.mark.parametrize(
    ("domain", "split"), [pytest.param(*names, marks=[pytest.mark.slow] * (names[0] != "mock")) for names in SETS]
)
def test_contract_of_every_environment(domain, split):
    def make():
        return textenvs.make("textenv/tau2", domain=domain, split=split, data=str(DATA))

    for verdict in contract(Subject(make, episodes=4)):
        assert verdict.status in ("pass", "skipped"), verdict


@needs_data
def test_prompt_has_policy_without_user_facts():
    env = Tau2(domain="telecom", split="small", manual="workflow", data=str(DATA))
    (system, user), _ = env.reset(options={"task_index": 0})
    folder = DATA / "telecom" if (DATA / "telecom").is_dir() else DATA / "tau2" / "domains" / "telecom"
    for name in ("main_policy.md", "tech_support_workflow.md"):
        assert (folder / name).read_text(encoding="utf-8").strip() in system["content"]
    assert '"name": "resume_line"' in system["content"]
    assert '"name": "toggle_roaming"' not in system["content"]  # a tool of the user
    assert "555-123-2002" not in user["content"]  # said when it is asked for
    conversation, *_ = env.step("May I have your phone number?")
    assert "555-123-2002" in conversation[-1]["content"]
    conversation, *_ = env.step("Please run a speed test.")
    assert "Speed test" in conversation[-1]["content"]


@needs_data
def test_fork_shares_records_and_isolates_changes():
    env = Tau2(data=str(DATA))
    env.reset(options={"task_index": 0})
    for _ in range(4):
        env.step(expert(env))
    before = pickle.dumps(env.state.db.edited)
    fork = env.fork()
    rewards = []
    while not fork.state.done:
        rewards.append(fork.step(expert(fork))[1])
    assert fork.state.db.changes()
    assert (env.state.db.changes(), pickle.dumps(env.state.db.edited)) == ({}, before)
    key, order = next(env.state.db.all("orders"))
    assert fork.state.db.get("orders", key) is order
    assert len(pickle.dumps(fork.snapshot())) < 200_000  # the database file has 2.8 MB
    env.restore(pickle.loads(pickle.dumps(env.snapshot())))
    again = []
    while not env.state.done:
        again.append(env.step(expert(env))[1])
    assert again == rewards


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@needs_data
@pytest.mark.parametrize(("domain", "split"), SETS)
def test_tools_answer_any_arguments(domain, split):
    env = Tau2(domain=domain, split=split, data=str(DATA))
    task_values = {
        str(value)
        for index in range(min(8, env.tasks.size))
        for action in json.loads(env.tasks[index].ground_truth).get("actions") or ()
        for value in action["arguments"].values()
    }
    some = JSON | st.sampled_from(sorted(task_values) or ["user_1"])

    @given(st.data())
    def check(data):
        env.reset(seed=0, options={"task_index": 0})
        tool = data.draw(st.sampled_from([*env.tools, *env.user_tools.tools]))
        names = st.sampled_from([*tool.parameters["properties"], "state", "tau2_state", "self"])
        made = call(tool.name, **data.draw(st.dictionaries(names, some)))
        env.state.db.changes()
        _, reward, *_ = env.step(assistant("", [made]))
        (result,) = env.user_tools.run_now([made], env.state)
        assert isinstance(result.content, str)
        assert env.fork().state.db.same(env.state.db)
        assert -1 <= reward <= 1

    check()


# ------------------------------------------------------------------ data of our own


def test_turns_are_paid_for_their_effects(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    env.reset(options={"task_index": 0})
    terms = {}
    for reply in (
        "Who are you? It is 12 o'clock.",
        assistant("", [call("create_task", user_id="user_1", title="Tea")]),
        "It is done. Anything else?",  # the user dismisses its notification, as its instructions say
    ):
        *_, info = env.step(reply)
        terms[reply if isinstance(reply, str) else "call"] = {k: v for k, v in info["terms"].items() if v}
    third = pytest.approx(1 / 3)
    assert list(terms.values()) == [{"communicate": third}, {"action": third}, {"env_assertion": third}]
    assert (info["stop"], info["metrics"]["nl_unjudged"]) == ("solved", 1.0)


@pytest.mark.parametrize("options", [{"max_assistant_turns": 2}, {"max_user_turns": 1}])
def test_exhausted_budget_takes_rewards_back(own, options):
    env = textenvs.make("textenv/tau2", domain="mock", data=own, **options)
    rewards, info = play(env, lambda env: "It is 12 o'clock. Who are you?")
    assert rewards[0] == pytest.approx(1 / 3)
    assert sum(rewards) == pytest.approx(0.0)
    assert info["stop"] == next(iter(options))


@pytest.mark.parametrize("index", [0, 1])  # the second asks for nothing, and is worth all while its user may leave
@pytest.mark.parametrize(
    ("options", "reply", "stop"),
    [({"max_assistant_turns": 2}, "12 o'clock.", "max_assistant_turns"), ({}, "...", "user_left")],
)
def test_conversation_not_ended_by_user_earns_nothing(own, options, reply, stop, index):
    env = textenvs.make("textenv/tau2", domain="mock", data=own, **options)
    rewards, info = play(env, lambda env: reply, index)
    assert (info["stop"], sum(rewards)) == (stop, pytest.approx(0.0))
    assert env.conversation_score() == {"reward": 0.0}


def test_ten_failed_calls_end_episode(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    broken = call("update_task_status", task_id="none", status="completed")
    rewards, info = play(env, lambda env: assistant("12 o'clock", [broken] * 5))
    assert (len(rewards), sum(rewards), info["stop"]) == (2, pytest.approx(0.0), "too_many_errors")


def test_scripted_user_identifies_itself_and_trusts_claims(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)

    def answer_to(words):
        return env.step(words)[0][-1]["content"]

    conversation, _ = env.reset(options={"task_index": 0})
    assert conversation[-1]["content"] == "I want a task 'Tea'."
    assert answer_to("All done. Anything else?") == "You have not asked me yet who I am."
    assert answer_to("What is your name?") == "I am user_1."
    assert answer_to("Shall I create the task? (yes/no)") == "Yes, please go ahead."
    assert answer_to("Please check your notifications.").startswith("[{'notification_id': 'notif_1'")
    assert answer_to("I have created it.") == "All right. Was that everything?"
    env.step(assistant("", [call("create_task", user_id="user_1", title="wrong")]))
    env.step("All done. Anything else?")
    assert env.state.stop == "unsolved"


def test_user_confirms_only_what_it_knows(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)

    def answer_to(words):
        return env.step(words)[0][-1]["content"]

    env.reset(options={"task_index": 0})
    assert answer_to("Shall I go on?") == "What exactly would you do?"
    assert answer_to("Shall I create the task for user_1?") == "I have not heard of user_1. What is that?"
    assert answer_to("Shall I create the task for user_1?") == "Yes, please go ahead."  # it was shown
    env.reset(options={"task_index": 0})
    answer_to("Who are you?")
    assert answer_to("Shall I create the task for user_1?") == "Yes, please go ahead."  # the user said it
    assert answer_to("Shall I create it for user_12 or W1234567?").startswith("I have not heard of user_12, W1234567.")


@needs_data
def test_proposals_are_no_oracle_of_the_right_ids():
    """Every id of an order is answered alike, whether the task's actions have it or not."""
    env = Tau2(data=str(DATA))
    for index in range(20):
        actions = json.loads(env.tasks[index].ground_truth)["actions"]
        right = {item_id for action in actions for item_id in action["arguments"].get("item_ids", ())}
        items = {item["item_id"] for _, order in env.folder.tables["orders"].items() for item in order["items"]}
        answers = set()
        for item in [*sorted(right)[:2], *sorted(items - right)[:3]]:
            env.reset(options={"task_index": index})
            for _ in range(2):
                env.step(f"Shall I return {item} (yes/no)?")
            answers.add(tuple(message["content"].replace(item, "ID") for message in env.state.messages[2:]))
        assert len(answers) == 1, index


@needs_data
@pytest.mark.parametrize(
    ("domain", "split"), [pytest.param(*names, marks=[pytest.mark.slow] * (names[0] != "mock")) for names in SETS]
)
def test_words_do_not_depend_on_ground_truth(domain, split):
    make = functools.partial(Tau2, domain=domain, split=split, data=str(DATA))
    verdict = twins(Subject(make, episodes=5))
    assert verdict.status == "pass", verdict


def test_user_never_reads_the_criteria():
    """Whatever the user does is a function of its scenario, the talk and the database."""
    assert not {"criteria", "gold"} & set(inspect.signature(user.answer).parameters)
    assert not re.search(r"state\.(gold|shares|communicated|reward_sum)", inspect.getsource(user))


# ------------------------------------------------------------------ information communicated, and needless changes


@pytest.mark.parametrize(
    ("reply", "communicated"),
    [
        ("It is 12 o'clock.", 1.0),
        ("IT IS 12 O'CLOCK, as I said.", 1.0),
        ("It is 312 o'clock.", 0.0),  # another number
        (assistant("It is 12 o'clock.", [call("get_users")]), 0.0),  # text beside a call is not shown to the user
        ("It is 12 o'clock. " + "x" * 4000, 0.0),
        ("It is 12 o'clock. " + " ".join(map(str, range(200))), 0.0),
        ("<think>It is 12 o'clock.</think>Well.", 0.0),
    ],
)
def test_unread_text_is_not_communicated(own, reply, communicated):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    env.reset(options={"task_index": 0})
    *_, info = env.step(reply)
    assert info["metrics"]["communicate"] == communicated


@pytest.mark.parametrize(
    ("text", "words", "communicated"),
    [
        ("180.1", "That is $180.10.", True),
        ("180.1", "That is $180.15.", False),
        ("1497.65", "You get $1,497.65 back.", True),
        ("10", "There are 10 of them.", True),
        ("10", "There are 210, or 105.", False),
        ("64GB", "It has 64gb.", True),
        ("IL", "Chicago, IL", True),
    ],
)
def test_numbers_are_communicated_as_a_whole(text, words, communicated):
    assert (
        Criteria.of({"communicate_info": [text], "reward_basis": ["COMMUNICATE"]}).communicated_in(words) == {text}
    ) == communicated


def test_history_beside_calls_is_not_communicated(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    task = json.loads(env.tasks[0].extra["tau2"])
    made = [{"name": "get_users", "arguments": {}, "id": "1"}]
    history = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "It is 12 o'clock.", "tool_calls": made},
        {"role": "tool", "content": "[]", "id": "1"},
        {"role": "assistant", "content": "Hello."},
    ]
    for content, communicated in (("Hello.", 0.0), ("It is 12 o'clock.", 1.0)):
        history[-1]["content"] = content
        task["initial_state"]["message_history"] = history
        row = env.tasks[0].to_row()
        row["extra_info"] = {**row["extra_info"], "tau2": json.dumps(task)}
        env.reset(options={"task": row})
        *_, info = env.step("Hello.")
        assert info["metrics"]["communicate"] == communicated


@needs_data
@pytest.mark.parametrize(("domain", "split"), SETS)
def test_conversation_score_starts_at_zero(domain, split):
    env = Tau2(domain=domain, split=split, data=str(DATA))
    for index in range(env.tasks.size):
        env.reset(options={"task_index": index})
        assert env.conversation_score() == {"reward": 0.0}, env.task.key


def test_solved_conversation_scores_its_reward(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    play(env, lambda env: "Done. Anything else?", 1)
    assert env.conversation_score() == {"reward": 1.0}


def test_needless_changes_are_counted_and_cost(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own, needless=-0.1)
    env.reset(options={"task_index": 0})
    right = call("create_task", user_id="user_1", title="Tea")
    steps = [
        (right, 0, 0.0),
        (call("get_users"), 0, 0.0),  # changes nothing
        (call("create_task", user_id="nobody", title="Tea"), 0, 0.0),  # refused
        (right, 1, -0.1),  # once more than it is wanted
        (call("update_task_status", task_id="task_1", status="completed"), 2, -0.1),
        (call("transfer_to_human_agents", summary="x"), 3, -0.1),
    ]
    for made, count, cost in steps:
        *_, info = env.step(assistant("", [made]))
        assert (info["metrics"]["needless"], info["terms"]["needless"]) == (count, pytest.approx(cost)), made
    *_, info = env.step("Please use dismiss_notification on notif_1.")
    assert info["metrics"]["needless"] == 4  # the user's phone, which no action of the task changes
    env.step("Who are you? It is 12 o'clock.")
    *_, info = env.step("Anything else?")
    assert (info["stop"], env.state.return_so_far) == ("solved", pytest.approx(1 - 0.4))


REPAIRS = (
    "reseat_sim_card",
    "reset_apn_settings",
    "reboot_device",
    "set_network_mode_preference, mode: 4g_5g_preferred",
    "disconnect_vpn",
    "grant_app_permission, app_name: messaging, permission: sms",
    "grant_app_permission, app_name: messaging, permission: storage",
)


@needs_data
def test_fixed_list_of_repairs_is_needless():
    env = Tau2(domain="telecom", split="small", data=str(DATA), needless=-0.1)
    repaired = expert_return = needless = 0.0
    for index in range(env.tasks.size):
        env.reset(options={"task_index": index})
        env.step("Could you tell me your name and phone number?")
        for repair in REPAIRS:
            env.step(f"Please do this on your side: {repair}.")
        env.step("That has been done. Is there anything else?")
        repaired += env.state.needless
        rewards, info = play(env, expert, index)
        expert_return, needless = expert_return + sum(rewards), needless + info["metrics"]["needless"]
    assert repaired / env.tasks.size > 2
    assert (needless, expert_return / env.tasks.size) == (0, pytest.approx(1.0))


def test_task_without_criteria_is_always_solved(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    rewards, info = play(env, lambda env: "Done. Anything else?", 1)
    assert (rewards, info["stop"]) == ([1.0], "solved")


def model(service):
    return {"model": "tiny", "base_url": service.url}


def test_model_user_calls_tools_and_leaves(own, service):
    env = Tau2(domain="mock", data=own, user=model(service))
    dismiss = '<tool_call>\n{"name": "dismiss_notification", "arguments": {"notification_id": "notif_1"}}\n</tool_call>'
    service.script("I want a task.", dismiss, "I have seen to it.", "Bye. ###TRANSFER###")
    conversation, _ = env.reset(options={"task_index": 0})
    assert conversation[-1]["content"] == "I want a task."
    request = json.dumps(service.requests[-1])
    assert "Say ###STOP### to leave." in request
    assert "You want a task 'Tea'." in request
    assert "dismiss_notification" in request
    conversation, reward, *_ = env.step("Please dismiss it.")
    assert conversation[-1]["content"] == "I have seen to it."
    assert reward == pytest.approx(1 / 3)
    assert "Notification notif_1 dismissed" in json.dumps(service.requests[-1])
    assert "Notification notif_1" not in json.dumps(conversation)
    env.step(assistant("", [call("create_task", user_id="user_1", title="Tea")]))
    conversation, *_, info = env.step("It is 12 o'clock.")
    assert (conversation[-1]["content"], info["stop"], env.state.return_so_far) == (
        "Bye.",
        "solved",
        pytest.approx(1.0),
    )


@pytest.mark.parametrize(("met", "total"), [([True, True], 1.0), ([True, False], 0.0), ([True], 0.0)])
def test_judge_decides_assertions_in_words(own, service, met, total):
    env = Tau2(domain="mock", data=own, judge=model(service))

    def verdict(request):
        code = request["messages"][-1]["content"].split("<data ")[1][:12]
        return {"data_code": code, "reasons": "so", "met": met}

    service.script(verdict)
    env.reset(options={"task_index": 0})
    total_reward = sum(
        env.step(reply)[1]
        for reply in (
            "Who are you? It is 12 o'clock.",
            assistant("", [call("create_task", user_id="user_1", title="Tea")]),
            "It is done. Anything else?",
        )
    )
    assert total_reward == pytest.approx(total, abs=1e-9)
    assert "The agent was polite." in json.dumps(service.requests[-1])


def test_row_roundtrip_plays_same_task(own):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    rows = [json.loads(json.dumps(env.tasks[i].to_row())) for i in range(2)]
    again = Tau2(Rows("rows", [Task.from_row(row, key="x") for row in rows]), domain="mock", data=own)
    assert again.reset(options={"task_index": 0})[0] == env.reset(options={"task_index": 0})[0]
    row = {**rows[0], "extra_info": {**rows[0]["extra_info"], "domain": "retail"}}
    with pytest.raises(TaskError, match="of the domain 'retail'"):
        env.reset(options={"task": row})
    row = {**rows[0], "extra_info": {**rows[0]["extra_info"], "tau2": "{}"}}
    with pytest.raises(TaskError, match="not a task of tau2"):
        env.reset(options={"task": row})


@pytest.mark.parametrize("name", ["__init__", "_record", "function", "db", "no_such", "edit"])
def test_rows_call_only_domain_functions(own, name):
    env = textenvs.make("textenv/tau2", domain="mock", data=own)
    task = json.loads(env.tasks[0].extra["tau2"])
    task["initial_state"]["initialization_actions"][0].update(func_name=name, arguments={})
    row = env.tasks[0].to_row()
    row["extra_info"] = {**row["extra_info"], "tau2": json.dumps(task)}
    with pytest.raises(TaskError, match="there is no function"):
        env.reset(options={"task": row})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"data": "/nowhere"}, "has no domain of tau2"),
        ({"domain": "retail"}, "no db.json or db.toml"),
        ({"split": "hard"}, "split must be one of base"),
        ({"split": "../x"}, "split must be a name"),
        ({"domain": "banking"}, "domain"),
        ({"tasks": "generated:x"}, "unknown level"),
    ],
)
def test_unplayable_options_are_refused_with_remedy(own, options, error):
    with pytest.raises(ValueError, match=error):
        textenvs.make("textenv/tau2", **{"domain": "mock", "data": own, **options})


def test_environment_variable_locates_data_folder(own, monkeypatch):
    monkeypatch.setenv("TAU2_DATA_DIR", own)
    gymnasium.make("textenv/tau2", domain="mock").reset(seed=0)
    monkeypatch.delenv("TAU2_DATA_DIR")
    with pytest.raises(ValueError, match="Clone https://github.com/sierra-research/tau2-bench"):
        gymnasium.make("textenv/tau2", domain="mock")


@pytest.mark.parametrize("domain", ["retail", "airline", "telecom", "mock"])
def test_every_argument_of_every_tool_is_described(domain):
    for side in ("assistant", "user"):
        for tool in tools_of(domain, side):
            assert all(argument["description"] for argument in tool.parameters["properties"].values()), tool
            assert pickle.loads(pickle.dumps(tool)).schema == tool.schema
