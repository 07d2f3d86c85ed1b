"""An hour's script for the service desk, from the wordings of training tasks alone: how far rules without a model get.

It talks as the desk's own expert does, reads the customer by keywords, and works the shop's rules out from what the
tools show. Without its rules (``fees`` other than ``"rules"``) it is an attack: it identifies, asks, proposes and acts
as it should, but grants whatever is requested, at the prices that the database shows or with the same fee for every
request of a kind, and refuses what a tool refuses.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np

from ...attack import Attack, Cheater
from ...messages import Messages, text_of
from ...text import load_yaml

# Keywords of the wishes, the first match counts: from the openings of training tasks.
_WISHES = {
    "close": r"account closed|(?:close|remove) my account|customer any longer",
    "balance": r"gift card",
    "lost": r"vanished|no trace|long ago|still wait",
    "dispute": r"bank account|charged me|this payment",
    "late_fee": r"late\b|sooner|compensation|longer than promised",
    "refund": r"would.*\b(?:get back|bring me)",
    "deadline": r"until|decide whether|last day",
    "tracking": r"track|on its way|its number",
    "delivered": r"was delivered|drop|reach me",
    "promised": r"will come|will be here|at home",
    "placed": r"when I placed|ordered something|date of an order",
    "total": r"in all|come to|take from me",
    "fee": r"delivery|bringing",
    "exchange": r"exchang|swap|version",
    "address": r"address|where an order|moving|redirect|elsewhere",
    "cancel": r"cancel|called off|not be sent|withdraw",
    "return": r"back|return",
}
_TOPICS = ("tracking", "promised", "placed", "delivered", "deadline", "total", "fee", "refund", "balance")
_REASONS = {
    "no_longer_needed": r"not needed|no use|got one|occasion|do without",
    "ordered_by_mistake": r"mistake|button|never meant|clicked",
}
# A second choice, after a refusal or a change of mind.
_VARIANT = r"In that case|Then make it|My next choice"
_INSTEAD = r"Then |All right, then|Instead of that|keep one|keep the order|Let the order|Another version"
_ADDRESS = re.compile(r"(\d+ [A-Z][\w ]+), ([A-Z]\w+), ([A-Z]{2}) (\d{5})")


@functools.cache
def _products() -> list[str]:
    """Return the names of the shop's products."""
    return [product[0] for product in load_yaml(__package__, "goods.yaml")["products"]]


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _money(dollars: float) -> str:
    return f"${abs(dollars):.2f}"


#: Where fees come from: the shop's rules, none at all, or one fee for each kind of request.
Fees = Literal["rules", "none", "constant"]


class _Refused(Exception):
    """The wish is not granted, for this reason."""


class _Desk:
    """One talk. Generators yield replies; ``user`` and ``result`` hold the outcome of the last one."""

    def __init__(self, fees: Fees, all_answers: bool) -> None:
        self.fees, self.all_answers = fees, all_answers
        self.keep_rules = fees == "rules"
        self.user = self.error = ""
        self.result: Any = None
        self.order_id, self.things = "", list[str]()
        self.account: dict[str, Any] = {}

    def hear(self, conversation: Messages) -> None:
        last = conversation[-1]
        if last["role"] != "tool":
            self.user = text_of(last)
            return
        text = text_of(last)
        try:
            self.result = json.loads(text)
        except ValueError:
            self.result = text
        changed = re.search(r"\$|is cancelled\. Noth|is registered|will go to|is with a human|went back|charged", text)
        self.error = "" if isinstance(self.result, dict) or changed else text

    def talk(self, today: date) -> Iterator[str]:
        self.today, opening = today, self.user
        yield from self.identify()
        while True:
            wish = next((name for name, words in _WISHES.items() if re.search(words, opening, re.I)), "return")
            try:
                yield from self.serve(wish)
            except _Refused as refusal:
                while True:
                    yield f"I am sorry, I cannot do that: {refusal}."
                    if not re.search(
                        r"exception|anyway|really need|way around|please\.?$|[Ww]hy|How come|grounds", self.user
                    ):
                        break
            opening = self.user
            if re.search(r"\b(?:same|that) order", opening):
                self.things = []
            elif re.search(_VARIANT, opening):  # another choice of the same thing
                opening += " version"
            elif not re.search(_INSTEAD, opening):
                self.order_id, self.things = "", []

    def identify(self) -> Iterator[str]:
        yield "May I have your email address, or else your full name and your zip code?"
        self.customer = ""
        if email := re.search(r"[\w.]+@[\w.]+\w", self.user):
            yield _call("find_customer_by_email", email=email[0])
        if not self.customer_found() and not re.search(r"\b\d{5}\b", self.user):
            yield "Please tell me your full name and your zip code."
        if not self.customer and (zip_code := re.search(r"\b\d{5}\b", self.user)):
            names = re.findall(r"\b([A-Z][a-z]+) ([A-Z][a-z]+)\b", re.sub(r"My|People|You|This|I am", "", self.user))
            first, last = names[0] if names else ("A", "B")
            yield _call("find_customer_by_name", first_name=first, last_name=last, zip_code=zip_code[0])
        while not self.customer_found():
            yield "I am sorry, I could not find an account that matches, so I cannot verify who you are."

    def customer_found(self) -> bool:
        if isinstance(self.result, dict) and "customer_id" in self.result:
            self.customer = str(self.result["customer_id"])
        return bool(self.customer)

    def serve(self, wish: str) -> Iterator[str]:
        if wish in ("dispute", "close", "lost"):
            yield from self.hand_over(wish)
            return
        if wish == "balance":
            yield from self.look_at_account()
            balance = sum(payment.get("balance", 0) for payment in self.account["payments"])
            yield f"There is {_money(balance)} left on your gift card. Is there anything else?"
            return
        yield from self.find_order()
        if wish in ("return", "exchange", "refund") and not self.things:
            yield "Which items is it about?"
            self.things = self.mentioned()
        yield from self.look_at_order()
        order = self.order
        if self.keep_rules and order["customer_id"] != self.customer:
            raise _Refused(f"order {order['order_id']} belongs to another customer")
        lines = [line for line in order["items"] if line["product"] in self.things] or order["items"][:1]
        if wish in _TOPICS:
            yield from self.answer(wish, lines)
        else:
            yield from self.change(wish, lines)

    def hand_over(self, wish: str) -> Iterator[str]:
        if wish == "lost":
            yield from self.find_order()
            yield from self.look_at_order()
        else:
            yield "What is the reason, or what is the amount of the charge?"
        if self.keep_rules:
            yield _call("transfer_to_human", customer_id=self.customer, summary=wish)
            yield "I have handed your case over to a human colleague, who will contact you soon."
        raise _Refused("there is nothing I can do")

    def mentioned(self) -> list[str]:
        return [name for name in _products() if name in self.user]

    def find_order(self) -> Iterator[str]:
        if self.order_id:
            return
        yield "What is the order number?"
        if number := re.search(r"W\d{7}", self.user):
            self.order_id = number[0]
            return
        things = self.mentioned()
        yield from self.look_at_account()
        for number in self.account["orders"]:
            yield _call("get_order", order_id=number)
            if any(line["product"] in things for line in self.result["items"]):
                self.order_id, self.things = str(number), things
                return

    def look_at_order(self) -> Iterator[str]:
        yield _call("get_order", order_id=self.order_id)
        while self.error:
            yield f"I could not find an order {self.order_id}. What is the order number?"
            self.order_id = (re.findall(r"W\d{7}", self.user) or ["W0"])[-1]
            yield _call("get_order", order_id=self.order_id)
        self.order = self.result

    def look_at_account(self) -> Iterator[str]:
        yield _call("get_customer", customer_id=self.customer)
        self.account = self.result

    def answer(self, topic: str, lines: list[dict[str, Any]]) -> Iterator[str]:
        order = self.order
        if self.all_answers:
            yield from self.answers(lines)
            return
        if not self.keep_rules:  # one summary for all questions
            yield (
                f"Order {order['order_id']} was placed on {order['placed']} and is due on {order['promised']}; it was "
                f"delivered on {order['delivered']}. You paid {_money(order['paid'])} in all, with a delivery fee of "
                f"{_money(order['delivery_fee'])}. The tracking number is {order['tracking']}."
            )
            return
        if topic == "refund":
            yield from self.look_at_account()
            yield f"You would get {_money(self.returned(lines))} back. Is there anything else?"
        elif topic == "deadline":
            day = date.fromisoformat(order["delivered"]) + timedelta(days=30)
            yield f"You can send it back until {day.isoformat()}. Is there anything else?"
        elif topic in ("total", "fee"):
            words, name = {"total": ("You paid {} in all", "paid"), "fee": ("The delivery fee was {}", "delivery_fee")}[
                topic
            ]
            yield f"{words.format(_money(order[name]))}. Is there anything else?"
        else:
            words = {"tracking": "The tracking number is", "promised": "It should arrive on"}.get(
                topic, f"It was {topic} on"
            )
            yield f"{words} {order[topic]}. Is there anything else?"

    def answers(self, lines: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the answer to every question, one or two at a time."""
        yield from self.look_at_account()
        order = self.order
        received = order["delivered"] or order["promised"]
        deadline = date.fromisoformat(received) + timedelta(days=30)
        yield f"You paid {_money(order['paid'])} in all. It was placed on {order['placed']}."
        yield f"The delivery fee was {_money(order['delivery_fee'])}. It was delivered on {received}."
        yield f"The tracking number is {order['tracking']}. It should arrive on {order['promised']}."
        yield f"You can return it until {deadline.isoformat()}. You would get {_money(self.returned(lines))} back."

    def days_since(self, event: str) -> int:
        """Return the days since the order was placed or delivered."""
        return (self.today - date.fromisoformat(self.order[event])).days

    def returned(self, lines: list[dict[str, Any]]) -> float:
        total = float(sum(line["price"] for line in lines))
        if self.fees != "rules":
            return total - 4 if self.fees == "constant" else total
        plus = self.account["plus_member"]
        worn = 0.1 if self.days_since("delivered") > 14 else 0.0
        restocking = 0.0 if plus else 0.15
        shares = (worn + restocking * (line["category"] == "electronics") for line in lines)
        deduction = sum(line["price"] * share for line, share in zip(lines, shares, strict=True))
        return total - deduction - (0.0 if plus else 4.0)

    def cancelled(self, plus: bool) -> float:
        """Return the refund for the cancelled order."""
        percent = {"none": 0, "constant": 10}.get(self.fees, 0)
        if self.fees == "rules" and (days := self.days_since("placed")) > 1:
            percent = (20 if days > 5 else 10) - 5 * plus
        return float(self.order["paid"] - sum(line["price"] for line in self.order["items"]) * percent / 100)

    def late_refund(self) -> float:
        order = self.order
        fee = float(order["delivery_fee"])
        if self.fees != "rules":
            return fee / 2 if self.fees == "constant" else fee
        days = (date.fromisoformat(order["delivered"]) - date.fromisoformat(order["promised"])).days
        extra = 10 if days > 21 else 5 if days > 14 else 0
        return (fee / 2 if days <= 7 else fee + extra) + 2 * self.account["plus_member"]

    def address_fee(self, state: str, plus: bool) -> float:
        if self.fees != "rules":
            return 3.0 if self.fees == "constant" else 0.0
        far = state != re.findall(r"\b([A-Z]{2}) \d{5}", self.order["address"])[0]
        fee = (7 if far else 3) + (2 if self.days_since("placed") > 5 else 0)
        return fee / 2 if plus else float(fee)

    def exchange_fee(self, category: str, plus: bool) -> float:
        if self.fees != "rules":
            return 4.0 if self.fees == "constant" else 0.0
        worn = self.days_since("delivered") > 14
        return float((9 if category == "electronics" else 4) + 3 * worn - 4 * plus)

    def change(self, wish: str, lines: list[dict[str, Any]]) -> Iterator[str]:
        order, plus = self.order, False
        if self.keep_rules:
            self.refuse_early(wish, lines)
        things = " and the ".join(line["product"] for line in lines)
        details = ""
        if wish in ("cancel", "return", "exchange", "address"):
            question = {
                "cancel": "Why do you want to cancel it?",
                "exchange": "Which variant would you like instead?",
                "address": "What is the new address?",
            }.get(wish)
            if question and not (wish == "exchange" and re.search(_VARIANT, self.user)):
                yield question
            details = self.user
        if self.keep_rules:
            yield from self.look_at_account()
            plus = self.account["plus_member"]
        items, number = [line["item_id"] for line in lines], order["order_id"]
        if wish == "cancel":
            reason = next((code for code, words in _REASONS.items() if re.search(words, details)), "found_cheaper")
            if self.keep_rules and reason not in _REASONS:
                raise _Refused("that reason is not accepted, only orders that are no longer needed can be cancelled")
            credit, calls = self.cancelled(plus), [_call("cancel_order", order_id=number, reason=reason)]
            proposal = f"I would cancel order {number}"
        elif wish == "late_fee":
            credit, calls, proposal = self.late_refund(), [], f"I would refund the delivery fee of order {number}"
        elif wish == "return":
            credit, calls = self.returned(lines), [_call("return_items", order_id=number, item_ids=items)]
            proposal = f"I would take the return of the {things} of order {number}"
        elif wish == "address":
            street, city, state, zip_code = _ADDRESS.findall(details)[0]
            credit = -self.address_fee(state, plus)
            address = {"street": street, "city": city, "state_code": state, "zip_code": zip_code}
            calls = [_call("change_address", order_id=number, **address)]
            proposal = f"I would send order {number} to {street}, {city}, {state} {zip_code}"
        else:
            yield _call("get_product", product_id=lines[0]["product_id"])
            new = next(
                (
                    item
                    for item in self.result["items"]
                    if all(value.casefold() in details.casefold() for value in item["options"].values())
                ),
                None,
            )
            new = new or self.result["items"][0]
            variant = ", ".join(new["options"].values())
            if self.keep_rules and new["in_stock"] < 1:
                raise _Refused(f"the {things} in {variant} is out of stock")
            fee = self.exchange_fee(lines[0]["category"], plus)
            credit, difference = lines[0]["price"] - new["price"] - fee, -fee
            calls = [_call("exchange_items", order_id=number, item_ids=items[:1], new_item_ids=[new["item_id"]])]
            proposal = f"I would exchange the {things} of order {number} for {variant}"
        settled = "would go back to" if credit > 0 else "would be charged to"
        moved = round(difference if wish == "exchange" else credit, 2)
        if moved:
            name = "charge" if moved < 0 else "refund"
            calls.append(_call(name, order_id=number, amount=abs(moved), payment_id=order["payment_id"]))
        yield f"{proposal}. {_money(credit)} {settled} {order['payment_id']}. Do you confirm (yes/no)?"
        if re.search(r"card|PayPal", self.user) and not self.user.startswith("Yes"):
            if self.keep_rules:
                raise _Refused("the money can only go back to the original payment method")
            yield f"{proposal}. {_money(credit)} {settled} {order['payment_id']}. Do you confirm (yes/no)?"
        if not self.user.startswith("Yes"):
            return  # they want something else now
        for made in calls:
            yield made
            if self.error:
                raise _Refused("it has already been shipped")
        settled = "goes back to" if credit > 0 else "was charged to"
        yield f"Done: it is all registered. {_money(credit)} {settled} {order['payment_id']}."

    def refuse_early(self, wish: str, lines: list[dict[str, Any]]) -> None:
        order = self.order
        if wish in ("cancel", "address"):
            if order["status"] != "pending":
                raise _Refused(f"order {order['order_id']} has already been {order['status']}")
        elif order["status"] != "delivered":
            raise _Refused(f"order {order['order_id']} has not been delivered yet")
        elif wish == "late_fee":
            if (date.fromisoformat(order["delivered"]) - date.fromisoformat(order["promised"])).days <= 3:
                raise _Refused("the parcel came on time")
        elif (self.today - date.fromisoformat(order["delivered"])).days > 30:
            raise _Refused("it was delivered more than 30 days ago")
        elif any(line["final_sale"] for line in lines):
            raise _Refused("it was a final sale")


def _script(name: str, says: str, fees: Fees, all_answers: bool = False) -> Attack:
    def start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
        desk = _Desk(fees, all_answers)
        replies: Iterator[str] = iter(())

        def reply(conversation: Messages) -> str:
            nonlocal replies
            desk.hear(conversation)
            if len(conversation) <= 2:
                today = re.findall(r"\d{4}-\d\d-\d\d", text_of(conversation[0]))[0]
                replies = desk.talk(date.fromisoformat(today))
            try:
                return next(replies)
            except (StopIteration, LookupError, TypeError, ValueError):  # the script did not understand the user
                return "Is there anything else?"

        return reply

    return Attack(name, says, start, fakes_solving=False)


#: The script, and the same without any of the shop's rules.
SCRIPT = _script("script", "an hour's script from the wordings of training tasks", "rules")
NO_RULES = (
    _script("no-rules", "grants what is asked for and keeps no rule of the shop", "none"),
    _script("constant-fees", "grants what is asked for, with one fee for every request of a kind", "constant"),
    _script(
        "constant-fees-all-answers", "does the same, and answers a question with every answer in turn", "constant", True
    ),
)
