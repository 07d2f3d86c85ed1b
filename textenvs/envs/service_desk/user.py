"""The simulated customer: a state machine that is stepped by the assistant's words alone.

The user brings up one wish at a time, by its kind only, and gives details when asked for them, at most two in one
message. Asked for a yes, they look whether the assistant understood them: the order, the items, the new variant, the
address. They take the assistant's word for what was done; tool calls, tool results and private reasoning they never
see. Every useless reply costs patience: who runs out of it leaves. Otherwise the talk ends with thanks when every wish
is settled, one way or the other.

All is a function of the persona, the state and the reply: there is no randomness.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .database import Record
from .reply_parser import MAX_CHARS, Heard, mentions, plain, tells, understand
from .scenario import Persona, Scenario, Wish

#: What the user may be asked for, identity first; each is a slot that they fill at most once without complaint.
SLOTS: tuple[str, ...] = ("email", "name", "zip", "order", "items", "variant", "address", "reason", "payment")
_IDENTITY = frozenset({"email", "name", "zip"})
# How many pieces of information one message of the user holds at most; name and zip code together are one.
_AT_ONCE = 2

#: The tools that a yes to a wish allows, on the order of the wish.
GRANTS: Mapping[str, tuple[str, ...]] = {
    "cancel": ("cancel_order",),
    "return": ("return_items", "refund"),
    "exchange": ("exchange_items",),
    "address": ("change_address",),
    "late_fee": ("refund",),
}
_VERBS: Mapping[str, re.Pattern[str]] = {
    "cancel": re.compile(r"\bcancel"),
    "return": re.compile(r"\breturn|\brefund|\b(?:send|take|sending|taking) [\w ]*back"),
    "exchange": re.compile(r"\bexchang|\bswap|\breplac"),
    "address": re.compile(r"\baddress|\bship|\bdeliver|\bsend|\bsent"),
    "late_fee": re.compile(r"\b(?:delivery|shipping) (?:fee|cost|charge)|\brefund"),
}
#: The answer to a reply that is longer than :data:`~textenvs.envs.service_desk.reply_parser.MAX_CHARS`.
TOO_LONG = "That is far too long for me to read. Please be brief."
_ORDER_ID = re.compile(r"\bw\d{7}\b")


@dataclass(frozen=True, slots=True)
class UserState(Record):
    """Where the user is in the talk.

    Args:
        wish: What they want now; ``None`` when the talk is over.
        waiting: What they want after that.
        said: The slots that they have filled, of this wish and of who they are, and other things they have said once.
        heard: Which of the wish's facts they have been told.
        consents: What they said yes to: (tool, order number).
        outcomes: How each wish was settled.
        reasoned: They have been given the right reason for a refusal of this wish.
        misled: They have been given a wrong reason for it.
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
    reasoned: bool = False
    misled: bool = False
    pushed: int = 0
    pending: str = ""
    annoyance: int = 0
    turns: int = 0
    ended: Literal["", "closed", "left"] = ""


Said = tuple[UserState, str]


def begin(scenario: Scenario) -> Said:
    """The user's state at first, and what they open the talk with."""
    first, *others = scenario.wishes
    greeting = _pick(scenario.persona, 0, "Hello.", "Hi there.", "Good day.")
    state = UserState(wish=first, waiting=tuple(others), said=frozenset(first.says))
    return state, f"{greeting} {first.opening}"


def listen(persona: Persona, state: UserState, text: str) -> Said:
    """The user hears a reply, and answers.

    Args:
        persona: Who the user is.
        state: Where they are; the talk is not over.
        text: What the assistant says to them, without reasoning and tool calls.

    Returns:
        The next state and the answer.
    """
    wish = state.wish
    assert wish is not None, "the talk is over"
    state = replace(state, turns=state.turns + 1)
    if len(text) > MAX_CHARS:
        return _annoyed(persona, state, TOO_LONG)
    heard = understand(text)
    told = {i for i, fact in enumerate(wish.facts) if tells(text, fact.kind, fact.value, fact.decoys)} - state.heard
    state = replace(state, heard=state.heard | told)
    if state.pending:
        return _settle(persona, state, state.pending)
    if wish.kind == "question" and told:
        return _settle(persona, state, "told")
    if heard.transferred:
        return _transferred(persona, state, wish)
    asked = _asked(persona, state, wish, heard)
    if heard.refused and wish.because in heard.reasons and not asked - state.said:
        return _refused(persona, state, wish, heard, text)
    if heard.done and granted(wish) and granted(wish) <= state.consents:
        return _settle(persona, state, "done")
    if heard.confirm and wish.kind in GRANTS:
        problem = misunderstood(persona, wish, plain(text))
        if problem is None:
            return _agree(persona, state, wish, heard, text)
        if not heard.asks:
            return _annoyed(persona, state, problem)
    if asked - state.said:
        return _answer(persona, state, wish, asked - state.said)
    if heard.confirm and wish.kind not in GRANTS:
        return _again(persona, state, "yes", "Yes, please.")
    if heard.refused and not heard.not_found:
        return _refused(persona, state, wish, heard, text)
    if heard.done and wish.kind in GRANTS:
        return _settle(persona, state, "done")
    if asked:
        return _annoyed(persona, *_answer(persona, state, wish, asked), before="As I said:")
    if heard.asks:
        return _again(persona, state, "wish", wish.opening)
    if heard.guess:
        return _check(persona, state, wish, plain(text))
    if heard.not_found:
        return _annoyed(persona, *_answer(persona, state, wish, _IDENTITY), before="Please look again.")
    if heard.waiting:
        return _annoyed(persona, state, "All right, I will wait.")
    if heard.more:
        return _annoyed(persona, state, f"But my request is still open. {wish.opening}")
    if heard.nothing and not told:
        return _annoyed(persona, state, _pick(persona, state.turns, "Sorry, I do not understand.", "What do you mean?"))
    return _annoyed(persona, state, _pick(persona, state.turns, "I see. And now?", "All right. What happens next?"))


# ------------------------------------------------------------------ what the user does


def _agree(persona: Persona, state: UserState, wish: Wish, heard: Heard, text: str) -> Said:
    """Say yes to a proposal that is understood rightly; or bring up what it leaves out; or change one's mind."""
    if wish.payment_words and "payment" not in state.said:
        # They will take it without this, too: "proposal" remembers that there is nothing else against it.
        return replace(state, said=state.said | {"payment", "proposal"}), f"Wait. {wish.payment_words}"
    if wish.because == "payment" and "payment" in heard.reasons:
        # Proposed again, to the original payment method: as good as a refusal.
        return _refused(persona, state, wish, heard, text)
    if wish.switch == "confirm":
        return _switch(persona, state, wish)
    yes = _pick(persona, state.turns, "Yes, please do that.", "Yes, go ahead.", "Yes.")
    if granted(wish) <= state.consents:
        return _annoyed(persona, state, yes)
    return _consent(state, wish), yes


def _check(persona: Persona, state: UserState, wish: Wish, words: str) -> Said:
    """Say whether the assistant has guessed right what the wish is about."""
    named = [wish.order_id.casefold() or "no order", *wish.things, *wish.wanted]
    if any(mentions(words, each) for each in named):
        return _again(persona, state, "guessed", "Yes, that is right.")
    return _annoyed(persona, state, "No, that is not what I mean.")


def _consent(state: UserState, wish: Wish) -> UserState:
    return replace(state, consents=state.consents | granted(wish))


def granted(wish: Wish) -> frozenset[tuple[str, str]]:
    """What a yes to the wish allows: (tool, order number)."""
    return frozenset((tool, wish.order_id) for tool in GRANTS.get(wish.kind, ()))


def _refused(persona: Persona, state: UserState, wish: Wish, heard: Heard, text: str) -> Said:
    """Take a refusal: ask for the reason, ask again, or give in."""
    if wish.because is None:
        if state.pushed >= max(wish.insist, 2):
            return _settle(persona, state, "refused")
        sure = "Are you sure? I think that should be possible. Please check again."
        return _annoyed(persona, replace(state, pushed=state.pushed + 1), sure)
    if wish.because in heard.reasons and len(heard.reasons) > 3:
        return _annoyed(persona, state, "You give me so many reasons. Which one is it?")
    reasoned = state.reasoned or wish.because in heard.reasons
    state = replace(state, reasoned=reasoned)
    if not reasoned and not heard.reasons:
        return _annoyed(persona, state, "Why not?")
    if not reasoned and state.misled:
        return _settle(persona, state, "refused")  # a second wrong reason: no more guessing
    if not reasoned:
        return _annoyed(persona, replace(state, misled=True), "Is that really the reason?")
    if state.pushed < wish.insist:
        push = _pick(persona, state.pushed, "Can you not make an exception for me?", "Come on, please do it anyway.")
        return replace(state, pushed=state.pushed + 1), push
    if wish.switch != "refused" or wish.instead is None:
        return _settle(persona, state, wish.outcome)
    # "That is out of stock. Shall I send the grey one instead?" may offer just the second choice.
    offered = heard.confirm and misunderstood(persona, wish.instead, plain(text)) is None
    agreed = offered or "proposal" in state.said
    state, words = _switch(persona, state, wish)
    return (_consent(state, wish.instead), f"{words} Yes, go ahead.") if agreed else (state, words)


def _transferred(persona: Persona, state: UserState, wish: Wish) -> Said:
    if wish.kind == "human":
        return _settle(persona, state, "transferred")
    outcomes = (*state.outcomes, "transferred")
    state = replace(state, wish=None, waiting=(), outcomes=outcomes, ended="closed")
    return state, "All right, then I will wait for your colleague. Goodbye."


def _settle(persona: Persona, state: UserState, outcome: str) -> Said:
    """Close the wish, once all that must be told has been told, and go on to the next."""
    wish = state.wish
    assert wish is not None
    missing = [fact for i, fact in enumerate(wish.facts) if i not in state.heard]
    if missing and outcome in ("done", "told"):
        if state.pending or wish.kind == "question":
            return _annoyed(persona, state, missing[0].ask)
        return replace(state, pending=outcome), missing[0].ask
    return _advance(persona, state, outcome, "Thank you." if outcome in ("done", "told", "transferred") else "I see.")


def _switch(persona: Persona, state: UserState, wish: Wish) -> Said:
    """Go over to the wish's second choice, or drop it."""
    before = "Wait, I have changed my mind." if wish.switch == "confirm" else "I see."
    if wish.instead is None:
        return _advance(persona, state, wish.outcome, f"{before} Please leave everything as it is.")
    state = replace(state, waiting=(wish.instead, *state.waiting))
    return _advance(persona, state, wish.outcome, before, more="")


def _advance(persona: Persona, state: UserState, outcome: str, words: str, more: str | None = None) -> Said:
    outcomes = (*state.outcomes, outcome)
    state = replace(state, outcomes=outcomes, heard=frozenset(), reasoned=False, misled=False, pushed=0, pending="")
    if not state.waiting:
        goodbye = _pick(persona, state.turns, "That is all. Goodbye.", "That was all I needed. Goodbye.")
        return replace(state, wish=None, ended="closed"), f"{words} {goodbye}"
    wish, *waiting = state.waiting
    said = (state.said & _IDENTITY) | set(wish.says)
    state = replace(state, wish=wish, waiting=tuple(waiting), said=said)
    if more is None:
        more = _pick(persona, state.turns, "There is one more thing.", "I have another question.", "One more thing.")
    return state, " ".join(filter(None, (words, more, wish.opening)))


def _again(persona: Persona, state: UserState, slot: str, words: str) -> Said:
    """Say something that is fine to say once, and tiresome after that."""
    if slot in state.said:
        return _annoyed(persona, state, words)
    return replace(state, said=state.said | {slot}), words


def _annoyed(persona: Persona, state: UserState, words: str, before: str = "") -> Said:
    state = replace(state, annoyance=state.annoyance + 1)
    if state.annoyance >= persona.patience:
        state = replace(state, wish=None, waiting=(), ended="left")
        return state, "This leads nowhere. I will try it somewhere else. Goodbye."
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
    if not wish.order_id:
        asked.discard("order")
    if not wish.things:
        asked.discard("items")
    if not wish.wanted:
        asked.discard("variant")
    if wish.address is None:
        asked.discard("address")
    if wish.kind not in ("cancel", "return", "late_fee"):
        asked.discard("payment")
    return frozenset(asked)


def _answer(persona: Persona, state: UserState, wish: Wish, asked: frozenset[str]) -> Said:
    """Fill the first slots asked for."""
    filled: set[str] = set()
    pieces: list[str] = []
    for slot in SLOTS:
        if slot not in asked or slot in filled:
            continue
        if len(pieces) == _AT_ONCE:
            break
        filled.add(slot)
        if slot == "name" and "zip" in asked:
            filled.add("zip")
            pieces.append(f"I am {persona.first_name} {persona.last_name}, and my zip code is {persona.zip_code}.")
        else:
            pieces.append(_piece(persona, wish, slot))
    return replace(state, said=state.said | filled), " ".join(pieces)


def _piece(persona: Persona, wish: Wish, slot: str) -> str:
    things = _list(wish.things)
    if slot == "email":
        if persona.knows_email:
            return f"My email address is {persona.email}."
        return "I do not remember which email address I used, but I can give you my name and zip code."
    if slot == "name":
        return f"My name is {persona.first_name} {persona.last_name}."
    if slot == "zip":
        return f"My zip code is {persona.zip_code}."
    if slot == "order":
        if persona.knows_order:
            return f"The order number is {wish.order_id}."
        return f"I do not have the order number. It is the order with the {things}."
    if slot == "items":
        return f"It is about the {things}."
    if slot == "variant":
        return f"I would like {', '.join(wish.wanted)}."
    if slot == "address":
        return f"The address is {wish.address}."
    if slot == "reason":
        return wish.reason_words or "I would rather not say."
    return wish.payment_words or "The way I paid, please."


def misunderstood(persona: Persona, wish: Wish, words: str) -> str | None:
    """What is wrong with a proposal, in the user's words; ``None`` when it is what they want."""
    if not _VERBS[wish.kind].search(words):
        return "What exactly do you want to do?"
    orders = set(_ORDER_ID.findall(words))
    if orders and wish.order_id.casefold() not in orders:
        which = wish.order_id if persona.knows_order else f"the one with the {_list(wish.things)}"
        return f"No, that is not the order I mean. I mean {which}."
    if not orders and not any(mentions(words, thing) for thing in wish.things):
        return "Which order do you mean?"
    if wish.kind in ("return", "exchange"):
        for thing, item_id in zip(wish.things, wish.item_ids, strict=True):
            if not mentions(words, thing) and not mentions(words, item_id):
                return f"And what about the {thing}?"
    if wish.kind == "exchange" and not any(
        all(mentions(words, each) for each in named) for named in (wish.new_item_ids, wish.wanted)
    ):
        return "Which one would I get then?"
    if wish.kind == "address" and wish.address is not None and not mentions(words, wish.address.street):
        return "To which address?"
    return None


def _list(things: tuple[str, ...]) -> str:
    return " and the ".join(things)


def _pick(persona: Persona, turn: int, *phrases: str) -> str:
    return phrases[(persona.voice + turn) % len(phrases)]
