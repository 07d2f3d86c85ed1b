"""Word problems that come in pieces: a chain of calculations, each of whose numbers the user holds back.

Stories are composed by the grammar in ``stories.yaml``, whose head says how.
"""

from __future__ import annotations

import functools
import os.path
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...scoring.final_answer import final_answer
from ...task import TWINS, Split, Task, proven_facts, split_choices
from ...text import load_yaml
from ..collab.tasks import Draft, Family, Piece, begin, piece_of

_LARGEST = 100_000
_STEPS = {"easy": 3, "medium": 4, "hard": 5}
_MENTIONED = 0.8  # how likely a vague opening is to name what an event is about
_NUMBER = re.compile(r"\d+")
_EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
#: Other numbers that are tried for one that is held back.
_TRIED = 60
_CONTENT = load_yaml(__package__, "stories.yaml")


@functools.cache
def grammar(split: Split) -> Mapping[str, Any]:
    """Return the parts of a split's stories: its holders, things, beginnings and kinds of events."""
    begins = {
        name: {**step, "sayings": split_choices(step["sayings"], split)} for name, step in _CONTENT["begin"].items()
    }
    kinds = {
        name: {
            **kind,
            "name": name,
            "wants": split_choices(kind["wants"], split),
            "events": split_choices(kind["events"], split),
        }
        for name, kind in _CONTENT["kinds"].items()
    }
    nouns = {name: split_choices(tuple(_CONTENT[name].items()), split) for name in ("holders", "things")}
    return {"begin": begins, "kinds": kinds, "mentions": split_choices(_CONTENT["mentions"], split), **nouns}


def draft_math(rng: random.Random, level: str, split: Split = "train") -> Draft | None:
    """Draw a problem; ``None`` where the numbers drawn make none.

    The result is an integer, at least 2, and none of the numbers that the user may say.
    """
    words = grammar(split)
    (holder, holders), (thing, things) = (rng.choice(words[name]) for name in ("holders", "things"))
    nouns = {"holder": holder, "holders": holders, "thing": thing, "things": things}
    steps, wants = _story(rng, words, _STEPS[level])
    pieces: list[Piece] = []
    equations: list[str] = []
    result = 0
    for step in steps:
        number, sign = _draw(rng, step, result), step["sign"]
        if number is None:
            return None
        if sign == "=":
            result = number
        else:
            first, sign, second = (number, "-", result) if sign == "to" else (result, sign, number)
            result = {"+": first + second, "-": first - second, "*": first * second, "/": first // second}[sign]
            equations.append(f"{first}{sign}{second}={result}")
        pieces.append(_piece(rng, step, nouns, number))
    if not 2 <= result <= _LARGEST or str(result) in _numbers(pieces):
        return None
    wants = [want.format(**nouns) for want in wants]
    return Draft(
        opening=f"{begin(rng, wants)} {_mention(rng, words, steps)}".strip(),
        request=" ".join([*(piece.sayings[0] for piece in pieces), wants[0]]),
        pieces=tuple(pieces),
        ground_truth=str(result),
        content="\n".join(equations),
        extra={"answer": "\n".join([*equations, f"#### {result}"])},
    )


def _story(
    rng: random.Random, words: Mapping[str, Any], count: int
) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
    """Draw the steps of a story, and the requests that it may begin with: those of its last step's kind."""
    begins = words["begin"]
    steps = [begins["holders"], begins["contents"]] if rng.random() < 0.5 else [begins["stock"]]
    counts, wants = "things", ()
    while len(steps) < count:
        last, topics = len(steps) == count - 1, {step["topic"] for step in steps}
        events = {
            name: [event for event in kind["events"] if event["topic"] not in topics]
            for name, kind in words["kinds"].items()
            if kind["after"] == counts and ("gives" in kind or last)
        }
        kind = words["kinds"][rng.choice([name for name, choices in events.items() if choices])]
        steps.append({**kind, **rng.choice(events[kind["name"]])})
        counts, wants = kind.get("gives", ""), kind["wants"]
    return steps, wants


def _mention(rng: random.Random, words: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> str:
    """Hint at the subjects of most events, without their numbers, so that there is something to ask."""
    topics = [f"the {step['topic']}" for step in steps if "wants" in step and rng.random() < _MENTIONED]
    listed = " and ".join(filter(None, (", ".join(topics[:-1]), *topics[-1:])))
    return rng.choice(words["mentions"]).format(topics=listed) if topics else ""


def _piece(rng: random.Random, step: Mapping[str, Any], nouns: Mapping[str, str], number: int) -> Piece:
    stems = {name: os.path.commonprefix([nouns[name], nouns[f"{name}s"]]) for name in ("holder", "thing")}
    named = {name: step[name].format(**nouns) for name in ("topic", "question")}
    sayings = rng.sample(step["sayings"], 3)
    entry = {**named, "keywords": step["keywords"].format(**stems), "sayings": sayings}
    return piece_of(entry, None, n=number, **nouns)


def _draw(rng: random.Random, step: Mapping[str, Any], result: int) -> int | None:
    low, high = step["range"]
    if step["sign"] == "-":
        high = min(high, result - 1)
    elif step["sign"] == "to":
        low, high = low + result, high + result
    elif step["sign"] == "/":
        divisors = [number for number in range(low, high + 1) if result % number == 0]
        return rng.choice(divisors) if divisors else None
    return rng.randint(low, high) if low <= high else None


def _numbers(pieces: Sequence[Piece]) -> set[str]:
    return {number for piece in pieces for saying in piece.sayings for number in _NUMBER.findall(saying)}


def twins_of(task: Task) -> list[tuple[str, list[Task]]]:
    """Return for each number that the user holds back the problems with others, each with a result of its own.

    A problem has them if its calculations are a chain that uses the number of each piece once, as generated ones do.
    """
    pieces, chain = FAMILY.goal(task).pieces, _chain(str(task.extra.get("answer")))
    numbers = [_number(piece) for piece in pieces]
    if chain is None or None in numbers or [number for _, number in chain] != numbers:
        return []

    def others(place: int) -> Iterator[Task]:
        for other in range(2, 2 + _TRIED):
            changed = [(sign, other if at == place else number) for at, (sign, number) in enumerate(chain)]
            if (twin := _with_chain(task, pieces, numbers, changed)) is not None:
                yield replace(twin, key=f"{task.key}~{place}={other}")

    hidden = [place for place in range(len(pieces)) if place not in task.extra.get("told", ())]
    facts = ((f"the number of {pieces[place].topic}", others(place)) for place in hidden)
    return proven_facts(task, facts, least=TWINS)


def _chain(answer: str) -> list[tuple[str, int]] | None:
    """Return the numbers of a chain of calculations, each with the sign before it; ``None`` where it is none."""
    chain: list[tuple[str, int]] = []
    result = None
    for line in answer.splitlines()[:-1]:
        if (match := _EQUATION.fullmatch(line)) is None:
            return None
        first, sign, second, after = int(match[1]), match[2], int(match[3]), int(match[4])
        if result is None:
            chain = [("=", first), (sign, second)]
        elif first == result:
            chain.append((sign, second))
        elif second == result and sign == "-":
            chain.append(("to", first))
        else:
            return None
        result = after
    return chain or None


def _number(piece: Piece) -> int | None:
    """Return the number that each saying of a piece has, once; ``None`` where that is not so."""
    numbers = {tuple(_NUMBER.findall(saying)) for saying in piece.sayings}
    return int(next(iter(numbers))[0]) if len(numbers) == 1 and len(next(iter(numbers))) == 1 else None


def _with_chain(
    task: Task, pieces: Sequence[Piece], numbers: Sequence[int | None], chain: Sequence[tuple[str, int]]
) -> Task | None:
    """Return a problem with the numbers of a chain; ``None`` where they make none."""
    result, equations = 0, list[str]()
    for sign, number in chain:
        first, sign, second = (number, "-", result) if sign == "to" else (result, sign, number)
        if sign == "=":
            result = number
            continue
        if (sign == "-" and first <= second) or (sign == "/" and first % second):
            return None
        result = {"+": first + second, "-": first - second, "*": first * second, "/": first // second}[sign]
        equations.append(f"{first}{sign}{second}={result}")
    request, new_pieces = str(task.extra.get("single_turn_prompt")), list[Piece]()
    for piece, old, (_, new) in zip(pieces, numbers, chain, strict=True):
        sayings = tuple(_NUMBER.sub(str(new), saying) for saying in piece.sayings) if old != new else piece.sayings
        request = request.replace(piece.sayings[0], sayings[0])
        new_pieces.append(replace(piece, sayings=sayings))
    if not 2 <= result <= _LARGEST or str(result) in _numbers(new_pieces):
        return None
    extra: dict[str, Any] = {"answer": "\n".join([*equations, f"#### {result}"]), "single_turn_prompt": request}
    extra["pieces"] = [piece.to_json() for piece in new_pieces]
    return replace(task, ground_truth=str(result), extra={**task.extra, **extra})


def _gold(reference: str, metadata: Mapping[str, Any]) -> str:
    answer = final_answer(reference) or (reference if len(reference) <= 60 else None)
    if answer is None:
        raise ValueError(f"has no final answer in \\boxed{{...}} or after ####; it ends in {reference[-40:]!r}")
    return answer


FAMILY = Family(
    domain="math",
    description="question answering",
    ability="math",
    openings=tuple(_CONTENT["openings"]),
    example="math-hard",
    draft=draft_math,
    gold=_gold,
)
