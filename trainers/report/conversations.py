"""Conversations for a person to read in a terminal, with what each turn earned.

Everything a model or a user said is shown as it is: it is never read as markup, and control characters, which could
move the cursor or recolour the terminal, are made visible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from textenvs.messages import Message, text_of

from ..trajectory import Trajectory
from .metrics import first_reply_solved, solved

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_WIDEST = 100


def pick(trajectories: Iterable[Trajectory], count: int = 3) -> list[Trajectory]:
    """A few episodes that differ: one of each outcome and number of turns before a second of any.

    Args:
        trajectories: Where to pick from; earlier ones are preferred, so that the choice is stable.
        count: How many, at most.
    """
    kinds: defaultdict[tuple[bool, int], list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        kinds[solved(trajectory), trajectory.num_turns].append(trajectory)
    rounds = [
        (place, order, episode)
        for order, episodes in enumerate(kinds.values())
        for place, episode in enumerate(episodes)
    ]
    rounds.sort(key=lambda item: item[:2])
    return [episode for _, _, episode in rounds[:count]]


def conversation(trajectory: Trajectory, title: str = "") -> Panel:
    """One episode as a panel: every message, and below each assistant turn its reward by terms.

    Args:
        trajectory: With its messages. The last ``num_turns`` assistant messages are the policy's turns; earlier ones
            belong to the opening.
        title: Put before the task's key.
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
    good = solved(trajectory)
    outcome = "solved at once" if first_reply_solved(trajectory) else trajectory.stop or trajectory.status.value
    heading = " ".join(part for part in (title, trajectory.task_key) if part)
    return Panel(
        Group(*parts),
        title=Text(visible(heading, lines=False)),
        title_align="left",
        subtitle=Text(f"{visible(outcome, lines=False)}, reward {trajectory.total_reward:+.2f}"),
        subtitle_align="right",
        border_style="green" if good else "yellow",
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
    return "".join(symbol if symbol in keep else _visible(symbol) for symbol in text)


def _visible(symbol: str) -> str:
    code = ord(symbol)
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters
    if code == 0x7F:
        return "\u2421"
    # C1 controls, line and paragraph separators, and what reorders text that follows
    if 0x80 <= code < 0xA0 or code in (0x2028, 0x2029) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return f"\\u{code:04x}"
    return symbol


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
