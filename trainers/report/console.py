"""The console: a line an iteration, the current phase, and conversations to read.

The text of a model or a user is never read as markup, and its control characters are escaped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from textenvs.messages import Message, text_of
from textenvs.text import plural, printable

from ..trajectory import Trajectory, solved
from .metrics import first_reply_solved
from .progress import Progress

# What a line shows of the metrics, where they are there: name, label, format.
_TRAINING = (
    ("train/reward", "reward", "{:+.3f}"),
    ("train/solved", "solved", "{:.1%}"),
    ("train/first_reply", "first reply", "{:.1%}"),
    ("actor/approx_kl_k3", "KL", "{:.4f}"),
    ("actor/ref_kl", "KL to reference", "{:.4f}"),
    ("actor/entropy", "entropy", "{:.3f}"),
    ("train/turns", "turns", "{:.2f}"),
    ("train/turn_tokens", "tokens/turn", "{:.1f}"),
    ("train/groups_tied", "groups tied", "{:.1%}"),
    ("rollout/replies_cut", "replies cut", "{:.1%}"),
    ("actor/outside_clip_first", "outside the clip range at first", "{:.1%}"),
    ("perf/tokens_per_s", "tokens/s", "{:.0f}"),
)
_VALIDATION = (
    ("val/reward", "reward", "{:+.3f}"),
    ("val/solved", "solved", "{:.1%}"),
    ("val/first_reply", "first reply", "{:.1%}"),
    ("val/turns", "turns", "{:.2f}"),
    ("val/turn_tokens", "tokens/turn", "{:.1f}"),
    ("val/left_out", "not scored", "{:.1%}"),
)
# Shown only above these. docs/algorithms.md says what each of them means.
_TROUBLE = {
    "val/left_out": 0.0,
    "train/groups_tied": 0.5,
    "rollout/replies_cut": 0.05,
    "actor/outside_clip_first": 0.01,
}
_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}
_WIDEST = 100  # columns of a conversation


class _Now(ProgressColumn):
    """A column with the current phase, drawn anew several times a second."""

    max_refresh = None

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(printable(self._progress.line))


class ConsoleLogger:
    """Prints metrics as lines, and shows the current phase; ``total`` are the iterations of the whole run.

    On a terminal that is a line that is drawn anew; elsewhere it is printed where nothing else was for a while.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total = total
        self._bar: Bar | None = None
        live = self.console.is_terminal
        self.progress = Progress(self._print_line) if not live else Progress(self._print_line, every_s=None)
        if live:
            columns = (SpinnerColumn(), _Now(self.progress), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=self.console, transient=True)
            self._task = self._bar.add_task("", total=total)
            self._bar.start()

    def _print_line(self, line: str) -> None:
        self.console.print(line, style="dim", soft_wrap=True, highlight=False, markup=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line for the training's metrics, and one for the validation's, if there are such."""
        place = f"{step:>{len(str(self._total))}}/{self._total}"
        for head, style, columns in (("iteration ", "bold", _TRAINING), ("validation", "bold cyan", _VALIDATION)):
            if not any(name in metrics for name, _, _ in columns):
                continue
            line = Text().append(f"{head} {place}", style=style)
            for name, label, form in columns:
                if name in metrics and (name not in _TROUBLE or metrics[name] > _TROUBLE[name]):
                    line.append(f"  {label} ", style="dim")
                    line.append(form.format(metrics[name]))
            if columns is _TRAINING and "time/iteration_s" in metrics:
                line.append(f"  {_times(metrics)}", style="dim")
            self.print(line)
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def print(self, what: RenderableType) -> None:
        """Print above the progress bar; a line is never broken."""
        self.progress.spoke()
        self.console.print(what, soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Take the progress bar away; safe to call twice."""
        self.progress.close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _times(metrics: Mapping[str, float]) -> str:
    phases = [name for name in metrics if name.startswith("time/") and name not in ("time/iteration_s", "time/other_s")]
    longest = sorted((name for name in phases if metrics[name] >= 0.05), key=lambda name: -metrics[name])
    parts = ", ".join(f"{name.removeprefix('time/').removesuffix('_s')} {metrics[name]:.1f}" for name in longest)
    return f"{metrics['time/iteration_s']:.1f} s" + (f" ({parts})" if parts else "")


def pick(trajectories: Iterable[Trajectory], count: int = 3) -> list[Trajectory]:
    """Pick at most ``count`` episodes that differ: one of each outcome and number of turns, earlier ones first."""
    kinds: defaultdict[tuple[bool, int], list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        kinds[solved(trajectory), trajectory.num_turns].append(trajectory)
    rounds = zip_longest(*kinds.values())
    return [episode for round_ in rounds for episode in round_ if episode is not None][:count]


def print_conversations(trajectories: Sequence[Trajectory], console: Console, title: str = "") -> None:
    """Print episodes, in a width that can be read."""
    for number, trajectory in enumerate(trajectories, 1):
        heading = f"{title} {number}/{len(trajectories)}".strip()
        console.print(conversation(trajectory, heading), width=min(console.width, _WIDEST))


def conversation(trajectory: Trajectory, title: str = "") -> Panel:
    """Render an episode as a panel: the messages of its last conversation, and below replies their rewards by terms."""
    assistants = [i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    numbers = _turns_shown(trajectory, len(assistants))
    turns = dict(zip(assistants[max(0, len(assistants) - len(numbers)) :], numbers, strict=False))
    parts: list[Text] = []
    if elsewhere := trajectory.num_turns - len(numbers):
        parts.append(Text(f"({plural(elsewhere, 'turn')} in conversations that were left)", style="dim"))
    for place, message in enumerate(trajectory.messages):
        parts.append(_message(message))
        if place in turns:
            parts.append(_reward(trajectory, turns[place]))
    if trajectory.error:
        parts.append(Text(printable(f"error: {trajectory.error}"), style="red"))
    outcome = "solved at once" if first_reply_solved(trajectory) else trajectory.stop or trajectory.status.value
    heading = " ".join(part for part in (title, trajectory.task_key) if part)
    return Panel(
        Group(*parts),
        title=Text(_one_line(heading)),
        title_align="left",
        subtitle=Text(f"{_one_line(outcome)}, reward {trajectory.total_reward:+.2f}"),
        subtitle_align="right",
        border_style="green" if solved(trajectory) else "yellow",
    )


def _turns_shown(trajectory: Trajectory, replies: int) -> Sequence[int]:
    """Return the turns of the conversation that the messages show, of which ``replies`` are the assistant's."""
    if len(trajectory.segment_starts) < 2 or replies >= trajectory.num_turns:  # one, or a template rewrote its turns
        return range(trajectory.num_turns)
    last = trajectory.turn_id[trajectory.segment_starts[-1] :]
    return sorted({int(turn) for turn in last if turn >= 0})


def _message(message: Message) -> Text:
    text = Text()
    text.append(f"{message['role']}: ", style=f"bold {_STYLES[message['role']]}")
    if reasoning := message.get("reasoning_content"):
        text.append(f"({printable(reasoning)}) ", style="dim italic")
    text.append(printable(text_of(message)))
    for call in message.get("tool_calls", ()):
        text.append(printable(f"\n-> {call['function']['name']}({call['function']['arguments']})"), style="magenta")
    return text


def _reward(trajectory: Trajectory, turn: int) -> Text:
    terms = trajectory.turn_terms[turn] if turn < len(trajectory.turn_terms) else {}
    parts = ", ".join(f"{name} {value:+.2f}" for name, value in terms.items() if value)
    line = f"    turn {turn + 1}: reward {trajectory.turn_rewards[turn]:+.2f}" + (f" ({parts})" if parts else "")
    return Text(_one_line(line), style="bold yellow")


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")
