"""A customer played by a language model: what it is told to be, and what its talk comes to by the rules.

The model only talks, and is asked for no verdict: the scripted customer's parser reads both sides' words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...text import load_yaml
from .reply_parser import MAX_CHARS, Heard, mentions, plain, understand
from .scenario import Persona, Scenario, Wish
from .user import HANDOVER, SLOTS, UserState, objection, reasons_given, verdicts

_TEXTS: Mapping[str, Any] = load_yaml(__package__, "llm_customer.yaml")
#: Who the model is told to be; the scenario's own persona is part of its goal.
PERSONA: str = _TEXTS["persona"]
#: How the model is told to behave, whatever the task.
MANNER: str = _TEXTS["manner"]
# How a yes begins: a message, or a later sentence of it. And "No", "Yes, but not that one", "OK, wait".
_YES, _NO = (re.compile("|".join(_TEXTS[name])) for name in ("agrees", "objects"))
_PROPOSED = "proposed:"


def goal_text(scenario: Scenario) -> str:
    """What the model knows: who it is and what it wants. Nothing of what would be right to do about it."""
    persona = scenario.persona
    mail = _TEXTS["email" if persona.knows_email else "no_email"].format(email=persona.email)
    name = f"{persona.first_name} {persona.last_name}"
    lines = [_TEXTS["who"].format(name=name, mail=mail, zip=persona.zip_code)]
    for number, wish in enumerate(scenario.wishes, start=1):
        lines += ["", f"Wish {number} of {len(scenario.wishes)}:", *_wish_lines(persona, wish)]
    return "\n".join(lines)


def overhear(scenario: Scenario, state: UserState, words: str, answer: str) -> UserState:
    """What the talk has come to after one reply and its answer.

    A yes counts for what the reply proposes, or the one before it if that was answered with neither yes nor no.
    ``outcomes`` of the state are those of ``scenario.chain``, in that order, with empty texts for wishes that are open;
    ``heard`` counts through the facts of that chain; ``said`` also holds, by the number of the wish, what was told
    about it and whether a proposal waits for its answer.
    """
    state = replace(state, turns=state.turns + 1, said=state.said | _told_of_self(scenario.persona, answer))
    if len(words) > MAX_CHARS:
        return state
    heard, answered = understand(words), plain(answer)
    no = _NO.search(answered) is not None
    yes = not no and _YES.search(answered) is not None
    said, waits, facts, consents = set(state.said), set[str](), set(state.heard), set(state.consents)
    outcomes = list(state.outcomes) or [""] * len(scenario.chain)
    first = 0  # of the wish's facts among all
    for number, wish in enumerate(scenario.chain):
        own = range(first, first + len(wish.facts))
        first = own.stop
        told = frozenset(slot for slot in SLOTS if f"{number}:{slot}" in said) | set(wish.says)
        proposed = heard.confirm and bool(wish.grants) and objection(scenario.persona, told, wish, words) is None
        waiting = f"{_PROPOSED}{number}"
        if yes and (proposed or waiting in state.said):
            consents |= wish.grants
        elif proposed and (not no or wish.payment_words):  # "Wait. The money should go to my gift card."
            waits.add(waiting)
        if not outcomes[number]:
            found = verdicts(wish, words)
            facts |= {i for i, verdict in zip(own, found, strict=True) if verdict == "right"}
            next_open = wish.kind == "question" and all(outcomes[:number])
            if next_open and "wrong" in found and not heard.asks and not heard.waiting:
                outcomes[number] = "misinformed"
            elif _is_settled(wish, heard, proposed, facts.issuperset(own)):
                outcomes[number] = wish.outcome
        told |= _told_of(wish, heard, answer)
        said |= {f"{number}:{slot}" for slot in told}
        if wish.kind == "human" and wish.asks <= told:
            consents.add(HANDOVER)
    return replace(
        state,
        said=frozenset(each for each in said if not each.startswith(_PROPOSED)) | waits,
        heard=frozenset(facts),
        consents=frozenset(consents),
        outcomes=tuple(outcomes),
    )


def told_too_much(scenario: Scenario, said: str, words: str, answer: str) -> str | None:
    """What is wrong with an answer that tells what stands in nothing ``said`` and ``words`` do not ask for.

    Guarded are the email address, the zip code, and the number, variant and address of each wish. What the assistant
    asks a yes to may be corrected with the latter.
    """
    heard, persona = understand(words), scenario.persona
    values: list[tuple[frozenset[str], Sequence[str]]] = []
    if not heard.asks & {"email", "name", "zip", "identity"}:
        values.append((frozenset(), (persona.email, persona.zip_code)))
    if not (heard.confirm or heard.guess or heard.asks & {"items", "wish"}):
        for wish in scenario.chain:
            slots = {"order": (wish.order_id, wish.wrong_number), "variant": wish.wanted}
            slots["address"] = () if wish.address is None else (wish.address.street,)
            values += [(heard.asks & {slot} | set(wish.says) & {slot}, given) for slot, given in slots.items()]
    told = [each for free, given in values if not free for each in given if each]
    too_much = any(mentions(answer, each) and not mentions(said, each) for each in told)
    return "it tells what the assistant did not ask for" if too_much else None


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
    return frozenset(slot for slot in told if told[slot])


def _told_of_self(persona: Persona, answer: str) -> frozenset[str]:
    told = {
        "email": mentions(answer, persona.email),
        "name": mentions(answer, persona.first_name) and mentions(answer, persona.last_name),
        "zip": mentions(answer, persona.zip_code),
    }
    return frozenset(slot for slot in told if told[slot])


def _wish_lines(persona: Persona, wish: Wish) -> Iterator[str]:
    """The lines of ``llm_customer.yaml`` whose value the wish has."""
    known = wish.order_id and persona.knows_order
    values = {
        "kind": _TEXTS["kinds"].get(wish.kind),
        "opening": wish.opening,
        "order": known and wish.order_id,
        "wrong_number": known and wish.wrong_number,
        "no_order": wish.order_id and not known and " and the ".join(wish.things),
        "things": " and the ".join(wish.things),
        "wanted": ", ".join(wish.wanted),
        "address": wish.address,
        "reason": wish.reason_words,
        "payment": wish.payment_words,
    }
    yield from (f"- {line.format(values[name])}" for name, line in _TEXTS["lines"].items() if values[name])
    yield from (f"- {_TEXTS['fact'].format(fact.ask)}" for fact in wish.facts)
    if wish.insist:
        yield f"- {_TEXTS['insist'].format(wish.insist)}"
    if wish.switch:
        yield f"- {_TEXTS['switch'][wish.switch]}:{'' if wish.instead else _TEXTS['keep']}"
        yield from (f"  {line}" for line in (_wish_lines(persona, wish.instead) if wish.instead else ()))
