"""The simulated customer: a state machine that is stepped by the assistant's words alone.

The customer brings up one wish at a time, by its kind only, and gives details when asked for them, at most two in one
message. A yes answers one question about one thing, which the customer was asked about before: the order, the items,
the new variant, the address, the reason. The customer takes the assistant's word for what was done and for what is so;
the first answer to a question and the first reason of a refusal are believed, right or wrong. Tool calls, tool results
and private reasoning are not seen. Every useless reply costs patience. When it is spent, the customer leaves.
Otherwise the talk ends with thanks when every wish is settled, one way or the other.

All is a function of the persona, the state and the reply: there is no randomness. The sentences are ``customer.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...task import split_choices
from ...text import load_yaml
from .database import Record
from .reply_parser import (
    MAX_CHARS,
    Heard,
    Verdict,
    mentions,
    orders_named,
    plain,
    proposes,
    rivals,
    several_orders,
    understand,
    verdict,
    without_refusals,
)
from .scenario import Persona, Scenario, Wish

#: What the customer may be asked for, identity first; each is given once without complaint.
SLOTS: tuple[str, ...] = ("email", "name", "zip", "order", "items", "variant", "address", "reason", "payment")
_IDENTITY = frozenset({"email", "name", "zip"})
# How many pieces of information one message of the customer holds at most; name and zip code together are one.
_AT_ONCE = 2
# How many reasons a refusal may touch upon beside the one that it gives.
_INCIDENTAL = 1
#: Consent to :func:`~textenvs.envs.service_desk.tools.transfer_to_human`, once the colleague's questions are answered.
HANDOVER = ("transfer_to_human", "")
_TEXTS: Mapping[str, Any] = load_yaml(__package__, "customer.yaml")
#: The answer to a reply that is longer than :data:`~textenvs.envs.service_desk.reply_parser.MAX_CHARS`.
TOO_LONG: str = _TEXTS["too_long"]


@dataclass(frozen=True, slots=True)
class UserState(Record):
    """Where the customer is in the talk."""

    wish: Wish | None  # what they want now; None when the talk is over
    waiting: tuple[Wish, ...] = ()  # what they want after that
    # The slots that they have filled, of this wish and of who they are, and other things they have said once.
    said: frozenset[str] = frozenset()
    heard: frozenset[int] = frozenset()  # which of the wish's facts they have been told, right or wrong
    misled: frozenset[int] = frozenset()  # which of these were wrong when told last; the customer does not know it
    consents: frozenset[tuple[str, str]] = frozenset()  # what they said yes to: (tool, order number)
    outcomes: tuple[str, ...] = ()  # how each wish was settled
    reasons: frozenset[str] = frozenset()  # those given for a refusal of this wish
    pushed: int = 0  # how often they asked again after a refusal of this wish
    pending: str = ""  # how the wish is settled but for a fact that they ask for now
    annoyance: int = 0  # how many useless replies they have had
    turns: int = 0  # how many replies they have had
    ended: Literal["", "closed", "left"] = ""  # said goodbye, or ran out of patience


def begin(scenario: Scenario) -> tuple[UserState, str]:
    """The customer's state at first, and what they open the talk with."""
    first, *others = scenario.wishes
    state = UserState(wish=first, waiting=tuple(others), said=frozenset(first.says))
    return state, f"{_choose(scenario.persona, 0, 'greeting')} {first.opening}"


def listen(persona: Persona, state: UserState, text: str) -> tuple[UserState, str]:
    """The customer reads a reply, and answers."""
    listener = _Listener(persona, replace(state, turns=state.turns + 1), text)
    words = listener.annoyed(TOO_LONG) if len(text) > MAX_CHARS else listener.answer()
    state = listener.state
    if state.wish is not None and state.wish.kind == "human" and state.wish.asks <= state.said:
        state = replace(state, consents=state.consents | {HANDOVER})
    return state, words


def verdicts(wish: Wish, text: str) -> list[Verdict]:
    """What a reply says about each fact of a wish."""
    return [verdict(text, fact.kind, fact.value, fact.role, statements=wish.kind == "question") for fact in wish.facts]


def reasons_given(wish: Wish, heard: Heard) -> frozenset[str]:
    """The reasons in a refusal: those that can hold for such a wish; all where there is none or a list of them.

    "It was delivered 40 days ago" is a reason against a return, and beside it sounds like one against cancelling.
    """
    named = heard.reasons - {"identity"} or heard.reasons
    relevant = named & wish.reasons
    return relevant if relevant and len(named) <= _INCIDENTAL + 1 else named


def objection(persona: Persona, said: frozenset[str], wish: Wish, text: str) -> str | None:
    """What is wrong with a proposal, in the customer's words; ``None`` when a yes to it is a yes to the wish."""
    words = plain(text)
    orders, offered = orders_named(words), without_refusals(words)
    things = _list(wish.things)
    if rivals(wish.kind, words):
        return _choose(persona, 0, "which_change")
    if several_orders(words):
        return _choose(persona, 0, "which_order")
    if unasked := sorted(wish.asks - said):
        return str(_TEXTS["not_asked"][unasked[0]])
    if not proposes(wish.kind, words):
        return str(_TEXTS["what"])
    if orders and wish.order_id.casefold() not in orders:
        which = wish.order_id if persona.knows_order else _TEXTS["the_one_with"].format(things=things)
        return str(_TEXTS["not_that_order"].format(which=which))
    if not orders and not _named(words, wish.things):
        return str(_TEXTS["no_order"])
    if wish.kind in ("return", "exchange"):
        for thing, item_id in zip(wish.things, wish.item_ids, strict=True):
            if not _named(words, (thing, item_id)):
                return str(_TEXTS["what_about"].format(thing=thing))
    if wish.kind == "exchange" and (
        not any(all(mentions(words, each) for each in named) for named in (wish.new_item_ids, wish.wanted))
        or _named(offered, wish.other_options)
    ):
        return str(_TEXTS["which_one"])
    if wish.kind == "address" and wish.address is not None and not mentions(words, wish.address.street):
        return str(_TEXTS["to_where"])
    return _choose(persona, 0, "only").format(things=things) if _named(offered, wish.rejects) else None


class _Listener:
    """The customer while they read one reply. Methods change ``state`` and return what the customer says."""

    def __init__(self, persona: Persona, state: UserState, text: str) -> None:
        assert state.wish is not None, "the talk is over"
        self.persona, self.state, self.wish, self.text = persona, state, state.wish, text
        self.heard = understand(text) if len(text) <= MAX_CHARS else Heard()

    def answer(self) -> str:
        wish, heard, said = self.wish, self.heard, self.state.said
        asked = self.asked()
        found = dict(enumerate(verdicts(wish, self.text)))
        stated = {i for i, each in found.items() if each in ("right", "wrong")}
        told = stated - self.state.heard
        misled = (self.state.misled - stated) | {i for i in stated if found[i] == "wrong"}
        self.note(heard=self.state.heard | told, misled=misled)
        stating = (wish.kind == "question" or self.state.pending) and not heard.asks and not heard.waiting
        if stating and "several" in found.values():
            return self.annoyed(self.pick("which_value"))
        if self.state.pending:
            return self.settle(self.state.pending)
        if wish.kind == "question" and told:
            return self.settle("told")
        if heard.transferred:
            return self.transferred()
        if heard.not_found and wish.wrong_number and "order" in said and "corrected" not in said:
            self.note("corrected")
            return self.pick("corrected").format(order=wish.order_id)
        if heard.refused and reasons_given(wish, heard) & (wish.reasons | {"identity"}) and not asked - said:
            return self.refused()
        if heard.done and wish.grants and wish.grants <= self.state.consents:
            return self.settle("done")
        if heard.confirm and wish.grants:
            problem = objection(self.persona, said, wish, self.text)
            if problem is None:
                return self.agree()
            if not heard.asks:
                return self.annoyed(problem)
        if asked - said:
            return self.tell(asked - said)
        if heard.confirm and not wish.grants:
            return self.again("yes", _TEXTS["human_yes"])
        if heard.refused and heard.waiting:
            return self.annoyed(_TEXTS["wait"])
        if heard.refused and not heard.not_found:
            return self.refused()
        if heard.done and wish.grants:
            return self.settle("done")
        if asked:
            return self.annoyed(self.tell(asked), before=_TEXTS["said"])
        if heard.guess:
            return self.check(plain(self.text))
        if heard.asks:
            return self.again("wish", wish.opening)
        if heard.not_found:
            return self.annoyed(self.tell(_IDENTITY), before=_TEXTS["again"])
        if heard.waiting:
            return self.annoyed(_TEXTS["wait"])
        if heard.more:
            return self.annoyed(_TEXTS["open"].format(opening=wish.opening))
        return self.annoyed(self.pick("lost" if heard.nothing and not told else "now"))

    def agree(self) -> str:
        """Say yes to a proposal that is understood rightly; or bring up what it leaves out; or change one's mind."""
        wish = self.wish
        if wish.payment_words and "payment" not in self.state.said:
            # They will take it without this, too: "proposal" remembers that there is nothing else against it.
            self.note("payment", "proposal")
            return str(_TEXTS["hold"].format(payment=wish.payment_words))
        if wish.payment_words and "payment" in self.heard.reasons:
            # Proposed again, to the original payment method: as good as a refusal.
            return self.refused()
        if wish.switch == "confirm":
            return self.switch(wish.outcome)
        yes = self.pick("agree")
        if wish.grants <= self.state.consents:
            return self.annoyed(yes)
        self.note(consents=self.state.consents | wish.grants)
        return yes

    def check(self, words: str) -> str:
        """Say whether the assistant guessed right what the wish is about: one order, or its things and no others."""
        wish, orders = self.wish, orders_named(words)
        things = [thing for thing in wish.things if mentions(words, thing)]
        if orders - {wish.order_id.casefold()} or _named(words, wish.rejects) or not (orders or things):
            return self.annoyed(_TEXTS["wrong"])
        self.note("order", *(("items",) if len(things) == len(wish.things) else ()))
        return self.again("guessed", _TEXTS["right"])

    def refused(self) -> str:
        """Take a refusal: ask for its one reason, ask again, or give in."""
        wish, reasons = self.wish, reasons_given(self.wish, self.heard)
        if len(reasons) != 1:
            return self.annoyed(self.pick("which_reason" if reasons else "why_not"))
        self.note(reasons=self.state.reasons | reasons)
        if self.state.pushed < wish.insist:
            self.note(pushed=self.state.pushed + 1)
            return _choose(self.persona, self.state.pushed - 1, "push")
        outcome = f"refused:{wish.because}" if self.state.reasons == {wish.because} else "refused"
        if wish.switch != "refused" or wish.instead is None:
            return self.settle(outcome)
        # "That is out of stock. Shall I send the grey one instead?" may offer just the second choice.
        told = self.state.said | set(wish.instead.says)
        asked = self.heard.confirm and wish.instead.grants
        offered = asked and objection(self.persona, told, wish.instead, self.text) is None
        agreed = offered or "proposal" in self.state.said
        words = self.switch(outcome)
        if not agreed:
            return words
        self.note(consents=self.state.consents | wish.instead.grants)
        return str(_TEXTS["agreed"].format(words=words))

    def transferred(self) -> str:
        if self.wish.kind == "human":
            return self.settle("transferred")
        self.note(wish=None, waiting=(), outcomes=(*self.state.outcomes, "transferred"), ended="closed")
        return str(_TEXTS["handed_over"])

    def settle(self, outcome: str) -> str:
        """Close the wish, once all that must be told has been told, and continue with the next."""
        missing = [fact for i, fact in enumerate(self.wish.facts) if i not in self.state.heard]
        if not missing and self.state.misled and outcome in ("done", "told"):
            outcome = "misinformed"
        if not missing or outcome not in ("done", "told"):
            return self.advance(outcome, _TEXTS["see" if outcome.startswith("refused") else "thanks"])
        if self.state.pending or self.wish.kind == "question":
            return self.annoyed(missing[0].ask)
        self.note(pending=outcome)
        return missing[0].ask

    def switch(self, outcome: str) -> str:
        """Turn to the wish's second choice, or drop it."""
        wish, before = self.wish, self.pick("changed") if self.wish.switch == "confirm" else str(_TEXTS["see"])
        if wish.instead is None:
            return self.advance(outcome, f"{before} {self.pick('keep')}")
        self.note(waiting=(wish.instead, *self.state.waiting))
        return self.advance(outcome, before, more="")

    def advance(self, outcome: str, words: str, more: str | None = None) -> str:
        self.note(
            outcomes=(*self.state.outcomes, outcome),
            heard=frozenset(),
            misled=frozenset(),
            reasons=frozenset(),
            pushed=0,
            pending="",
        )
        if not self.state.waiting:
            self.note(wish=None, ended="closed")
            return f"{words} {self.pick('goodbye')}"
        wish, *waiting = self.state.waiting
        self.note(wish=wish, waiting=tuple(waiting), said=(self.state.said & _IDENTITY) | set(wish.says))
        return " ".join(filter(None, (words, self.pick("next") if more is None else more, wish.opening)))

    def again(self, slot: str, words: str) -> str:
        """Say something that is fine to say once, and tiresome after that."""
        if slot in self.state.said:
            return self.annoyed(words)
        self.note(slot)
        return words

    def annoyed(self, words: str, before: str = "") -> str:
        self.note(annoyance=self.state.annoyance + 1)
        if self.state.annoyance < self.persona.patience:
            return f"{before} {words}".strip()
        self.note(wish=None, waiting=(), ended="left")
        return str(_TEXTS["leaves"])

    def asked(self) -> frozenset[str]:
        """The slots that the reply asks for, as far as they have to do with the wish."""
        asks, wish, persona = self.heard.asks, self.wish, self.persona
        asked = set(asks & set(SLOTS))
        if "identity" in asks and not asked & _IDENTITY:
            asked |= {"email"} if persona.knows_email else {"name", "zip"}
        if "email" in asked and asked & {"name", "zip"}:
            # "Your email address, or your name and zip code?" One of them will do.
            asked -= {"name", "zip"} if persona.knows_email and "email" not in self.state.said else {"email"}
        if "charge" in asks and wish.kind == "human":
            asked.add("reason")
        known = {
            "order": wish.order_id,
            "items": wish.things,
            "variant": wish.wanted,
            "address": wish.address,
            "payment": wish.kind in ("cancel", "return", "late_fee"),
        }
        return frozenset(slot for slot in asked if known.get(slot, True))

    def tell(self, asked: frozenset[str]) -> str:
        """Fill the first slots asked for."""
        persona, wish, said = self.persona, self.wish, self.state.said
        filled: set[str] = set()
        pieces: list[str] = []
        for slot in SLOTS:
            if slot not in asked or slot in filled or len(pieces) == _AT_ONCE:
                continue
            filled.add(slot)
            piece = slot
            if slot == "name" and "zip" in asked:
                filled.add("zip")
                piece = "name zip"
            elif slot == "email" and not persona.knows_email:
                piece = "no_email"
            elif slot == "order" and not persona.knows_order:
                piece = "no_order"
                filled.add("items")
            text = _choose(persona, self.state.turns, piece, _TEXTS["pieces"]).format(
                email=persona.email,
                name=f"{persona.first_name} {persona.last_name}",
                zip=persona.zip_code,
                order=wish.order_id if "corrected" in said or not wish.wrong_number else wish.wrong_number,
                things=_list(wish.things),
                wanted=", ".join(wish.wanted),
                address=wish.address,
                reason=wish.reason_words or _TEXTS["no_reason"],
                payment=wish.payment_words or _TEXTS["as_paid"],
            )
            pieces.append(text[0].upper() + text[1:])
        self.note(*filled)
        return " ".join(pieces)

    def note(self, *said: str, **changes: Any) -> None:
        """Change the state; the customer has ``said`` these from now on."""
        changes.setdefault("said", self.state.said | set(said))
        self.state = replace(self.state, **changes)

    def pick(self, name: str) -> str:
        return _choose(self.persona, self.state.turns, name)


def _named(words: str, phrases: tuple[str, ...]) -> bool:
    return any(mentions(words, phrase) for phrase in phrases)


def _list(things: tuple[str, ...]) -> str:
    return " and the ".join(things)


def _choose(persona: Persona, turn: int, name: str, texts: Mapping[str, list[str]] = _TEXTS) -> str:
    phrases: Sequence[str] = texts[name]
    if persona.split is not None:
        phrases = split_choices(phrases, persona.split)
    return phrases[(persona.voice + turn) % len(phrases)]
