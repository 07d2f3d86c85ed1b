"""Generated tasks: functions of their index, right by the written rules, with disjoint splits."""

import functools
import itertools
import json
import pickle
import re
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.envs.service_desk import ServiceDesk, ServiceDeskTasks, Wish, script, task_of
from textenvs.envs.service_desk.cases import KINDS
from textenvs.envs.service_desk.scenario import from_json, scenario_of, to_json
from textenvs.envs.service_desk.shop_rules import policy_text
from textenvs.envs.service_desk.tasks import LEVELS
from textenvs.task import Task, TaskError, split_choices
from textenvs.text import load_yaml

levels = st.sampled_from(LEVELS)
splits = st.sampled_from(("train", "test"))
every_kind = pytest.mark.parametrize(("level", "kind"), [(level, kind) for level in LEVELS for kind in KINDS[level]])


@functools.cache
def stories(level, kind, count=4):
    tasks = ServiceDeskTasks(level, kinds=[kind])
    return [scenario_of(tasks[i]) for i in range(count)]


@settings(max_examples=10)
@given(levels, splits, st.integers(0, 2**31 - 1), st.integers(-5, 2**40))
def test_task_is_a_function_of_its_index(level, split, index, seed):
    tasks = ServiceDeskTasks(level, seed, split)
    task = tasks[index]
    assert task == pickle.loads(pickle.dumps(tasks))[index]
    assert task == Task.from_row(json.loads(json.dumps(task.to_row())), key="?")
    assert task.key == f"{level}/{split}/{seed}/{index}"
    scenario = scenario_of(task)
    assert from_json(to_json(scenario)) == scenario
    assert task.prompt[0]["content"] == policy_text(scenario.database)
    assert scenario.kind in KINDS[level]
    assert scenario.kind not in task.key


@every_kind
def test_gold_replays_and_changes_only_its_targets(level, kind):
    for scenario in stories(level, kind):
        before = scenario.database
        after = before.replay(scenario.gold)
        assert after == before.replay(scenario.gold)
        touched = {action.arguments.get("order_id", action.arguments.get("customer_id")) for action in scenario.gold}
        assert before.differences(after) == touched
        for order_id in touched & before.orders.keys():
            assert before.orders[order_id].customer_id == scenario.customer_id
        refused = all(wish.because or wish.switch or wish.kind == "question" for wish in scenario.chain)
        assert refused == (not scenario.gold)


@every_kind
def test_reason_is_the_only_true_one(level, kind):
    """The rules once more, by the dates and marks in the database."""
    for scenario in stories(level, kind):
        shop = scenario.database
        for wish in scenario.chain:
            order = shop.orders.get(wish.order_id)
            true = set()
            if not scenario.customer_id:
                true.add("identity")
            elif order is not None and order.customer_id != scenario.customer_id:
                true.add("not_yours")
            elif order is not None:
                lines = [line for line in order.lines if line.item_id in wish.item_ids]
                moves = wish.kind in ("return", "exchange")
                if wish.kind in ("cancel", "address") and order.status in ("shipped", "delivered"):
                    true.add("shipped")
                if wish.kind == "cancel" and wish.reason not in ("no_longer_needed", "ordered_by_mistake"):
                    true.add("cancel_reason")
                if (moves or wish.kind == "late_fee") and order.status != "delivered":
                    true.add("not_delivered")
                if moves and order.delivered and order.delivered + timedelta(days=30) < shop.today:
                    true.add("window")
                if moves and any(line.final_sale for line in lines):
                    true.add("final_sale")
                if wish.payment_id not in ("", order.payment_id):
                    true.add("payment")
                if any(shop.item(item_id)[1].stock == 0 for item_id in wish.new_item_ids):
                    true.add("stock")
                if (
                    wish.kind == "late_fee"
                    and order.delivered
                    and order.delivered <= order.promised + timedelta(days=3)
                ):
                    true.add("on_time")
            assert true == ({wish.because} if wish.because else set())


def test_return_refunds_follow_the_rules():
    seen = set()
    for level, kind in (("easy", "return"), ("medium", "return-electronics"), ("hard", "return-two-exchange-one")):
        for scenario in stories(level, kind, 30):
            wish, shop = scenario.wishes[0], scenario.database
            order, plus = shop.orders[wish.order_id], shop.customers[scenario.customer_id].plus
            dollars = 0.0
            for line in order.lines:
                if line.item_id in wish.item_ids:
                    electronic = shop.products[line.product_id].category == "electronics"
                    worn = (shop.today - order.delivered).days > 14
                    dollars += line.price / 100 * (1 - 0.1 * worn - 0.15 * (electronic and not plus))
                    seen.add((electronic, worn, plus))
            dollars -= 0 if plus else 4
            (refund,) = (action for action in scenario.gold if action.name == "refund")
            assert refund.arguments["amount"] == pytest.approx(dollars)
            assert refund.arguments["payment_id"] == order.payment_id
            assert wish.facts[0].value == str(round(dollars * 100))
    assert len(seen) == 8


def test_fees_and_late_refunds_follow_the_rules():
    """By the texts of the rules: what cancelling, moving, exchanging and a late parcel cost or pay."""
    seen = set()
    for level, kind in (
        ("easy", "cancel"),
        ("easy", "change-address"),
        ("medium", "exchange"),
        ("easy", "late-parcel"),
    ):
        for scenario in stories(level, kind, 40):
            (wish,), shop = scenario.wishes, scenario.database
            order, plus = shop.orders[wish.order_id], shop.customers[scenario.customer_id].plus
            prices = sum(line.price for line in order.lines) / 100
            packed = (shop.today - order.placed).days > 5
            if wish.kind == "cancel":
                recent = (shop.today - order.placed).days < 2
                case, money = (recent, packed, plus and not recent), -(prices + order.delivery_fee / 100)
                money += 0 if recent else prices * ((0.2 if packed else 0.1) - 0.05 * plus)
            elif wish.kind == "address":
                far = wish.address.state != order.address.state
                case, money = (far, packed, plus), ((7 if far else 3) + 2 * packed) / (1 + plus)
            elif wish.kind == "exchange":
                product, _ = shop.item(wish.item_ids[0])
                electronic, worn = product.category == "electronics", (shop.today - order.delivered).days > 14
                case, money = (electronic, worn, plus), (9 if electronic else 4) + 3 * worn - 4 * plus
            else:
                late, fee = (order.delivered - order.promised).days, order.delivery_fee / 100
                band = 0 if late <= 7 else 1 if late <= 14 else 2 if late <= 21 else 3
                case, money = (band, plus), -(fee / 2, fee, fee + 5, fee + 10)[band] - 2 * plus
            seen.add((wish.kind, case))
            moved = {"refund": -1, "charge": 1}
            booked = [
                moved[action.name] * action.arguments["amount"] for action in scenario.gold if action.name in moved
            ]
            assert sum(booked) == pytest.approx(money)
            assert {action.arguments.get("payment_id", order.payment_id) for action in scenario.gold} == {
                order.payment_id
            }
    assert {kind: sum(entry[0] == kind for entry in seen) for kind, _ in seen} == {
        "cancel": 5,
        "address": 8,
        "exchange": 8,
        "late_fee": 8,
    }


def decisions(wish, scenario):
    """The decisions that are right for a wish and could be taken for every wish of its kind."""
    if wish.because:
        return {f"refused: {wish.because}"}
    if wish.switch == "confirm":
        return {"granted"}
    if wish.kind == "human" or wish.kind == "question" and wish.topic != "refund":
        return {"answered"}
    order, moved = scenario.database.orders[wish.order_id], int(wish.facts[0].value)
    prices = sum(line.price for line in order.lines if not wish.item_ids or line.item_id in wish.item_ids)
    fees = range(0, 1300, 50)
    if wish.kind == "cancel":
        return {
            f"granted less {percent} %"
            for percent in range(0, 100, 5)
            if order.net_paid - moved == prices * percent / 100
        }
    if wish.kind == "late_fee":
        return {
            f"granted: {share} of the fee and {extra}"
            for share in (0.5, 1.0)
            for extra in fees
            if order.delivery_fee * share + extra == moved
        }
    if wish.kind == "address":
        return {f"granted for {moved}"}
    if wish.kind == "exchange":
        difference = prices - sum(scenario.database.item(item_id)[1].price for item_id in wish.new_item_ids)
        return {f"granted for {fee}" for fee in fees if abs(difference - fee) == moved}
    return {
        f"granted less {percent} % and {fee}"
        for percent in range(0, 100, 5)
        for fee in fees
        if prices * (100 - percent) / 100 - fee == moved
    }


# The fewer wishes a task has, the more such a policy solves.
@pytest.mark.parametrize("level", [pytest.param(v, marks=[pytest.mark.slow] * (v != "easy")) for v in LEVELS])
def test_one_decision_a_kind_pays_little(level):
    """The policy that decides all wishes of a kind alike, with the fee or reason that is right most often."""

    def talks(seed):
        tasks = ServiceDeskTasks(level, seed=seed)
        scenarios = (scenario_of(tasks[i]) for i in range(300))
        return [
            [(wish.topic or wish.kind, decisions(wish, scenario)) for wish in scenario.chain] for scenario in scenarios
        ]

    def solved(policy, played):
        def holds(kind, right):
            decision = policy.get(kind, "")
            return decision in right or ("granted" in right and decision.startswith("granted"))

        return sum(all(itertools.starmap(holds, talk)) for talk in played) / len(played)

    first, second = talks(1), talks(2)
    counts = defaultdict(Counter)
    for kind, right in itertools.chain.from_iterable(first):
        counts[kind].update(right)
    policy = {kind: max(choices, key=choices.get) for kind, choices in counts.items()}
    for kind in (*policy, *policy):
        policy[kind] = max(counts[kind], key=lambda choice: solved({**policy, kind: choice}, first))
    assert solved(policy, second) < 1 - ServiceDesk.attack_margin


def test_question_for_money_is_independent_of_fee():
    """The customer's words do not disclose the fee."""
    for level, kind in (
        ("easy", "change-address"),
        ("medium", "exchange"),
        ("easy", "cancel"),
        ("easy", "late-parcel"),
    ):
        drawn = [scenario.wishes[0].facts for scenario in stories(level, kind, 40)]
        assert {len(facts) for facts in drawn} == {1}
        assert len({fact.ask for (fact,) in drawn}) == 1
        if kind == "change-address":
            fees = {"150", "250", "300", "350", "450", "500", "700", "900"}
            assert {fact.value for (fact,) in drawn} == fees


@every_kind
def test_splits_share_no_wording(level, kind):
    def words(split):
        tasks, wordings = ServiceDeskTasks(level, split=split, kinds=[kind]), set()
        for i in range(6):
            scenario = scenario_of(tasks[i])
            assert scenario.persona.split == split
            wordings |= {re.sub(r"\$[\d.]+", "$", wish.reason_words) for wish in scenario.chain} - {""}
            wordings |= {
                wish.opening for wish in scenario.chain if not wish.opening.endswith(tuple(wish.wanted or "*"))
            }
        return wordings

    assert not words("train") & words("test")


@every_kind
def test_no_product_is_in_two_orders(level, kind):
    """Otherwise "the order with the lamp" would be two orders."""
    for scenario in stories(level, kind):
        bought = [
            line.product_id for order in scenario.database.orders_of(scenario.customer_id) for line in order.lines
        ]
        assert len(bought) == len(set(bought))


def test_impostor_matches_no_account():
    for scenario in stories("hard", "impostor"):
        persona, shop = scenario.persona, scenario.database
        assert scenario.customer_id == ""
        assert persona.email not in {customer.email for customer in shop.customers.values()}
        assert persona.zip_code not in {customer.address.zip_code for customer in shop.customers.values()}
        assert scenario.private


def test_outcomes_are_many():
    drawn = [story for level in LEVELS for kind in KINDS[level] for story in stories(level, kind)]
    outcomes = {outcome for story in drawn for outcome in story.outcomes}
    assert {"done", "told", "transferred", "changed"} < outcomes
    assert len([name for name in outcomes if name.startswith("refused:")]) == 10


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_no_caller_and_task(level):
    def cores(split, seed):
        tasks = ServiceDeskTasks(level, seed, split)
        keys = set()
        for i in range(15):
            scenario = scenario_of(tasks[i])
            things = sorted(thing for wish in scenario.wishes for thing in wish.things)
            keys.add((scenario.kind, scenario.persona.first_name, scenario.persona.last_name, *things))
        return keys

    assert not (cores("train", 0) | cores("train", 1)) & (cores("test", 0) | cores("test", 7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "brutal"}, "level must be one of easy, medium, hard"),
        ({"kinds": ["exchange"]}, "'exchange' is not a kind of level 'easy'; it has cancel,"),
        ({"kinds": []}, "kinds must be None or a list"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        ServiceDeskTasks(**options)


# ------------------------------------------------------------------ rows by hand


def test_handwritten_scenario_is_a_task():
    drawn = scenario_of(ServiceDeskTasks(kinds=["cancel"])[0])
    order = next(candidate for candidate in drawn.database.orders.values() if candidate.status == "pending")
    wish = Wish("human", "I want to speak to your boss about my order.", order.id, because=None)
    task = task_of(replace(drawn, kind="mine", wishes=(wish,), gold=()), key="mine/1", data_source="mine")
    assert scenario_of(task).wishes == (wish,)
    assert task.prompt[1]["content"].endswith(wish.opening)
    assert json.loads(task.ground_truth) == {"actions": [], "outcomes": ["transferred"], "facts": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: 1, "must be a scenario as JSON text"),
        (lambda row: "{", "not a scenario"),
        (lambda row: json.dumps({**json.loads(row), "wishes": []}), "wants nothing"),
        (lambda row: json.dumps({**json.loads(row), "customer_id": "x"}), "not in the database"),
        (lambda row: json.dumps({**json.loads(row), "gold": [{"name": "x", "arguments": {}}]}), "cannot be done"),
        (
            lambda row: json.dumps({**json.loads(row), "wishes": [{"kind": "cancel", "opening": "x"}]}),
            "needs an order_id",
        ),
        (lambda row: row.replace('"opening"', '"openly"'), "wishes.0.opening"),
    ],
)
def test_unplayable_rows_are_refused(change, message):
    task = ServiceDeskTasks()[0]
    with pytest.raises(TaskError, match=message):
        scenario_of(replace(task, extra={"scenario": change(task.extra["scenario"])}))


# ------------------------------------------------------------------ the script


def test_script_keywords_match_training_wordings():
    cases = load_yaml("textenvs.envs.service_desk", "cases.yaml")
    openings = [text for texts in cases["openings"].values() for text in split_choices(texts, "train")]
    reasons = [text for texts in cases["reasons"]["cancel"].values() for text in split_choices(texts, "train")]
    for table, texts in ((script._WISHES, openings), (script._REASONS, reasons)):
        for pattern in table.values():
            for part in re.split(r"\|(?![^(]*\))", pattern):
                assert any(re.search(part, text, re.IGNORECASE) for text in texts), part


@pytest.mark.parametrize("level", LEVELS[:2])
def test_twins_require_other_ends_in_possible_shops(level):
    """Orders are placed before they are delivered, and paid as their lines and fees say; the opening is the same."""
    env, facts = ServiceDesk(level=level), 0
    for index in range(30):
        for _, tasks in env.twin_worlds(env.tasks[index]):
            facts += 1
            assert len({task.ground_truth for task in tasks}) == len(tasks) > 1
            assert all(task.prompt == tasks[0].prompt for task in tasks)
            for scenario in map(scenario_of, tasks):
                for order in scenario.database.orders.values():
                    assert order.placed <= min(order.promised, order.delivered or order.promised)
                    charged = sum(max(paid.cents, 0) for paid in order.transactions)
                    assert charged == order.delivery_fee + sum(line.price for line in order.lines)
    assert facts > 30
