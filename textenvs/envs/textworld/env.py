"""Text adventures of the TextWorld package: generated, of the user's own files, or ALFWorld's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...env import EpisodeState, TextEnv, Turn
from ...messages import Message, user, visible_text
from ...options import NonNegativeInt, PositiveInt, checked
from ...task import Split, Task, TaskSet
from .attacks import ATTACKS
from .games import LEVELS, GameFault, GameFile, LiveGame, Position, Positions, cache_folder, dials_of
from .tasks import GameFiles, GameTasks, file_of

#: Of a longer reply, only the end is read.
_MAX_CHARS = 2_000
_POSITIONS = Positions()


@dataclass
class TextWorldState(EpisodeState):
    """The commands sent to the game, in order: with its file, they determine the game."""

    moves: tuple[str, ...] = ()
    share: float = 0.0  # the game's score, as a share of the largest
    invalid: int = 0  # replies that were no command of the game


class TextWorld(TextEnv[TextWorldState]):
    """A text adventure: find, take, open, cook; every reply is a command, and the game answers.

    The reward has one term, ``score``: the turn's change of the game's own score, as a share of the largest. So
    the return is the share of the score that was reached. The episode ends when the game is won, or lost for good (a
    burned ingredient).

    A command is the last line of a reply that is not empty. One turn is one command: several at once, and commands to
    the interpreter (``undo``, ``restart``, ``save``), are answered and not sent to the game. So are commands that the
    game does not know; they cost the turn.

    The running game is no part of the state: the state has the commands. What a game is after commands is remembered
    for all environments of a process; what none of them has played is played on from the running game, or replayed from
    the game's file (after ``restore``, in a fork, in another process).

    Args:
        game: ``"cooking"`` (the default; the game of First TextWorld Problems), ``"custom"`` (a house and a quest) or
            ``"coin"`` (rooms to walk through, and a coin in the last).
        level: ``"easy"`` (the default), ``"medium"`` or ``"hard"``: dials of the game; see
            :data:`~textenvs.envs.textworld.games.LEVELS`.
        dials: Dials in the place of the level's. Of cooking: ``recipe`` (ingredients, 1 to 5), ``take`` (how many of
            them are to be found), ``go`` (rooms: 1, 6, 9, 12), and ``open``, ``cook``, ``cut``, ``drop`` (whether
            doors are closed, ingredients must be cooked and cut, and hands are full). Of custom: ``rooms`` (1 to 20),
            ``objects`` (1 to 40), ``quest_length`` (1 to 20 commands). Of coin: ``quest_length`` (1 to 30)
            and ``distractors`` (0 to 2 rooms beside each on the way).
        games: A folder of game files in the place of generated games: ``.z8`` with the ``.json`` that TextWorld writes
            with it, or ``.tw-pddl``, such as ALFWorld's.
        admissible: Whether every message ends with the commands that would do something.
        split: ``"train"`` (the default) or ``"test"``: games from other seeds.
        seed: Which sequence of games, from 0 (the default). (Episodes are seeded by ``reset``.)
        count: How many games there are; by default endlessly many. A new game is compiled when it is first played.
        cache: The folder of generated games, 0.5 MB each; by default what ``TEXTENVS_CACHE`` names, else
            ``~/.cache/textenvs``.
        max_assistant_turns: How many commands there are, or ``None`` for no limit. By default (``"auto"``) twice the
            ``quest_length`` of coin and custom games, which a random walk solves with more, and else 50.
        **env_options: ``max_user_turns``, ``system_prompt``, ``render_mode``, as in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: A value outside the above, ``games`` together with options of generated games, or a folder
            without games.
        ImportError: TextWorld is not installed (or, for ``.tw-pddl``, its planner).
    """

    state_type = TextWorldState
    blocking = True  # a game that is not there yet is compiled
    levels = tuple(LEVELS["cooking"])
    attack_margin = 0.5
    own_attacks = ATTACKS

    @checked
    def __init__(
        self,
        game: Literal["cooking", "custom", "coin"] | None = None,
        *,
        level: Literal["easy", "medium", "hard"] | None = None,
        dials: Mapping[str, Any] | None = None,
        games: str | None = None,
        admissible: bool = False,
        split: Split | None = None,
        seed: NonNegativeInt | None = None,
        count: PositiveInt | None = None,
        cache: str | None = None,
        max_assistant_turns: PositiveInt | Literal["auto"] | None = "auto",
        **env_options: Any,
    ) -> None:
        generation_options: dict[str, object] = {
            "game": game,
            "level": level,
            "dials": dials,
            "split": split,
            "seed": seed,
        }
        generation_options |= {"count": count, "cache": cache}
        tasks: TaskSet
        limit = 50
        if games is not None:
            if superfluous := [name for name, value in generation_options.items() if value is not None]:
                raise ValueError(f"games={games!r} are played as they are: leave out {', '.join(superfluous)}")
            tasks = GameFiles(games)
        else:
            kind = game or "cooking"
            chosen = dials_of(kind, level or "easy", dials or {})
            if "quest_length" in chosen:
                limit = 2 * chosen["quest_length"]
            tasks = GameTasks(kind, chosen, cache_folder(cache), seed or 0, split or "train", count)
        turns = limit if max_assistant_turns == "auto" else max_assistant_turns
        super().__init__(tasks, max_assistant_turns=turns, **env_options)
        self.admissible = admissible
        self._file: tuple[str, GameFile] | None = None  # of a task, by its key
        self._live: tuple[GameFile, tuple[str, ...], LiveGame] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the running game: a copy, a fork or another process replays it."""
        return {**self.__dict__, "_live": None, "_file": None}

    def opening(self, task: Task) -> Sequence[Message]:
        self._live = self._file = None
        game = self._now()
        return (user(self._shown(game.text, game)),)

    def respond(self, reply: Message) -> Turn:
        state, game = self.state, self._now()
        command = _command(visible_text(reply))
        refused = game.refusal(command)
        if refused is None:
            moves = (*state.moves, command)
            try:
                game = self._after(moves)
                state.moves = moves
            except GameFault as fault:
                refused = str(fault)
        if refused is not None:
            state.invalid += 1
        text = game.text if refused is None else refused
        earned, state.share = game.share - state.share, game.share
        return Turn(
            messages=(user(text if game.over else self._shown(text, game)),),
            terminated=game.over,
            stop="solved" if game.won else "lost" if game.lost else None,
            terms={"score": earned},
            metrics={"share": game.share, "invalid": float(state.invalid)},
        )

    def conversation_score(self) -> Mapping[str, float]:
        """Return ``score``: the share of the game's largest score that was reached."""
        return {"score": self.state.share}

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: the world itself answers, from what is hidden in it."""
        return True

    def demonstration(self, rng: np.random.Generator) -> str:
        """Return the next command of the game's walkthrough or, off it, of TextWorld's own policy."""
        game, moves = self._now(), self.state.moves
        walkthrough = game.facts.walkthrough
        if moves == walkthrough[: len(moves)] and len(moves) < len(walkthrough):
            return walkthrough[len(moves)]
        unread = (command for command in walkthrough if command.startswith("examine ") and command not in moves)
        ahead = [command for command in (*unread, *game.policy) if command in game.commands]
        return ahead[0] if ahead else "look"

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Return any command that would do something."""
        commands = self._now().commands
        return commands[int(rng.integers(len(commands)))] if commands else "look"

    def secrets(self) -> Sequence[str]:
        """Return the walkthrough, as a list."""
        return () if self.state.task is None else (str(list(self._now().facts.walkthrough)),)

    def _shown(self, text: str, game: Position) -> str:
        return f"{text}\nCommands: {', '.join(game.commands)}" if self.admissible else text

    def _now(self) -> Position:
        return self._after(self.state.moves)

    def _after(self, moves: tuple[str, ...]) -> Position:
        """Return the position after commands: the remembered one, or played."""
        if self._file is None or self._file[0] != self.task.key:
            self._file = self.task.key, GameFile.of(file_of(self.task, self.tasks))
        position = _POSITIONS.get(self._file[1], moves)
        if position is None:
            position, file = self._played(self._file[1], moves)
            self._file = self.task.key, file
            _POSITIONS.keep(file, moves, position)
        return position

    def _played(self, file: GameFile, moves: tuple[str, ...]) -> tuple[Position, GameFile]:
        """Play on from where the running game is, or from the start of the file that is there now."""
        running, self._live = self._live, None  # after a fault, it is of no use
        if running is None or running[0] != file or running[1] != moves[: len(running[1])]:
            file = GameFile.of(file_of(self.task, self.tasks))
            running = file, (), LiveGame(file.path)
        game = running[2]
        for move in moves[len(running[1]) :]:
            game.move(move)
        if not game.position.over:
            self._live = file, moves, game
        return game.position, file


def _command(text: str) -> str:
    """Return the last line of a reply that is not empty, without a prompt before it."""
    lines: Iterator[str] = (line.strip(" \t>*`") for line in reversed(text[-_MAX_CHARS:].splitlines()))
    return " ".join(next((line for line in lines if line), "").removesuffix(".").split())
