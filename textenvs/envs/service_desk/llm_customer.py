"""A customer played by a language model: its briefing, and the state that follows from its messages by the rules.

The model only talks, and is asked for no verdict: the scripted customer's parser reads both sides' words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...text import load_yaml
from ...users.base import Fact
from .reply_parser import MAX_CHARS, ParsedReply, mentions, plain, understand
from .scenario import Persona, Scenario, Wish
from .user import HANDOVER, SLOTS, UserState, objection, reasons_given, verdicts

_TEXTS: Mapping[str, Any] = load_yaml(__package__, "llm_customer.yaml")
#: The role in the model's prompt; the scenario's own persona is part of its goal.
PERSONA: str = _TEXTS["persona"]
#: The behavior in the model's prompt, for every task.
MANNER: str = _TEXTS["manner"]
# How a yes begins: a message, or a later sentence of it. And "No", "Yes, but not that one", "OK, wait".
_YES, _NO = (re.compile("|".join(_TEXTS[name])) for name in ("agrees", "objects"))
_PROPOSED = "proposed:"


def goal_text(scenario: Scenario) -> str:
    """Return the model's briefing: its identity and its wishes, without the right way to handle them."""
    persona = scenario.persona
    mail = _TEXTS["email" if persona.knows_email else "no_email"].format(email=persona.email)
    name = f"{persona.first_name} {persona.last_name}"
    lines = [_TEXTS["who"].format(name=name, mail=mail, zip=persona.zip_code)]
    for number, wish in enumerate(scenario.wishes, start=1):
        lines += ["", f"Wish {number} of {len(scenario.wishes)}:", *_wish_lines(persona, wish)]
    return "\n".join(lines)


def overhear(scenario: Scenario, state: UserState, words: str, answer: str) -> UserState:
    """Return the customer's state after one reply and its answer.

    A yes counts for what the reply proposes, or the one before it if that was answered with neither yes nor no.
    ``outcomes`` of the state are those of ``scenario.chain``, in that order, with empty texts for wishes that are open;
    ``answered`` counts through the facts of that chain; ``disclosed`` also holds, by the number of the wish, the slots
    disclosed about it and whether a proposal waits for its answer.
    """
    state = replace(state, turns=state.turns + 1, disclosed=state.disclosed | _told_of_self(scenario.persona, answer))
    if len(words) > MAX_CHARS:
        return state
    parsed, answered = understand(words), plain(answer)
    no = _NO.search(answered) is not None
    yes = not no and _YES.search(answered) is not None
    disclosed, waits, facts, consents = set(state.disclosed), set[str](), set(state.answered), set(state.consents)
    outcomes = list(state.outcomes) or [""] * len(scenario.chain)
    first = 0  # of the wish's facts among all
    for number, wish in enumerate(scenario.chain):
        own = range(first, first + len(wish.facts))
        first = own.stop
        slots = frozenset(slot for slot in SLOTS if f"{number}:{slot}" in disclosed) | set(wish.says)
        proposed = parsed.confirm and bool(wish.grants) and objection(scenario.persona, slots, wish, words) is None
        waiting = f"{_PROPOSED}{number}"
        if yes and (proposed or waiting in state.disclosed):
            consents |= wish.grants
        elif proposed and (not no or wish.payment_words):  # "Wait. The money should go to my gift card."
            waits.add(waiting)
        if not outcomes[number]:
            results = verdicts(wish, words)
            facts |= {i for i, verdict in zip(own, results, strict=True) if verdict == "right"}
            next_open = wish.kind == "question" and all(outcomes[:number])
            if next_open and "wrong" in results and not parsed.asks and not parsed.waiting:
                outcomes[number] = "misinformed"
            elif _is_settled(wish, parsed, proposed, facts.issuperset(own)):
                outcomes[number] = wish.outcome
        slots |= _told_of(wish, parsed, answer)
        disclosed |= {f"{number}:{slot}" for slot in slots}
        if wish.kind == "human" and wish.asks <= slots:
            consents.add(HANDOVER)
    return replace(
        state,
        disclosed=frozenset(entry for entry in disclosed if not entry.startswith(_PROPOSED)) | waits,
        answered=frozenset(facts),
        consents=frozenset(consents),
        outcomes=tuple(outcomes),
    )


def told_too_much(scenario: Scenario, transcript: str, words: str, answer: str) -> str | None:
    """Return the problem of an answer that discloses more than ``words`` ask for and ``transcript`` has; else ``None``.

    Guarded are the email address, the zip code, and the number, variant and address of each wish. What the assistant
    asks a yes to may be corrected with the latter.
    """
    parsed, persona = understand(words), scenario.persona
    values: list[tuple[frozenset[str], Sequence[str]]] = []
    if not parsed.asks & {"email", "name", "zip", "identity"}:
        values.append((frozenset(), (persona.email, persona.zip_code)))
    if not (parsed.confirm or parsed.guess or parsed.asks & {"items", "wish"}):
        for wish in scenario.chain:
            slots = {"order": (wish.order_id, wish.wrong_number), "variant": wish.wanted}
            slots["address"] = () if wish.address is None else (wish.address.street,)
            values += [(parsed.asks & {slot} | set(wish.says) & {slot}, private) for slot, private in slots.items()]
    guarded = [value for free, private in values if not free for value in private if value]
    too_much = any(mentions(answer, value) and not mentions(transcript, value) for value in guarded)
    return "it tells what the assistant did not ask for" if too_much else None


def facts_of(scenario: Scenario, state: UserState) -> list[Fact]:
    """Return what the customer holds back: who they are, and of each wish what its opening does not say.

    A sentence is about a detail of the current wish if it asks for its slot, or for a yes or a guess, which the detail
    may correct. (A model as the customer has no current wish: any will do.)
    """
    persona, chain, facts = scenario.persona, scenario.chain, []
    own = {"email": persona.email if persona.knows_email else "", "name": persona.last_name, "zip": persona.zip_code}
    for slot, value in own.items():
        facts.append(_fact(slot, (value,), frozenset({slot, "identity"})))
    for number, wish in enumerate(chain):
        current = state.wish == wish or bool(state.outcomes and "" in state.outcomes)
        values = {
            "order": (wish.order_id, wish.wrong_number) if persona.knows_order else (),
            "items": wish.things,
            "variant": wish.wanted,
            "address": () if wish.address is None else (wish.address.street,),
            "reason": (wish.reason_words,),
            "payment": (wish.payment_words,),
        }
        for slot in values.keys() - set(wish.says):
            asks = {slot, *_ALSO_TOLD.get(slot, ())} if current else ()
            facts.append(_fact(f"{slot} of wish {number + 1}", values[slot], frozenset(asks), corrects=current))
    return [fact for fact in facts if fact.saying]


#: Slots whose question also obtains these: without its number an order is named by its items.
_ALSO_TOLD = {"items": ("order",), "reason": ("charge",)}


def _fact(name: str, values: Sequence[str], asks: frozenset[str], corrects: bool = False) -> Fact:
    values = [value for value in values if value]

    def tells(text: str, context: str) -> bool:
        return any(mentions(text, value) and not mentions(context, value) for value in values)

    def named(sentence: str) -> bool:
        parsed = understand(sentence[:MAX_CHARS])
        return bool(parsed.asks & asks) or (corrects and (parsed.confirm or parsed.guess))

    return Fact(name, " ".join(values), tells, named)


def _is_settled(wish: Wish, parsed: ParsedReply, proposed: bool, facts_stated: bool) -> bool:
    """Return whether the assistant's words settle the wish. The database shows which changes were made."""
    if wish.switch == "confirm":
        return proposed  # which is when the model is to change its mind
    if wish.because is not None:
        return parsed.refused and reasons_given(wish, parsed) == {wish.because}
    return facts_stated


def _told_of(wish: Wish, parsed: ParsedReply, answer: str) -> frozenset[str]:
    """Return the slots of a wish that a message discloses; any answer to the question for the reason discloses that."""
    things = [mentions(answer, thing) for thing in wish.things]
    disclosed = {
        "order": bool(wish.order_id) and (mentions(answer, wish.order_id) or any(things)),
        "items": bool(things) and all(things),
        "variant": bool(wish.wanted) and all(mentions(answer, option) for option in wish.wanted),
        "address": wish.address is not None and mentions(answer, wish.address.street),
        "reason": bool({"reason", "charge"} & parsed.asks),
    }
    return frozenset(slot for slot in disclosed if disclosed[slot])


def _told_of_self(persona: Persona, answer: str) -> frozenset[str]:
    disclosed = {
        "email": mentions(answer, persona.email),
        "name": mentions(answer, persona.first_name) and mentions(answer, persona.last_name),
        "zip": mentions(answer, persona.zip_code),
    }
    return frozenset(slot for slot in disclosed if disclosed[slot])


def _wish_lines(persona: Persona, wish: Wish) -> Iterator[str]:
    """Yield the lines of ``llm_customer.yaml`` for which the wish has a value."""
    order_known = wish.order_id and persona.knows_order
    values = {
        "kind": _TEXTS["kinds"].get(wish.kind),
        "opening": wish.opening,
        "order": order_known and wish.order_id,
        "wrong_number": order_known and wish.wrong_number,
        "no_order": wish.order_id and not order_known and " and the ".join(wish.things),
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
