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
from ...users.moves import Move
from .database import Record
from .reply_parser import (
    MAX_CHARS,
    ParsedReply,
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
AT_ONCE = 2
# How many reasons a refusal may touch upon beside the one that it gives.
_INCIDENTAL = 1
#: Consent to :func:`~textenvs.envs.service_desk.tools.transfer_to_human`, once the colleague's questions are answered.
HANDOVER = ("transfer_to_human", "")
_TEXTS: Mapping[str, Any] = load_yaml(__package__, "customer.yaml")
#: The answer to a reply that is longer than :data:`~textenvs.envs.service_desk.reply_parser.MAX_CHARS`.
TOO_LONG: str = _TEXTS["too_long"]


@dataclass(frozen=True, slots=True)
class UserState(Record):
    """The state of the customer in a talk."""

    wish: Wish | None  # the current wish; None when the talk is over
    waiting: tuple[Wish, ...] = ()  # the wishes after that
    # The slots that they have filled, of this wish and of their identity, and other things that they say only once.
    disclosed: frozenset[str] = frozenset()
    answered: frozenset[int] = frozenset()  # the indices of the wish's facts that were stated, right or wrong
    misled: frozenset[int] = frozenset()  # those of them whose last statement was wrong; the customer does not know it
    consents: frozenset[tuple[str, str]] = frozenset()  # the changes that they said yes to: (tool, order number)
    outcomes: tuple[str, ...] = ()  # how each wish was settled
    reasons: frozenset[str] = frozenset()  # those given for a refusal of this wish
    pushed: int = 0  # how often they asked again after a refusal of this wish
    pending: str = ""  # how the wish is settled but for a fact that they ask for now
    annoyance: int = 0  # how many useless replies they have had
    turns: int = 0  # how many replies they have had
    ended: Literal["", "closed", "left"] = ""  # said goodbye, or ran out of patience
    move: Move | None = None  # what they did about the last reply, in their own view


def begin(scenario: Scenario) -> tuple[UserState, str]:
    """Return the customer's first state and opening message."""
    first, *rest = scenario.wishes
    state = UserState(wish=first, waiting=tuple(rest), disclosed=frozenset(first.says))
    return state, f"{_choose(scenario.persona, 0, 'greeting')} {first.opening}"


def listen(persona: Persona, state: UserState, text: str) -> tuple[UserState, str]:
    """Return the customer's state after a reply, and their answer."""
    listener = _Listener(persona, replace(state, turns=state.turns + 1), text)
    words = listener.annoyed(TOO_LONG, "complains") if len(text) > MAX_CHARS else listener.answer()
    state = listener.state
    if state.wish is not None and state.wish.kind == "human" and state.wish.asks <= state.disclosed:
        state = replace(state, consents=state.consents | {HANDOVER})
    return state, words


def verdicts(wish: Wish, text: str) -> list[Verdict]:
    """Return the verdict of a reply on each fact of a wish."""
    return [verdict(text, fact.kind, fact.value, fact.role, statements=wish.kind == "question") for fact in wish.facts]


def reasons_given(wish: Wish, parsed: ParsedReply) -> frozenset[str]:
    """Return the reasons in a refusal that can hold for such a wish; all reasons where none can, or several are listed.

    "It was delivered 40 days ago" is a reason against a return, and beside it sounds like one against cancelling.
    """
    named = parsed.reasons - {"identity"} or parsed.reasons
    relevant = named & wish.reasons
    return relevant if relevant and len(named) <= _INCIDENTAL + 1 else named


def objection(persona: Persona, disclosed: frozenset[str], wish: Wish, text: str) -> str | None:
    """Return the problem of a proposal, in the customer's words; ``None`` when a yes to it is a yes to the wish."""
    words = plain(text)
    orders, offered = orders_named(words), without_refusals(words)
    things = _list(wish.things)
    if rivals(wish.kind, words):
        return _choose(persona, 0, "which_change")
    if several_orders(words):
        return _choose(persona, 0, "which_order")
    if unasked := sorted(wish.asks - disclosed):
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
        not any(all(mentions(words, option) for option in named) for named in (wish.new_item_ids, wish.wanted))
        or _named(offered, wish.other_options)
    ):
        return str(_TEXTS["which_one"])
    if wish.kind == "address" and wish.address is not None and not mentions(words, wish.address.street):
        return str(_TEXTS["to_where"])
    return _choose(persona, 0, "only").format(things=things) if _named(offered, wish.rejects) else None


class _Listener:
    """The customer while they read one reply. Methods change ``state`` and return the customer's message."""

    def __init__(self, persona: Persona, state: UserState, text: str) -> None:
        assert state.wish is not None, "the talk is over"
        self.persona, self.state, self.wish, self.text = persona, replace(state, move="answers"), state.wish, text
        self.parsed = understand(text) if len(text) <= MAX_CHARS else ParsedReply()

    def answer(self) -> str:
        wish, parsed, disclosed = self.wish, self.parsed, self.state.disclosed
        requested = self.requested_slots()
        results = dict(enumerate(verdicts(wish, self.text)))
        stated = {i for i, result in results.items() if result in ("right", "wrong")}
        news = stated - self.state.answered
        misled = (self.state.misled - stated) | {i for i in stated if results[i] == "wrong"}
        self.note(answered=self.state.answered | news, misled=misled)
        stating = (wish.kind == "question" or self.state.pending) and not parsed.asks and not parsed.waiting
        if stating and "several" in results.values():
            return self.annoyed(self.pick("which_value"), "complains")
        if self.state.pending:
            return self.settle(self.state.pending)
        if wish.kind == "question" and news:
            return self.settle("told")
        if parsed.transferred:
            return self.transferred()
        if parsed.not_found and wish.wrong_number and "order" in disclosed and "corrected" not in disclosed:
            self.note("corrected", move="reveals")
            return self.pick("corrected").format(order=wish.order_id)
        if parsed.refused and reasons_given(wish, parsed) & (wish.reasons | {"identity"}) and not requested - disclosed:
            return self.refused()
        if parsed.done and wish.grants and wish.grants <= self.state.consents:
            return self.settle("done")
        if parsed.confirm and wish.grants:
            problem = objection(self.persona, disclosed, wish, self.text)
            if problem is None:
                return self.agree()
            if not parsed.asks:
                return self.annoyed(problem, "corrects")
        if requested - disclosed:
            return self.tell(requested - disclosed)
        if parsed.confirm and not wish.grants:
            return self.again("yes", _TEXTS["human_yes"])
        if parsed.refused and parsed.waiting:
            return self.annoyed(_TEXTS["wait"], "complains")
        if parsed.refused and not parsed.not_found:
            return self.refused()
        if parsed.done and wish.grants:
            return self.settle("done")
        if requested:
            return self.annoyed(self.tell(requested), "repeats", before=_TEXTS["said"])
        if parsed.guess:
            return self.check(plain(self.text))
        if parsed.asks:
            return self.again("wish", wish.opening)
        if parsed.not_found:
            # What was not asked for is not told: there is nothing to look for again yet.
            details = self.tell(disclosed & _IDENTITY) if disclosed & _IDENTITY else ""
            return self.annoyed(details or _TEXTS["no_identity"], "repeats", before=_TEXTS["again"] if details else "")
        if parsed.waiting:
            return self.annoyed(_TEXTS["wait"], "complains")
        if parsed.closing:
            return self.annoyed(_TEXTS["open"].format(opening=wish.opening), "repeats")
        return self.annoyed(self.pick("lost" if parsed.nothing and not news else "now"), "complains")

    def agree(self) -> str:
        """Say yes to a proposal that is understood rightly; or bring up what it leaves out; or change one's mind."""
        wish = self.wish
        if wish.payment_words and "payment" not in self.state.disclosed:
            # They will also accept another payment method: "proposal" records that nothing else speaks against it.
            self.note("payment", "proposal", move="corrects")
            return str(_TEXTS["hold"].format(payment=wish.payment_words))
        if wish.payment_words and "payment" in self.parsed.reasons:
            # Proposed again, to the original payment method: as good as a refusal.
            return self.refused()
        if wish.switch == "confirm":
            return self.switch(wish.outcome)
        yes = self.pick("agree")
        if wish.grants <= self.state.consents:
            return self.annoyed(yes, "repeats")
        self.note(consents=self.state.consents | wish.grants, move="confirms")
        return yes

    def check(self, words: str) -> str:
        """Say whether the assistant guessed right what the wish is about: one order, or its things and no others."""
        wish, orders = self.wish, orders_named(words)
        things = [thing for thing in wish.things if mentions(words, thing)]
        if orders - {wish.order_id.casefold()} or _named(words, wish.rejects) or not (orders or things):
            return self.annoyed(_TEXTS["wrong"], "corrects")
        self.note("order", *(("items",) if len(things) == len(wish.things) else ()), move="confirms")
        return self.again("guessed", _TEXTS["right"])

    def refused(self) -> str:
        """Take a refusal: ask for its one reason, ask again, or give in."""
        wish, reasons = self.wish, reasons_given(self.wish, self.parsed)
        if len(reasons) != 1:
            return self.annoyed(self.pick("which_reason" if reasons else "why_not"), "complains")
        self.note(reasons=self.state.reasons | reasons)
        if self.state.pushed < wish.insist:
            self.note(pushed=self.state.pushed + 1, move="repeats")
            return _choose(self.persona, self.state.pushed - 1, "push")
        outcome = f"refused:{wish.because}" if self.state.reasons == {wish.because} else "refused"
        if wish.switch != "refused" or wish.instead is None:
            return self.settle(outcome)
        # "That is out of stock. Shall I send the grey one instead?" may offer just the second choice.
        disclosed = self.state.disclosed | set(wish.instead.says)
        proposed = self.parsed.confirm and wish.instead.grants
        offered = proposed and objection(self.persona, disclosed, wish.instead, self.text) is None
        agreed = offered or "proposal" in self.state.disclosed
        words = self.switch(outcome)
        if not agreed:
            return words
        self.note(consents=self.state.consents | wish.instead.grants, move="confirms")
        return str(_TEXTS["agreed"].format(words=words))

    def transferred(self) -> str:
        if self.wish.kind == "human":
            return self.settle("transferred")
        outcomes = (*self.state.outcomes, "transferred")
        self.note(wish=None, waiting=(), outcomes=outcomes, ended="closed", move="gives_up")
        return str(_TEXTS["handed_over"])

    def settle(self, outcome: str) -> str:
        """Close the wish once all of its facts have been stated, and continue with the next."""
        missing = [fact for i, fact in enumerate(self.wish.facts) if i not in self.state.answered]
        if not missing and self.state.misled and outcome in ("done", "told"):
            outcome = "misinformed"
        if not missing or outcome not in ("done", "told"):
            return self.advance(outcome, _TEXTS["see" if outcome.startswith("refused") else "thanks"])
        if self.state.pending or self.wish.kind == "question":
            return self.annoyed(missing[0].ask, "complains")
        self.note(pending=outcome)
        return missing[0].ask

    def switch(self, outcome: str) -> str:
        """Turn to the wish's second choice, or drop it."""
        wish, before = self.wish, self.pick("changed") if self.wish.switch == "confirm" else str(_TEXTS["see"])
        if wish.instead is None:
            return self.advance(outcome, f"{before} {self.pick('keep')}")
        self.note(waiting=(wish.instead, *self.state.waiting))
        return self.advance(outcome, before, follow_up="", move="answers")

    def advance(self, outcome: str, words: str, follow_up: str | None = None, move: Move = "confirms") -> str:
        self.note(
            move=move,
            outcomes=(*self.state.outcomes, outcome),
            answered=frozenset(),
            misled=frozenset(),
            reasons=frozenset(),
            pushed=0,
            pending="",
        )
        if not self.state.waiting:
            self.note(wish=None, ended="closed", move="ends")
            return f"{words} {self.pick('goodbye')}"
        wish, *waiting = self.state.waiting
        self.note(wish=wish, waiting=tuple(waiting), disclosed=(self.state.disclosed & _IDENTITY) | set(wish.says))
        return " ".join(filter(None, (words, self.pick("next") if follow_up is None else follow_up, wish.opening)))

    def again(self, slot: str, words: str) -> str:
        """Say something that is fine to say once, and tiresome after that."""
        if slot in self.state.disclosed:
            return self.annoyed(words, "repeats")
        self.note(slot)
        return words

    def annoyed(self, words: str, move: Move, before: str = "") -> str:
        self.note(annoyance=self.state.annoyance + 1, move=move)
        if self.state.annoyance < self.persona.patience:
            return f"{before} {words}".strip()
        self.note(wish=None, waiting=(), ended="left", move="gives_up")
        return str(_TEXTS["leaves"])

    def requested_slots(self) -> frozenset[str]:
        """Return the slots that the reply asks for and that belong to the wish."""
        asks, wish, persona = self.parsed.asks, self.wish, self.persona
        requested = set(asks & set(SLOTS))
        if "identity" in asks and not requested & _IDENTITY:
            requested |= {"email"} if persona.knows_email else {"name", "zip"}
        if "email" in requested and requested & {"name", "zip"}:
            # "Your email address, or your name and zip code?" One of them will do.
            requested -= {"name", "zip"} if persona.knows_email and "email" not in self.state.disclosed else {"email"}
        if "charge" in asks and wish.kind == "human":
            requested.add("reason")
        available = {
            "order": wish.order_id,
            "items": wish.things,
            "variant": wish.wanted,
            "address": wish.address,
            "payment": wish.kind in ("cancel", "return", "late_fee"),
        }
        return frozenset(slot for slot in requested if available.get(slot, True))

    def tell(self, requested: frozenset[str]) -> str:
        """Fill the first slots asked for."""
        persona, wish, disclosed = self.persona, self.wish, self.state.disclosed
        filled: set[str] = set()
        pieces: list[str] = []
        for slot in SLOTS:
            if slot not in requested or slot in filled or len(pieces) == AT_ONCE:
                continue
            filled.add(slot)
            piece = slot
            if slot == "name" and "zip" in requested:
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
                order=wish.order_id if "corrected" in disclosed or not wish.wrong_number else wish.wrong_number,
                things=_list(wish.things),
                wanted=", ".join(wish.wanted),
                address=wish.address,
                reason=wish.reason_words or _TEXTS["no_reason"],
                payment=wish.payment_words or _TEXTS["as_paid"],
            )
            pieces.append(text[0].upper() + text[1:])
        self.note(*filled, move="reveals")
        return " ".join(pieces)

    def note(self, *entries: str, **changes: Any) -> None:
        """Change the state, and add ``entries`` to what the customer has disclosed."""
        changes.setdefault("disclosed", self.state.disclosed | set(entries))
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
