"""Conversations for a person to read in a terminal, with what each turn earned.

Everything a model or a user said is shown as it is: it is never read as markup, and control characters, which could
move the cursor or recolour the terminal, are made visible.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from textenvs.messages import Message, text_of

from ..trajectory import Trajectory
from .metrics import first_reply_solved, solved

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_WIDEST = 100


def pick(trajectories: Iterable[Trajectory], count: int = 3) -> list[Trajectory]:
    """At most ``count`` episodes that differ: one of each outcome and number of turns before a second of any.

    Earlier ones are preferred, so the choice is stable.
    """
    kinds: defaultdict[tuple[bool, int], list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        kinds[solved(trajectory), trajectory.num_turns].append(trajectory)
    rounds = zip_longest(*kinds.values())
    return [episode for each in rounds for episode in each if episode is not None][:count]


def conversation(trajectory: Trajectory, title: str = "") -> Panel:
    """One episode as a panel, ``title`` before its task's key: every message, and below each turn its reward by terms.

    The last ``num_turns`` assistant messages are the policy's turns; earlier ones belong to the opening.
    """
    assistants = [i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    turns = {place: turn for turn, place in enumerate(assistants[max(0, len(assistants) - trajectory.num_turns) :])}
    parts: list[Text] = []
    for place, message in enumerate(trajectory.messages):
        parts.append(_message(message))
        if place in turns:
            parts.append(_reward(trajectory, turns[place]))
    if trajectory.error:
        parts.append(Text(visible(f"error: {trajectory.error}"), style="red"))
    outcome = "solved at once" if first_reply_solved(trajectory) else trajectory.stop or trajectory.status.value
    heading = " ".join(part for part in (title, trajectory.task_key) if part)
    return Panel(
        Group(*parts),
        title=Text(visible(heading, lines=False)),
        title_align="left",
        subtitle=Text(f"{visible(outcome, lines=False)}, reward {trajectory.total_reward:+.2f}"),
        subtitle_align="right",
        border_style="green" if solved(trajectory) else "yellow",
    )


def print_conversations(trajectories: Sequence[Trajectory], console: Console | None = None, title: str = "") -> None:
    """Print episodes, in a width that can be read."""
    console = console or Console()
    for number, trajectory in enumerate(trajectories, 1):
        heading = f"{title} {number}/{len(trajectories)}".strip()
        console.print(conversation(trajectory, heading), width=min(console.width, _WIDEST))


def visible(text: str, lines: bool = True) -> str:
    """``text`` with control characters replaced by symbols; tabs stay, and line breaks too if ``lines``."""
    keep = "\t\n" if lines else "\t"
    return _HARMFUL.sub(lambda match: match[0] if match[0] in keep else _symbol(ord(match[0])), text)


# C0 and C1 controls, line and paragraph separators, and what reorders text that follows
_HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def _symbol(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


def _message(message: Message) -> Text:
    text = Text()
    text.append(f"{message['role']}: ", style=f"bold {_STYLES[message['role']]}")
    if reasoning := message.get("reasoning_content"):
        text.append(f"({visible(reasoning)}) ", style="dim italic")
    text.append(visible(text_of(message)))
    for call in message.get("tool_calls", ()):
        text.append(visible(f"\n-> {call['function']['name']}({call['function']['arguments']})"), style="magenta")
    return text


def _reward(trajectory: Trajectory, turn: int) -> Text:
    terms = trajectory.turn_terms[turn] if turn < len(trajectory.turn_terms) else {}
    parts = ", ".join(f"{name} {value:+.2f}" for name, value in terms.items() if value)
    line = f"    turn {turn + 1}: reward {trajectory.turn_rewards[turn]:+.2f}" + (f" ({parts})" if parts else "")
    return Text(visible(line, lines=False), style="bold yellow")
