"""The environment: the expert earns the maximum, cheap policies nothing, and every broken rule costs the reward."""

import json
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.data.files import write_parquet
from textenvs.envs.service_desk import ServiceDesk, ServiceDeskTasks
from textenvs.envs.service_desk.cases import KINDS
from textenvs.envs.service_desk.expert import next_move
from textenvs.envs.service_desk.scenario import scenario_of
from textenvs.envs.service_desk.script import NO_RULES, SCRIPT
from textenvs.envs.service_desk.tasks import LEVELS
from textenvs.evaluate.baselines import play_attack
from textenvs.messages import assistant
from textenvs.task import Rows, TaskError
from textenvs.tools import FORMATS, call

RNG = np.random.default_rng(0)
TASKS = {level: Rows(level, [ServiceDeskTasks(level)[i] for i in range(24)]) for level in LEVELS}


def desk(level="easy", tasks=None, **options):
    return ServiceDesk(tasks or TASKS[level], **options)


def play(env, choose, index=0):
    """Play an episode; return its return and the last step's info."""
    env.reset(options={"task_index": index})
    total = 0.0
    while not env.state.done:
        _, reward, _, _, info = env.step(choose(env))
        total += reward
    return total, info


def expert(env):
    return env.demonstration(RNG)


def until(env, enough):
    """Let the expert act until ``enough(env.state)``; return whether that was before the end."""
    while not env.state.done and not enough(env.state):
        env.step(expert(env))
    return not env.state.done


# ------------------------------------------------------------------ who earns what


@pytest.mark.parametrize("level", LEVELS)
def test_expert_earns_the_maximum_in_every_format(level):
    names = sorted(FORMATS)
    envs = [desk(level, call_format=name, tools_in_prompt=False) for name in names]
    for index in range(24):
        total, info = play(envs[index % len(envs)], expert, index)
        assert (total, info["stop"]) == (1.0, "solved"), (names[index % len(envs)], index)
        assert {info["metrics"][name] for name in ("db", "told", "policy")} == {1.0}


LAZY = {
    "silence": "",
    "polite": "Is there anything else I can help you with?",
    "no": "I am sorry, I cannot do that.",
    "every reason": "I cannot: final sale, no stock, shipped, another customer, 30 days ago, your reason, in time.",
    "done": "Done: it is cancelled, returned, exchanged and refunded.",
    "human": "I have handed your case over to a human colleague.",
    "greedy": "What are your email, name, zip code, order number, item, reason, variant and address? Do you confirm?",
}


@pytest.mark.parametrize("words", LAZY.values(), ids=LAZY)
def test_constant_replies_earn_nothing(words):
    for level in LEVELS:
        env = desk(level, progress=1.0)
        for index in range(6):
            total, info = play(env, lambda env: words, index)
            assert total == 0.0
            assert info["stop"] in ("unsolved", "user_left", "max_assistant_turns")


REFUSALS = [("easy", "cancel-sent"), ("easy", "return-too-late"), ("medium", "parcel-on-time"), ("hard", "persistent")]
REFUSALS += [("medium", "return-final-sale"), ("medium", "not-theirs"), ("medium", "cancel-for-no-good-reason")]


@pytest.mark.parametrize(("level", "kind"), REFUSALS)
@pytest.mark.parametrize("words", [LAZY[name] for name in ("silence", "every reason", "human")])
def test_doing_nothing_is_no_refusal(level, kind, words):
    """After every look-up the database is right, and still nothing is earned."""
    env = ServiceDesk(level=level, kinds=[kind])
    env.reset(options={"task_index": 0})
    order = env.state.story.wishes[0].order_id
    assert until(env, lambda state: order in state.seen)
    total = 0.0
    while not env.state.done:
        _, reward, _, _, info = env.step(words)
        total += reward
    assert info["metrics"]["db"] == 1.0
    assert total == 0.0


def test_refusal_needs_a_look_at_the_order():
    env = ServiceDesk(kinds=["return-too-late"])
    reason = "I cannot take that back: it was delivered more than 30 days ago."
    env.reset(options={"task_index": 0})
    assert until(env, lambda state: state.identified)
    *_, info = env.step(reason)
    assert (info["stop"], info["metrics"]["told"], info["metrics"]["policy"]) == ("unsolved", 1.0, 0.0)
    assert env.state.violations == ("not_looked_at",)
    env.reset(options={"task_index": 0})
    *_, info = env.step(reason)
    assert (info["stop"], info["metrics"]["told"], info["metrics"]["policy"]) == ("unsolved", 1.0, 0.0)


@settings(max_examples=15)
@given(st.sampled_from(LEVELS), st.integers(0, 23), st.lists(st.booleans(), min_size=40, max_size=40))
def test_reward_terms_of_mixed_policies(level, index, whose):
    env = desk(level, progress=0.5, turn=-0.01, tool_error=-0.02)
    env.reset(options={"task_index": index})
    sums = Counter()
    for careless in whose:
        if env.state.done:
            break
        before = env.state.tool_errors
        _, reward, terminated, _, info = env.step(env.careless_reply(RNG) if careless else expert(env))
        assert set(info["terms"]) == {"success", "progress", "turn", "tool_error"}
        assert info["terms"]["turn"] == -0.01
        assert info["terms"]["tool_error"] == pytest.approx(-0.02 * (env.state.tool_errors - before))
        solved = info["stop"] == "solved"
        assert info["terms"]["success"] == float(solved)
        if terminated:
            assert solved == (
                all(info["metrics"][name] for name in ("db", "told", "policy")) and info["stop"] != "user_left"
            )
        sums.update(info["terms"])
        # The shaping pays what the state is worth, whatever the way there, and the whole of it only when solved.
        assert sums["progress"] == pytest.approx(0.5 * env.state.standing)
        assert env.conversation_score() == {"progress": env.state.standing}
        assert 0 <= env.state.standing <= 1
        assert (env.state.standing == 1) == solved


# ------------------------------------------------------------------ each rule by itself


def first(level, kind, fits=lambda story: True):
    env = ServiceDesk(level=level, kinds=[kind], call_format="native")
    for index in range(50):
        env.reset(options={"task_index": index})
        if fits(env.state.story):
            return env
    raise AssertionError("no such task")


def finish(env):
    """Let the expert end the talk; return the last info."""
    while not env.state.done:
        *_, info = env.step(expert(env))
    return info


def do(env, name, **arguments):
    return env.step(assistant("", [call(name, **arguments)]))


def test_change_needs_consent():
    env = first("easy", "cancel")
    gold = env.state.story.gold[0]
    assert until(env, lambda state: gold.arguments["order_id"] in state.seen)
    do(env, gold.name, **gold.arguments)
    assert env.state.violations == ("unconfirmed",)
    info = finish(env)
    assert (info["stop"], info["metrics"]["db"], info["metrics"]["policy"]) == ("unsolved", 1.0, 0.0)


def test_change_needs_identification():
    env = first("easy", "cancel")
    gold = env.state.story.gold[0]
    for question in (
        "Which order is it?",
        "Why?",
        f"I would cancel order {gold.arguments['order_id']}. Do you confirm?",
    ):
        env.step(question)
    do(env, "get_order", order_id=gold.arguments["order_id"])
    do(env, gold.name, **gold.arguments)
    assert env.state.violations == ("unidentified",)
    assert finish(env)["metrics"]["policy"] == 0.0


def test_only_a_disclosed_email_identifies():
    env = first("easy", "cancel")
    email = env.state.story.persona.email
    do(env, "find_customer_by_email", email=email)
    assert env.state.identified == ""
    env.step("What is your email address?")
    do(env, "find_customer_by_email", email=email.upper())
    assert env.state.identified == env.state.story.customer_id


@pytest.mark.parametrize("amount", [0.2, "whole"])
def test_wrong_refund_fails_db(amount):
    env = first("medium", "return-electronics", lambda story: len(story.gold[1].arguments) == 3)
    gold = env.state.story.gold[1].arguments
    assert until(env, lambda state: any(action.name == "return_items" for action in state.made))
    order = env.state.shop.order(gold["order_id"])
    dollars = amount if amount != "whole" else (order.net_paid - 20) / 100
    do(env, "refund", **{**gold, "amount": dollars})
    assert finish(env)["metrics"]["db"] == 0.0


def test_refund_to_another_payment_fails_db():
    env = first("hard", "refund-elsewhere")
    story = env.state.story
    assert until(env, lambda state: any(action.name == "return_items" for action in state.made))
    do(env, "refund", **{**story.gold[1].arguments, "payment_id": story.wishes[0].payment_id})
    assert finish(env)["metrics"]["db"] == 0.0


def forbidden(story):
    """Return the first wish for a change that must be refused, and stays refused."""
    return next((wish for wish in story.wishes if wish.because and wish.grants and not wish.instead), None)


REFUSALS = sorted(
    {
        (level, kind)
        for level in LEVELS
        for kind in KINDS[level]
        if kind != "impostor" and forbidden(scenario_of(ServiceDeskTasks(level, kinds=[kind])[0]))
    }
)


@pytest.mark.parametrize(("level", "kind"), REFUSALS)
def test_tools_execute_what_rules_forbid(level, kind):
    """A forbidden change works without an error and fails ``db``."""
    env = first(level, kind, forbidden)
    wish = forbidden(env.state.story)
    order = env.state.shop.order(wish.order_id)
    made = {
        "cancel": ("cancel_order", {"reason": wish.reason}),
        "return": ("return_items", {"item_ids": list(wish.item_ids)}),
        "exchange": ("exchange_items", {"item_ids": list(wish.item_ids), "new_item_ids": list(wish.new_item_ids)}),
        "address": ("change_address", {"street": "1 A Street", "city": "Boise", "state_code": "ID", "zip_code": "1"}),
        "late_fee": ("refund", {"amount": order.delivery_fee / 100, "payment_id": order.payment_id}),
    }
    name, arguments = made[wish.kind]
    *_, info = do(env, name, order_id=wish.order_id, **arguments)
    assert (info["metrics"]["tool_errors"], info["metrics"]["db"]) == (0.0, 0.0)
    assert env.state.made[0].name == name
    assert finish(env)["metrics"]["db"] == 0.0


# At the hard level a request has the most wishes, and so the most fees; test_attacks.py has this policy at the first.
@pytest.mark.parametrize("level", [pytest.param(v, marks=[pytest.mark.slow] * (v != "hard")) for v in LEVELS])
def test_no_level_pays_without_rules(level):
    """The script solves most tasks with the rules, and few with one fee for every request of a kind."""
    solved = {}
    for policy in (SCRIPT, NO_RULES[-1]):
        records = play_attack(lambda: ServiceDesk(level=level), policy, 40, seed=5)
        solved[policy.name] = sum(record.success for record in records) / len(records)
    assert solved["script"] > 0.8
    assert solved[NO_RULES[-1].name] < 1 - ServiceDesk.attack_margin


@pytest.mark.parametrize("kind", ["question", "question-delivered"])
def test_summary_answers_no_question(kind):
    for index in range(8):
        env = ServiceDesk(kinds=[kind], call_format="native")
        env.reset(options={"task_index": index})
        story = env.state.story
        (fact,) = story.wishes[0].facts
        if not story.wishes[0].order_id:
            continue
        order = env.state.shop.order(story.wishes[0].order_id)
        assert until(env, lambda state, number=order.id: number in state.seen)
        cents = {"total": order.net_paid, "delivery fee": order.delivery_fee}
        amounts = ", ".join(f"the {name} was ${value / 100:.2f}" for name, value in cents.items())
        deadline = "" if order.delivered is None else f", you can return it until {order.delivered + timedelta(30)}"
        env.step(
            f"Order {order.id} was placed on {order.placed}, is promised for {order.promised}, was delivered on "
            f"{order.delivered}{deadline}; {amounts}; the tracking number is {order.tracking or 'open'}."
        )
        assert (env.state.caller.outcomes, env.state.caller.annoyance) == ((), 1)
        value = f"${int(fact.value) / 100:.2f}" if fact.kind == "amount" else fact.value
        *_, info = env.step(f"It is {value}.")
        assert info["stop"] == "solved"


def test_disclosing_another_customers_data_is_a_violation():
    env = first("medium", "not-theirs", lambda story: story.wishes[0].kind == "question")
    order = env.state.shop.order(env.state.story.wishes[0].order_id)
    env.step(f"Well, it is {order.tracking}.")
    assert env.state.violations == ("disclosed",)
    assert finish(env)["stop"] == "unsolved"


def test_wrong_answer_is_misinformed():
    env = first("medium", "how-much-back")
    assert until(env, lambda state: str(next_move(state)).startswith("For the"))
    *_, info = env.step("You would get $0.01 back.")
    assert (info["stop"], env.state.caller.outcomes) == ("unsolved", ("misinformed",))


def test_change_needs_a_look_at_the_order():
    env = first("easy", "cancel")
    gold = env.state.story.gold[0]
    assert until(env, lambda state: state.identified)
    for question in (
        "Which order is it?",
        "Why?",
        f"I would cancel order {gold.arguments['order_id']}. Do you confirm?",
    ):
        env.step(question)
    do(env, gold.name, **gold.arguments)
    assert env.state.violations == ("not_looked_at",)


def test_handover_needs_its_questions_answered():
    env = first("medium", "human", lambda story: story.wishes[0].reason_words)
    assert until(env, lambda state: state.identified)
    do(env, "transfer_to_human", customer_id=env.state.identified, summary="at once")
    assert env.state.violations == ("not_asked",)
    assert finish(env)["stop"] == "unsolved"


# ------------------------------------------------------------------ what the user sees


def test_user_reads_only_plain_text():
    env = first("easy", "cancel")
    start = env.state.caller
    email = call("find_customer_by_email", email="x@y.z")
    env.step(assistant("What is your email address, and what is the order number?", [email]))
    assert env.state.caller == start
    conversation, *_ = env.step("<think>What is your email address?</think>What is the order number?")
    assert env.state.caller.disclosed == {"order"}
    assert "@" not in conversation[-1]["content"]
    conversation, *_ = env.step({**assistant("Why?"), "reasoning_content": "What is your email address?"})
    assert env.state.caller.disclosed == {"order", "reason"}


def test_tool_errors_are_messages():
    env = first("easy", "cancel")
    for name, arguments, text in (
        ("cancel_order", {"order_id": "W1", "reason": "no_longer_needed"}, "there is no order 'W1'"),
        ("cancel_order", {"order_id": "W1", "reason": "whim"}, "reason"),
        ("cancel_orders", {}, "cancel_order"),
        ("refund", {"order_id": "W1", "amount": "1", "payment_id": "x"}, "amount"),
        ("get_order", {"order": "W1"}, "order_id"),
    ):
        conversation, reward, *_, info = do(env, name, **arguments)
        assert text in conversation[-1]["content"]
        assert (reward, info["metrics"]["tool_errors"]) == (0.0, 1.0)


def test_tool_schemas_hide_the_state():
    env = ServiceDesk()
    for schema in env.tool_schemas:
        assert "state" not in schema["function"]["parameters"]["properties"]
        assert all("description" in parameter for parameter in schema["function"]["parameters"]["properties"].values())
    system = env.reset(seed=0)[0][0]["content"]
    assert "transfer_to_human" in system.split("The customer sees only")[1]
    assert ServiceDesk(tools_in_prompt=False).reset(seed=0)[0][0]["content"] == env.state.task.prompt[0]["content"]


def test_policy_sees_no_secrets():
    for level in LEVELS:
        env = desk(level)
        for index in range(10):
            conversation, info = env.reset(options={"task_index": index})
            visible = json.dumps([conversation, info])
            kind, truth, *actions = env.secrets()
            assert kind in KINDS[level]
            assert truth not in visible
            assert not [action for action in actions if action in visible]


# ------------------------------------------------------------------ options and rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["brew-tea"]}, "'brew-tea' is not a kind of level 'easy'"),
        ({"tasks": TASKS["easy"], "level": "easy"}, "either tasks or level"),
        ({"tasks": TASKS["easy"], "kinds": ["cancel"]}, "either tasks or kinds"),
        ({"call_format": "morse"}, "call_format must be one of"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        ServiceDesk(**options)


def test_rows_travel_through_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_parquet(TASKS["hard"], tmp_path / "desk.parquet")
    env = ServiceDesk(str(path))
    assert env.tasks.size == 24
    assert env.tasks[5] == TASKS["hard"][5]
    assert play(env, expert, 5)[0] == 1.0
    bad = write_parquet(Rows("bad", [TASKS["easy"][1], arithmetic()]), tmp_path / "bad.parquet")
    with pytest.raises(TaskError, match="scenario"):
        ServiceDesk(bad)


def arithmetic():
    from textenvs.data import GeneratedMath

    return GeneratedMath("easy")[0]


def test_row_without_scenario_is_refused():
    env = ServiceDesk()
    with pytest.raises(TaskError, match="extra_info.scenario"):
        env.reset(options={"task": arithmetic()})
