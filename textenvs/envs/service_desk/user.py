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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .database import Record
from .reply_parser import (
    MAX_CHARS,
    RELEVANT,
    Heard,
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
from .scenario import Fact, Persona, Scenario, Wish
from .texts import load

#: What the customer may be asked for, identity first; each is given once without complaint.
SLOTS: tuple[str, ...] = ("email", "name", "zip", "order", "items", "variant", "address", "reason", "payment")
_IDENTITY = frozenset({"email", "name", "zip"})
# How many pieces of information one message of the customer holds at most; name and zip code together are one.
_AT_ONCE = 2

#: The tools that a yes to a wish allows, on the order of the wish.
GRANTS: Mapping[str, tuple[str, ...]] = {
    "cancel": ("cancel_order",),
    "return": ("return_items", "refund"),
    "exchange": ("exchange_items",),
    "address": ("change_address",),
    "late_fee": ("refund",),
}
#: What the rules of the shop want asked before the change.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "cancel": ("order", "reason"),
    "return": ("order", "items"),
    "exchange": ("order", "items", "variant"),
    "address": ("order", "address"),
    "late_fee": ("order",),
}
# How many reasons a refusal may touch upon beside the one that it gives.
_INCIDENTAL = 1
#: Consent to :func:`~textenvs.envs.service_desk.tools.transfer_to_human`, once the colleague's questions are answered.
HANDOVER = ("transfer_to_human", "")
_TEXTS: Mapping[str, Any] = load("customer")
#: The answer to a reply that is longer than :data:`~textenvs.envs.service_desk.reply_parser.MAX_CHARS`.
TOO_LONG: str = _TEXTS["too_long"]


@dataclass(frozen=True, slots=True)
class UserState(Record):
    """Where the customer is in the talk.

    Args:
        wish: What they want now; ``None`` when the talk is over.
        waiting: What they want after that.
        said: The slots that they have filled, of this wish and of who they are, and other things they have said once.
        heard: Which of the wish's facts they have been told.
        consents: What they said yes to: (tool, order number).
        outcomes: How each wish was settled.
        reasons: The reasons they were given for a refusal of this wish.
        pushed: How often they asked again after a refusal of this wish.
        pending: How the wish is settled but for a fact that they ask for now.
        annoyance: How many useless replies they have had.
        turns: How many replies they have had.
        ended: ``"closed"`` (said goodbye), ``"left"`` (ran out of patience) or empty.
    """

    wish: Wish | None
    waiting: tuple[Wish, ...] = ()
    said: frozenset[str] = frozenset()
    heard: frozenset[int] = frozenset()
    consents: frozenset[tuple[str, str]] = frozenset()
    outcomes: tuple[str, ...] = ()
    reasons: frozenset[str] = frozenset()
    pushed: int = 0
    pending: str = ""
    annoyance: int = 0
    turns: int = 0
    ended: Literal["", "closed", "left"] = ""


Said = tuple[UserState, str]


def begin(scenario: Scenario) -> Said:
    """The customer's state at first, and what they open the talk with."""
    first, *others = scenario.wishes
    state = UserState(wish=first, waiting=tuple(others), said=frozenset(first.says))
    return state, f"{_pick(scenario.persona, 0, 'greeting')} {first.opening}"


def listen(persona: Persona, state: UserState, text: str) -> Said:
    """The customer reads a reply, and answers."""
    state = replace(state, turns=state.turns + 1)
    if len(text) > MAX_CHARS:
        return _annoyed(persona, state, TOO_LONG)
    state, words = _react(persona, state, text)
    wish = state.wish
    if wish is not None and wish.kind == "human" and needs(wish) <= state.said:
        state = replace(state, consents=state.consents | {HANDOVER})
    return state, words


def _react(persona: Persona, state: UserState, text: str) -> Said:
    wish = state.wish
    assert wish is not None, "the talk is over"
    heard = understand(text)
    asked = _asked(persona, state, wish, heard)
    questioned = bool(wish.kind == "question" or state.pending)
    said = {i: says(text, fact, statements=wish.kind == "question") for i, fact in enumerate(wish.facts)}
    told = {i for i, verdict in said.items() if verdict == "right"} - state.heard
    state = replace(state, heard=state.heard | told)
    if questioned and not heard.asks and not heard.waiting:
        if "several" in said.values():
            return _annoyed(persona, state, _pick(persona, state.turns, "which_value"))
        if "wrong" in said.values():
            return _settle(persona, replace(state, heard=frozenset(said)), "misinformed")
    if state.pending:
        return _settle(persona, state, state.pending)
    if wish.kind == "question" and told:
        return _settle(persona, state, "told")
    if heard.transferred:
        return _transferred(persona, state, wish)
    if heard.not_found and wish.wrong_number and "order" in state.said and "corrected" not in state.said:
        return _with(state, "corrected"), _TEXTS["corrected"].format(order=wish.order_id)
    if heard.refused and wish.because and wish.because in heard.reasons and not asked - state.said:
        return _refused(persona, state, wish, heard, text)
    if heard.done and granted(wish) and granted(wish) <= state.consents:
        return _settle(persona, state, "done")
    if heard.confirm and wish.kind in GRANTS:
        problem = objection(persona, state.said, wish, text)
        if problem is None:
            return _agree(persona, state, wish, heard, text)
        if not heard.asks:
            return _annoyed(persona, state, problem)
    if asked - state.said:
        return _answer(persona, state, wish, asked - state.said)
    if heard.confirm and wish.kind not in GRANTS:
        return _again(persona, state, "yes", _TEXTS["human_yes"])
    if heard.refused and heard.waiting:
        return _annoyed(persona, state, _TEXTS["wait"])
    if heard.refused and not heard.not_found:
        return _refused(persona, state, wish, heard, text)
    if heard.done and wish.kind in GRANTS:
        return _settle(persona, state, "done")
    if asked:
        return _annoyed(persona, *_answer(persona, state, wish, asked), before=_TEXTS["said"])
    if heard.guess:
        return _check(persona, state, wish, plain(text))
    if heard.asks:
        return _again(persona, state, "wish", wish.opening)
    if heard.not_found:
        return _annoyed(persona, *_answer(persona, state, wish, _IDENTITY), before=_TEXTS["again"])
    if heard.waiting:
        return _annoyed(persona, state, _TEXTS["wait"])
    if heard.more:
        return _annoyed(persona, state, _TEXTS["open"].format(opening=wish.opening))
    return _annoyed(persona, state, _pick(persona, state.turns, "lost" if heard.nothing and not told else "now"))


def says(text: str, fact: Fact, *, statements: bool = False) -> str:
    """What a reply says about a fact of a wish; see :func:`~textenvs.envs.service_desk.reply_parser.verdict`."""
    return verdict(text, fact.kind, fact.value, fact.role, statements=statements)


# ------------------------------------------------------------------ what the customer does


def _agree(persona: Persona, state: UserState, wish: Wish, heard: Heard, text: str) -> Said:
    """Say yes to a proposal that is understood rightly; or bring up what it leaves out; or change one's mind."""
    if wish.payment_words and "payment" not in state.said:
        # They will take it without this, too: "proposal" remembers that there is nothing else against it.
        return _with(state, "payment", "proposal"), _TEXTS["hold"].format(payment=wish.payment_words)
    if wish.because == "payment" and "payment" in heard.reasons:
        # Proposed again, to the original payment method: as good as a refusal.
        return _refused(persona, state, wish, heard, text)
    if wish.switch == "confirm":
        return _switch(persona, state, wish)
    yes = _pick(persona, state.turns, "agree")
    if granted(wish) <= state.consents:
        return _annoyed(persona, state, yes)
    return _consent(state, wish), yes


def _check(persona: Persona, state: UserState, wish: Wish, words: str) -> Said:
    """Say whether the assistant has guessed right what the wish is about: one order, or its things and no others."""
    orders = orders_named(words)
    things = [thing for thing in wish.things if mentions(words, thing)]
    if orders - {wish.order_id.casefold()} or _named(words, wish.rejects) or not (orders or things):
        return _annoyed(persona, state, _TEXTS["wrong"])
    pointed = {"order", "items"} if len(things) == len(wish.things) else {"order"}
    return _again(persona, _with(state, *pointed), "guessed", _TEXTS["right"])


def _consent(state: UserState, wish: Wish) -> UserState:
    return replace(state, consents=state.consents | granted(wish))


def granted(wish: Wish) -> frozenset[tuple[str, str]]:
    """What a yes to the wish allows: (tool, order number)."""
    return frozenset((tool, wish.order_id) for tool in GRANTS.get(wish.kind, ()))


def needs(wish: Wish) -> frozenset[str]:
    """What the customer must have been asked for before the wish may be granted."""
    if wish.kind == "human":
        return frozenset({"order"} if wish.order_id else ()) | frozenset({"reason"} if wish.reason_words else ())
    return frozenset(_NEEDS.get(wish.kind, ()))


def _refused(persona: Persona, state: UserState, wish: Wish, heard: Heard, text: str) -> Said:
    """Take a refusal: ask for its one reason, ask again, or give in."""
    reasons = reasons_given(wish, heard)
    if len(reasons) != 1:
        return _annoyed(persona, state, _pick(persona, state.turns, "which_reason" if reasons else "why_not"))
    state = replace(state, reasons=state.reasons | reasons)
    if state.pushed < wish.insist:
        return replace(state, pushed=state.pushed + 1), _pick(persona, state.pushed, "push")
    if state.reasons != {wish.because}:
        return _settle(persona, state, "refused")
    if wish.switch != "refused" or wish.instead is None:
        return _settle(persona, state, wish.outcome)
    # "That is out of stock. Shall I send the grey one instead?" may offer just the second choice.
    told = state.said | set(wish.instead.says)
    offered = heard.confirm and objection(persona, told, wish.instead, text) is None
    agreed = offered or "proposal" in state.said
    state, words = _switch(persona, state, wish)
    return (_consent(state, wish.instead), _TEXTS["agreed"].format(words=words)) if agreed else (state, words)


def reasons_given(wish: Wish, heard: Heard) -> frozenset[str]:
    """The reasons in a refusal: those that can hold for such a wish; all where there is none or a list of them.

    "It was delivered 40 days ago" is a reason against a return, and beside it sounds like one against cancelling.
    """
    identity = {"identity"} if wish.because == "identity" else set()
    named = heard.reasons - {"identity"} | (heard.reasons & identity)
    relevant = named & (set(RELEVANT[wish.kind]) | identity)
    return relevant if relevant and len(named) <= _INCIDENTAL + 1 else named


def _transferred(persona: Persona, state: UserState, wish: Wish) -> Said:
    if wish.kind == "human":
        return _settle(persona, state, "transferred")
    outcomes = (*state.outcomes, "transferred")
    return replace(state, wish=None, waiting=(), outcomes=outcomes, ended="closed"), _TEXTS["handed_over"]


def _settle(persona: Persona, state: UserState, outcome: str) -> Said:
    """Close the wish, once all that must be told has been told, and continue with the next."""
    wish = state.wish
    assert wish is not None
    missing = [fact for i, fact in enumerate(wish.facts) if i not in state.heard]
    if missing and outcome in ("done", "told"):
        if state.pending or wish.kind == "question":
            return _annoyed(persona, state, missing[0].ask)
        return replace(state, pending=outcome), missing[0].ask
    return _advance(persona, state, outcome, _TEXTS["see" if outcome.startswith("refused") else "thanks"])


def _switch(persona: Persona, state: UserState, wish: Wish) -> Said:
    """Turn to the wish's second choice, or drop it."""
    before = _TEXTS["changed" if wish.switch == "confirm" else "see"]
    if wish.instead is None:
        return _advance(persona, state, wish.outcome, f"{before} {_TEXTS['keep']}")
    state = replace(state, waiting=(wish.instead, *state.waiting))
    return _advance(persona, state, wish.outcome, before, more="")


def _advance(persona: Persona, state: UserState, outcome: str, words: str, more: str | None = None) -> Said:
    outcomes = (*state.outcomes, outcome)
    state = replace(state, outcomes=outcomes, heard=frozenset(), reasons=frozenset(), pushed=0, pending="")
    if not state.waiting:
        return replace(state, wish=None, ended="closed"), f"{words} {_pick(persona, state.turns, 'goodbye')}"
    wish, *waiting = state.waiting
    said = (state.said & _IDENTITY) | set(wish.says)
    state = replace(state, wish=wish, waiting=tuple(waiting), said=said)
    if more is None:
        more = _pick(persona, state.turns, "next")
    return state, " ".join(filter(None, (words, more, wish.opening)))


def _with(state: UserState, *slots: str) -> UserState:
    return replace(state, said=state.said | set(slots))


def _again(persona: Persona, state: UserState, slot: str, words: str) -> Said:
    """Say something that is fine to say once, and tiresome after that."""
    if slot in state.said:
        return _annoyed(persona, state, words)
    return _with(state, slot), words


def _annoyed(persona: Persona, state: UserState, words: str, before: str = "") -> Said:
    state = replace(state, annoyance=state.annoyance + 1)
    if state.annoyance >= persona.patience:
        return replace(state, wish=None, waiting=(), ended="left"), _TEXTS["leaves"]
    return state, f"{before} {words}".strip()


# ------------------------------------------------------------------ questions and answers


def _asked(persona: Persona, state: UserState, wish: Wish, heard: Heard) -> frozenset[str]:
    """The slots that a reply asks for, as far as they have to do with the wish."""
    asked = set(heard.asks & set(SLOTS))
    if "identity" in heard.asks and not asked & _IDENTITY:
        asked |= {"email"} if persona.knows_email else {"name", "zip"}
    if "email" in asked and asked & {"name", "zip"}:
        # "Your email address, or your name and zip code?" One of them will do.
        asked -= {"name", "zip"} if persona.knows_email and "email" not in state.said else {"email"}
    if "charge" in heard.asks and wish.kind == "human":
        asked.add("reason")
    known = {
        "order": wish.order_id,
        "items": wish.things,
        "variant": wish.wanted,
        "address": wish.address,
        "payment": wish.kind in ("cancel", "return", "late_fee"),
    }
    return frozenset(slot for slot in asked if known.get(slot, True))


def _answer(persona: Persona, state: UserState, wish: Wish, asked: frozenset[str]) -> Said:
    """Fill the first slots asked for."""
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
        pieces.append(_piece(persona, wish, state.turns, piece, "corrected" in state.said))
    return _with(state, *filled), " ".join(pieces)


def _piece(persona: Persona, wish: Wish, turn: int, piece: str, corrected: bool) -> str:
    order = wish.order_id if corrected or not wish.wrong_number else wish.wrong_number
    text = _choose(persona, turn, _TEXTS["pieces"][piece]).format(
        email=persona.email,
        name=f"{persona.first_name} {persona.last_name}",
        zip=persona.zip_code,
        order=order,
        things=_list(wish.things),
        wanted=", ".join(wish.wanted),
        address=wish.address,
        reason=wish.reason_words or "I would rather not say.",
        payment=wish.payment_words or "The way I paid, please.",
    )
    return text[0].upper() + text[1:]


def objection(persona: Persona, said: frozenset[str], wish: Wish, text: str) -> str | None:
    """What is wrong with a proposal, in the customer's words; ``None`` when a yes to it is a yes to the wish."""
    words = plain(text)
    if rivals(wish.kind, words):
        return _choose(persona, 0, _TEXTS["which_change"])
    if several_orders(words):
        return _choose(persona, 0, _TEXTS["which_order"])
    if unasked := sorted(needs(wish) - said):
        return str(_TEXTS["not_asked"][unasked[0]])
    if not proposes(wish.kind, words):
        return str(_TEXTS["what"])
    orders = orders_named(words)
    if orders and wish.order_id.casefold() not in orders:
        which = wish.order_id if persona.knows_order else _TEXTS["the_one_with"].format(things=_list(wish.things))
        return str(_TEXTS["not_that_order"].format(which=which))
    if not orders and not any(mentions(words, thing) for thing in wish.things):
        return str(_TEXTS["no_order"])
    if wish.kind in ("return", "exchange"):
        for thing, item_id in zip(wish.things, wish.item_ids, strict=True):
            if not mentions(words, thing) and not mentions(words, item_id):
                return str(_TEXTS["what_about"].format(thing=thing))
    if wish.kind == "exchange" and (
        not any(all(mentions(words, each) for each in named) for named in (wish.new_item_ids, wish.wanted))
        or _named(without_refusals(words), wish.other_options)
    ):
        return str(_TEXTS["which_one"])
    if wish.kind == "address" and wish.address is not None and not mentions(words, wish.address.street):
        return str(_TEXTS["to_where"])
    if _named(without_refusals(words), wish.rejects):
        return _choose(persona, 0, _TEXTS["only"]).format(things=_list(wish.things))
    return None


def _named(words: str, phrases: tuple[str, ...]) -> bool:
    return any(mentions(words, phrase) for phrase in phrases)


def _list(things: tuple[str, ...]) -> str:
    return " and the ".join(things)


def _pick(persona: Persona, turn: int, name: str) -> str:
    return _choose(persona, turn, _TEXTS[name])


def _choose(persona: Persona, turn: int, phrases: list[str]) -> str:
    return phrases[(persona.voice + turn) % len(phrases)]
