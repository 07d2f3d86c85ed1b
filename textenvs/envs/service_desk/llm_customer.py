"""A customer played by a language model: what it is told to be, and what its talk comes to by the rules.

The model only talks. What the talk means for the reward is found by the parser of the scripted customer
(:mod:`~textenvs.envs.service_desk.reply_parser`), in the assistant's words and in the model's; the model is asked for
no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .reply_parser import MAX_CHARS, Heard, mentions, plain, understand
from .scenario import Persona, Scenario, Wish
from .texts import load
from .user import HANDOVER, SLOTS, UserState, granted, needs, objection, reasons_given, says

_TEXTS: Mapping[str, Any] = load("llm_customer")
#: Who the model is told to be; the scenario's own persona is part of its goal.
PERSONA: str = _TEXTS["persona"]
#: How the model is told to behave, whatever the task.
MANNER: str = _TEXTS["manner"]
# How a yes begins: a message, or a later sentence of it.
_YES = re.compile(
    r"^\W*(?:yes|yeah|yep|yup|sure|ok|okay|correct|right|exactly|absolutely|of course|go ahead|please do|"
    r"please go ahead|confirmed|i confirm|i agree|that is (?:correct|right|fine)|that's (?:correct|right|fine)|"
    r"sounds good|perfect)\b|[.!?]\s+(?:yes|go ahead|please do)\b"
)
# "No", and "Yes, but not that one", "OK, wait": a yes that is taken back.
_NO = re.compile(r"^\W*(?:no|nope|never)\b|\b(?:but|wait|hold on|not yet|stop|changed my mind)\b")
_PROPOSED = "proposed:"


def goal_text(scenario: Scenario) -> str:
    """What the model knows: who it is and what it wants. Nothing of what would be right to do about it."""
    persona = scenario.persona
    mail = f"Your email address is {persona.email}."
    if not persona.knows_email:
        mail = "You do not remember which email address you gave the shop; your name and zip code you know."
    lines = [f"You are {persona.first_name} {persona.last_name}. {mail} Your zip code is {persona.zip_code}."]
    for number, wish in enumerate(scenario.wishes, start=1):
        lines += ["", f"Wish {number} of {len(scenario.wishes)}:", *_wish_lines(persona, wish)]
    return "\n".join(lines)


def overhear(scenario: Scenario, state: UserState, words: str, answer: str) -> UserState:
    """What the talk has come to after one reply and its answer.

    A yes counts for what the reply proposes, or the one before it if that was answered with neither yes nor no.

    Args:
        scenario: The task.
        state: Where the talk was before. Its ``outcomes`` are those of ``scenario.chain``, in that order, with empty
            texts for wishes that are open; ``heard`` counts through the facts of that chain; ``said`` also holds, by
            the number of the wish, what was told about it and whether a proposal waits for its answer.
        words: What the assistant said.
        answer: What the model said.
    """
    state = replace(state, turns=state.turns + 1, said=state.said | _told_of_self(scenario.persona, answer))
    if len(words) > MAX_CHARS:
        return state
    heard, answered = understand(words), plain(answer)
    no = _NO.search(answered) is not None
    yes = not no and _YES.search(answered) is not None
    said, waits = set(state.said), set[str]()
    facts, consents, outcomes = set(state.heard), set(state.consents), list(state.outcomes)
    outcomes += [""] * (len(scenario.chain) - len(outcomes))
    first = 0  # of the wish's facts among all
    for number, wish in enumerate(scenario.chain):
        own = range(first, first + len(wish.facts))
        first = own.stop
        told = frozenset(slot for slot in SLOTS if f"{number}:{slot}" in said) | set(wish.says)
        proposed = heard.confirm and bool(granted(wish)) and objection(scenario.persona, told, wish, words) is None
        waiting = f"{_PROPOSED}{number}"
        if yes and (proposed or waiting in state.said):
            consents |= granted(wish)
        elif proposed and (not no or wish.payment_words):  # "Wait. The money should go to my gift card."
            waits.add(waiting)
        if not outcomes[number]:
            verdicts = [says(words, fact, statements=wish.kind == "question") for fact in wish.facts]
            facts |= {i for i, verdict in zip(own, verdicts, strict=True) if verdict == "right"}
            next_open = wish.kind == "question" and all(outcomes[:number])
            if next_open and "wrong" in verdicts and not heard.asks and not heard.waiting:
                outcomes[number] = "misinformed"
            elif _is_settled(wish, heard, proposed, facts.issuperset(own)):
                outcomes[number] = wish.outcome
        told |= _told_of(wish, heard, answer)
        said |= {f"{number}:{slot}" for slot in told}
        if wish.kind == "human" and needs(wish) <= told:
            consents.add(HANDOVER)
    return replace(
        state,
        said=frozenset(each for each in said if not each.startswith(_PROPOSED)) | waits,
        heard=frozenset(facts),
        consents=frozenset(consents),
        outcomes=tuple(outcomes),
    )


def _is_settled(wish: Wish, heard: Heard, proposed: bool, told: bool) -> bool:
    """Whether the assistant's words are what the wish needed. What had to be *done* shows in the database."""
    if wish.switch == "confirm":
        return proposed  # which is when the model is to change its mind
    if wish.because is not None:
        return heard.refused and reasons_given(wish, heard) == {wish.because}
    return told


def _told_of(wish: Wish, heard: Heard, answer: str) -> frozenset[str]:
    """What a message tells of a wish. A reason can have any words: it is told in the answer to the question for it."""
    things = [mentions(answer, thing) for thing in wish.things]
    told = {
        "order": bool(wish.order_id) and (mentions(answer, wish.order_id) or any(things)),
        "items": bool(things) and all(things),
        "variant": bool(wish.wanted) and all(mentions(answer, each) for each in wish.wanted),
        "address": wish.address is not None and mentions(answer, wish.address.street),
        "reason": bool({"reason", "charge"} & heard.asks),
    }
    return frozenset(slot for slot, is_told in told.items() if is_told)


def _told_of_self(persona: Persona, answer: str) -> frozenset[str]:
    told = {
        "email": mentions(answer, persona.email),
        "name": mentions(answer, persona.first_name) and mentions(answer, persona.last_name),
        "zip": mentions(answer, persona.zip_code),
    }
    return frozenset(slot for slot, is_told in told.items() if is_told)


def _wish_lines(persona: Persona, wish: Wish) -> Iterator[str]:
    things = " and the ".join(wish.things)
    if wish.kind in _TEXTS["kinds"]:
        yield f"- {_TEXTS['kinds'][wish.kind]}"
    yield f"- You bring it up like this: {wish.opening}"
    if wish.order_id and persona.knows_order:
        yield f"- The order number is {wish.order_id}."
        if wish.wrong_number:
            yield f"- But at first you misread it and say {wish.wrong_number}, until that is not found."
    elif wish.order_id:
        yield f"- You do not have the order number. It is the order with the {things}."
    if things:
        yield f"- It is about the {things}."
    if wish.wanted:
        yield f"- What you would like to have in exchange: {', '.join(wish.wanted)}."
    if wish.address is not None:
        yield f"- The address is {wish.address}."
    if wish.reason_words:
        yield f"- Asked for a reason: {wish.reason_words}"
    if wish.payment_words:
        yield f"- About the money, which you say before you say yes: {wish.payment_words}"
    for fact in wish.facts:
        yield f"- You must be told this before it is settled: {fact.ask}"
    if wish.insist:
        yield f"- If it is refused, ask for it all the same, {wish.insist} time(s); then let it be."
    if not wish.switch:
        return
    when = "When you are asked whether it may be done, you change your mind" if wish.switch == "confirm" else None
    when = when or "If it is refused with a reason, and only then, you have another wish in its place"
    if wish.instead is None:
        yield f"- {when}: everything should stay as it is."
        return
    yield f"- {when}:"
    yield from (f"  {line}" for line in _wish_lines(persona, wish.instead))
