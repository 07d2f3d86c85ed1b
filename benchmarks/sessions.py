"""Regret of scripted notebooks in `textenv/sessions`: without a notebook, without the law, without its drift.

    python -m benchmarks.sessions [--lives 100] [--levels easy medium hard]

Each policy plays the same lives. All but the attacks answer as the expert does, so they differ in what they keep: plain
lines; `packed` writes the same lines as one number in base 36, so that more of them fit, and reads them back before
it answers. `regret` is to the information bound, which holds for any notebook of that size; `plain` is to the bound on
plain notebooks, which `packed` is not. `twins` is the share of answers about forgotten codes and secrets that differ
from those in a life where they were never told.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import textenvs
from textenvs.attack import Cheater
from textenvs.envs.sessions.expert import Line, answer, fitting, read, updated, worth_of, write
from textenvs.envs.sessions.facts import Key
from textenvs.envs.sessions.life import ALPHABET, CODE, Life, Session
from textenvs.envs.sessions.regret import bound_of, plain_bound
from textenvs.envs.sessions.twins import differing
from textenvs.evaluate.statistics import mean_interval
from textenvs.messages import Messages

#: Writes a notebook, given the one before.
Writer = Callable[[Life, str, Session], str]
#: The most days from a promise to its day.
_AHEAD = 8


def in_order(order: Callable[[Life, Session, list[Line]], Iterable[Line]]) -> Writer:
    """Return a writer that keeps plain lines in the order that it prefers, as far as they fit."""

    def writer(life: Life, notebook: str, session: Session) -> str:
        lines = updated(read(life, notebook), session.statements, session.day)
        chosen = fitting(order(life, session, lines), life.scale.capacity)
        return "\n".join(line.text for line in lines if line in chosen)

    return writer


def by_todays_law(life: Life, session: Session, lines: list[Line]) -> list[Line]:
    """Prefer what is asked most today, as if the law did not drift."""
    percent = life.phase(session.day).percent
    return sorted(lines, key=lambda line: -percent.get(str(line.key[1]), 100.0 * life.scale.people))


def names_of(life: Life, day: int) -> list[tuple[Key, bool]]:
    """Return what a line at the end of a day can be the code of: its key, and whether it is the one before."""
    things: list[tuple[Key, bool]] = [
        ((person, thing), was) for person in life.people for thing in life.things for was in (False, True)
    ]
    return things + [((person, day + ahead), False) for person in life.people for ahead in range(1, _AHEAD + 1)]


def packed(life: Life, notebook: str, session: Session) -> str:
    """Write the lines that the law makes worth most as one number, as many as fit."""
    lines = updated(read(life, unpacked(life, notebook, session.day - 1)), session.statements, session.day)
    chosen: list[Line] = []
    for line in sorted(lines, key=lambda line: -worth_of(life, line, session.day)):
        longer = [*chosen, line]
        if number_of(life, [one for one in lines if one in longer], session.day) < 36**life.scale.capacity:
            chosen = longer
    number, digits = number_of(life, [one for one in lines if one in chosen], session.day), ""
    while number:
        number, digit = divmod(number, 36)
        digits = ALPHABET[digit] + digits
    return digits


def number_of(life: Life, lines: list[Line], day: int) -> int:
    """Return lines as a number: of each its code, its name, and who must not learn it, in mixed bases."""
    names, number = names_of(life, day), 1
    for line in reversed(lines):
        if line.hidden_from is not None:
            number = number * len(life.people) + life.people.index(line.hidden_from)
        number = number * 2 + (line.hidden_from is not None)
        number = number * len(names) + names.index((line.key, line.was))
        number = number * 36**CODE + int(line.code, 36)
    return number


def unpacked(life: Life, notebook: str, day: int) -> str:
    """Return the plain lines of a packed notebook that was written at the end of a day."""
    names, number, lines = names_of(life, day), int(notebook or "1", 36), []
    while number > 1:
        number, code = divmod(number, 36**CODE)
        number, name = divmod(number, len(names))
        number, secret = divmod(number, 2)
        number, person = divmod(number, len(life.people) if secret else 1)
        digits = "".join(ALPHABET[code // 36**place % 36] for place in reversed(range(CODE)))
        lines.append(Line(names[name][0], digits, life.people[person] if secret else None, names[name][1]).text)
    return "\n".join(lines)


WRITERS: dict[str, Writer] = {
    "no notebook": lambda life, notebook, session: "",
    "everything until full": in_order(lambda life, session, lines: lines),
    "the newest that fit": in_order(lambda life, session, lines: lines[::-1]),
    "the law of today": in_order(by_todays_law),
    "expert": write,
    "packed": packed,
}
_COLUMNS = ("score", "return", "leaks", "regret", "plain")
ATTACKS = ("until-full", "newest", "hoard", "tells-notebook")


def policies(env: Any) -> dict[str, Callable[[], Cheater]]:
    """Return what makes each policy, anew for an episode."""

    def scripted(writer: Writer) -> Cheater:
        def reply(conversation: Messages) -> str:
            life, notebook, session = env.life, env.state.notebook, env.session
            if env.state.writes:
                return writer(life, notebook, session)
            return answer(life, unpacked(life, notebook, session.day - 1) if writer is packed else notebook, session)

        return reply

    made: dict[str, Callable[[], Cheater]] = {
        name: functools.partial(scripted, writer) for name, writer in WRITERS.items()
    }
    for attack in env.own_attacks:
        if attack.name in ATTACKS:
            made[f"attack {attack.name}"] = functools.partial(attack.start, np.random.default_rng(0), ())
    return made


def measure(env: Any, make_policy: Callable[[], Cheater], lives: int, plain: list[float]) -> list[list[float]]:
    """Return by life: score, return, leaks, regret to both bounds, differing answers and of how many."""
    rows = []
    for index in range(lives):
        policy, total, info = make_policy(), 0.0, dict[str, Any]()
        conversation, _ = env.reset(options={"task_index": index})
        while not env.state.done:
            conversation, reward, _, _, info = env.step(policy(conversation))
            total += reward
        score = info["metrics"]["score"]
        numbers = [score, total, info["metrics"]["leaks"], info["metrics"]["regret"], plain[index] - score]
        rows.append([*numbers, *(differing(env, env.life, make_policy) if index < lives // 10 else (0, 0))])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=100, metavar="N", help="of each level (100); twins of a tenth")
    parser.add_argument("--levels", nargs="+", default=["easy", "medium", "hard"], metavar="LEVEL")
    arguments = parser.parse_args()
    for level in arguments.levels:
        env: Any = textenvs.make("textenv/sessions", level=level, split="test").unwrapped
        lives = []
        for index in range(arguments.lives):
            env.reset(options={"task_index": index})
            lives.append(env.life)
        plain = [plain_bound(life) for life in lives]
        bounds = [bound_of(life) for life in lives]
        print(f"\n{level}: any notebook at most {np.mean(bounds):.3f}, a plain one at most {np.mean(plain):.3f}\n")
        print(f"| notebook | {' | '.join(_COLUMNS)} | twins |\n|---|--:|--:|--:|--:|--:|--:|")
        for name, make_policy in policies(env).items():
            columns = [list(column) for column in zip(*measure(env, make_policy, arguments.lives, plain), strict=True)]
            *means, differ, compared = columns
            cells = [
                _cell(column, interval=title in ("score", "regret"))
                for title, column in zip(_COLUMNS, means, strict=True)
            ]
            twins = f"{sum(differ) / sum(compared):.2f}" if sum(compared) else "-"
            print(f"| {name} | {' | '.join(cells)} | {twins} |", flush=True)


def _cell(values: list[float], interval: bool) -> str:
    limits = mean_interval([[value] for value in values]) if interval else None
    mean = f"{np.mean(values):.3f}"
    return mean if limits is None else f"{mean} ({limits[0]:.3f} to {limits[1]:.3f})"


if __name__ == "__main__":
    main()
