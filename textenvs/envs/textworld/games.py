"""TextWorld's games: their kinds and dials, their files, and a running game.

A game is made from its dials and its seed by TextWorld's generator and compiled by the Inform 7 that comes with the
package, which takes one to three seconds; the file is kept. Nothing here reads or changes a global generator.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ...task import TaskError

Kind = Literal["cooking", "custom", "coin"]

#: The dials of each kind of game: the smallest and the largest value, or the values there are.
DIALS: Mapping[str, Mapping[str, tuple[int, int] | frozenset[Any]]] = {
    "cooking": {
        "recipe": (1, 5),
        "take": (0, 5),
        "go": frozenset((1, 6, 9, 12)),
        "open": frozenset((False, True)),
        "cook": frozenset((False, True)),
        "cut": frozenset((False, True)),
        "drop": frozenset((False, True)),
    },
    "custom": {"rooms": (1, 20), "objects": (1, 40), "quest_length": (1, 20)},
    "coin": {"quest_length": (1, 30), "distractors": (0, 2)},
}
LEVELS: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    "cooking": {
        "easy": {"recipe": 1, "take": 1, "go": 1, "cook": True, "cut": True},
        "medium": {"recipe": 2, "take": 2, "go": 6, "open": True, "cook": True, "cut": True},
        "hard": {"recipe": 3, "take": 3, "go": 9, "open": True, "cook": True, "cut": True},
    },
    "custom": {
        "easy": {"rooms": 2, "objects": 5, "quest_length": 3},
        "medium": {"rooms": 5, "objects": 10, "quest_length": 5},
        "hard": {"rooms": 10, "objects": 20, "quest_length": 8},
    },
    "coin": {
        "easy": {"quest_length": 4, "distractors": 0},
        "medium": {"quest_length": 8, "distractors": 1},
        "hard": {"quest_length": 15, "distractors": 2},
    },
}
#: Files that are games.
SUFFIXES = (".z8", ".tw-pddl")
#: The environment variable with the folder of generated games.
VARIABLE = "TEXTENVS_CACHE"
#: Incremented when more of TextWorld's games are refused, so that no cached game is one that is refused now.
_RULES = 2
#: A quest of the required length cannot be found from every seed: so many are tried, in a fixed order.
_ATTEMPTS = 20
_EXTRA = "this needs TextWorld: pip install 'textenvs[textworld]'"

#: TextWorld's generator has global state for its data, and its parsers, for game files and for the commands of a
#: planned game, have global state for their position.
_generating, _parsing = threading.Lock(), threading.Lock()


def textworld() -> ModuleType:
    """Import and return the package; :class:`ImportError` names the extra."""
    try:
        import textworld.core
    except ImportError as error:
        raise ImportError(f"{_EXTRA} ({error})") from error
    return textworld


def dials_of(kind: str, level: str, overrides: Mapping[str, Any]) -> dict[str, int]:
    """Return all dials of a game: a level's, with those of ``overrides`` in their place; ``ValueError``: a bad one."""
    allowed = DIALS[kind]
    for name, value in overrides.items():
        if name not in allowed:
            raise ValueError(f"dials: {kind} games have no {name!r}; there are {', '.join(allowed)}")
        domain = allowed[name]
        if isinstance(domain, frozenset):
            fits, text = value in domain and type(value) is type(min(domain)), f"one of {sorted(domain)}"
        else:
            fits = type(value) is int and domain[0] <= value <= domain[1]
            text = f"an integer from {domain[0]} to {domain[1]}"
        if not fits:
            raise ValueError(f"dials: {name} must be {text}, not {value!r}")
    dials: dict[str, int] = {
        name: False for name, values in allowed.items() if isinstance(values, frozenset) and True in values
    }
    dials |= {**LEVELS[kind][level], **overrides}
    if kind == "cooking" and dials["take"] > dials["recipe"]:
        raise ValueError(f"dials: take={dials['take']} of a recipe with {dials['recipe']} ingredients; at most all")
    return {name: dials[name] for name in allowed}


def named(kind: str, dials: Mapping[str, int]) -> str:
    """Return a game's kind and dials as a file's name: ``cooking-recipe1-take1-go1-cook``."""
    parts = [f"{name}{value}" for name, value in dials.items() if type(value) is int]
    return "-".join((kind, *parts, *(name for name, value in dials.items() if value is True)))


def cache_folder(folder: str | None) -> Path:
    """Return the folder of generated games: ``folder``, else ``TEXTENVS_CACHE``, else in the user's cache folder."""
    base = folder or os.environ.get(VARIABLE)
    if base is None:
        base = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "textenvs"))
    return Path(base).expanduser() / f"textworld-{textworld().__version__}-{_RULES}"


def game_file(folder: Path, kind: str, dials: Mapping[str, int], seed: int) -> Path:
    """Return the file of a game, which is generated where there is none yet.

    Several processes may ask for the same game at once: each generates it in a folder of its own, and the files then
    get their names in one step, the game's last.

    Raises:
        TaskError: No game can be generated with these dials from this seed; the message says what to change.
        OSError: The folder cannot be written.
    """
    path = folder / f"{named(kind, dials)}-{seed}.z8"
    if path.is_file():
        return path
    with _generating:
        if path.is_file():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as made:
            _generate(Path(made), kind, dials, seed)
            for suffix in (".json", ".z8"):
                os.replace(Path(made, f"game{suffix}"), path.with_suffix(suffix))
    return path


def _generate(folder: Path, kind: str, dials: Mapping[str, int], seed: int) -> None:
    tw = textworld()
    from textworld.challenges import CHALLENGES
    from textworld.generator import CouldNotCompileGameError, compile_game
    from textworld.generator.chaining import QuestGenerationError

    for attempt in range(_ATTEMPTS):
        options = tw.GameOptions()
        options.seeds = _seeds(seed * _ATTEMPTS + attempt)
        options.path, options.force_recompile = str(folder / "game.z8"), True
        try:
            with _parsing:
                if kind == "cooking":
                    # One seed for both: the recipe would be the same in every game.
                    settings = {**dials, "recipe_seed": options.seeds["quest"], "split": None}
                    game = CHALLENGES["tw-cooking"][1](settings=settings, options=options)
                elif kind == "coin":
                    # A hundred levels each without rooms beside the way, with one beside each, and with two.
                    level = 100 * dials["distractors"] + dials["quest_length"]
                    game = CHALLENGES["tw-coin_collector"][1](settings={"level": level}, options=options)
                else:
                    options.nb_rooms, options.nb_objects = dials["rooms"], dials["objects"]
                    options.quest_length = dials["quest_length"]
                    game = tw.generator.make_game(options)
            played = LiveGame(Path(compile_game(game, options)))
            # Some quests end where they began, and their last command alone reaches the goal.
            needed = len(played.position.policy)
            if needed < dials.get("quest_length", 0):
                failed: Exception = ValueError(f"it takes {needed} commands and not {dials['quest_length']}")
            elif played.solvable():
                return
            else:
                # Inform does not tell "locker" from "type 0 locker", and then asks which is meant.
                failed = ValueError("its walkthrough does not solve it")
        except (QuestGenerationError, CouldNotCompileGameError) as error:
            failed = error
    raise TaskError(
        f"TextWorld could not generate {named(kind, dials)} from seed {seed}, nor from {_ATTEMPTS - 1} others: "
        f"{type(failed).__name__}: {str(failed)[:300]}. Use a shorter quest, or more rooms and objects."
    )


def _seeds(number: int) -> dict[str, int]:
    """TextWorld's four seeds as it draws them from one; it takes no more than 32 bits itself."""
    words = number if number < 2**32 else [number >> shift & 0xFFFFFFFF for shift in range(0, number.bit_length(), 32)]
    rng = np.random.RandomState(words)  # noqa: NPY002
    return {name: int(rng.randint(65635)) for name in ("map", "objects", "quest", "grammar")}


def games_in(folder: str) -> dict[str, Path]:
    """Return the games in a folder and those below it, by relative name.

    Raises:
        ValueError: There is no folder, no game in it, or a game that TextWorld 1.7 does not play.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"games={folder!r} is not a folder; give one with {' or '.join(SUFFIXES)} files")
    files = sorted(path for path in root.rglob("*") if path.is_file())
    games = {path.relative_to(root).as_posix(): path for path in files if path.name.endswith(SUFFIXES)}
    if not games:
        glulx = any(path.suffix == ".ulx" for path in files)
        why = "; TextWorld 1.7 does not play .ulx files any more: compile them as .z8" if glulx else ""
        raise ValueError(f"games={folder!r} has no game of TextWorld ({', '.join(SUFFIXES)}){why}")
    for name, path in games.items():
        if path.suffix == ".z8" and not path.with_suffix(".json").is_file():
            raise ValueError(f"games={folder!r}: {name} has no .json beside it, as TextWorld writes with every game")
    return games


class GameFault(RuntimeError):
    """A command that must not count: TextWorld raised an exception on it, or the game took it for several.

    The message is sent to the policy.
    """


@dataclass(frozen=True, slots=True)
class GameFacts:
    """Facts of a game that do not change.

    Attributes:
        walkthrough: The commands that win it.
        verbs: The verbs that it knows.
        planned: Whether a planner runs it, and not Inform: it knows no commands but those of its positions.
    """

    walkthrough: tuple[str, ...]
    verbs: frozenset[str]
    planned: bool


@dataclass(frozen=True, slots=True)
class Position:
    """A game after some commands.

    Attributes:
        text: What the game says after the last command, or its opening.
        commands: The commands that would do something now, sorted.
        policy: The commands that win the game from here, by TextWorld; empty where it has none.
        share: The score as a share of the largest.
        won: Whether it is won.
        lost: Whether it is lost: nothing more can be done.
        facts: What does not change.
    """

    text: str
    commands: tuple[str, ...]
    policy: tuple[str, ...]
    share: float
    won: bool
    lost: bool
    facts: GameFacts

    @property
    def over(self) -> bool:
        """Return whether it is won or lost."""
        return self.won or self.lost

    def refusal(self, command: str) -> str | None:
        """Return why a command is not sent to the game, or ``None``.

        One turn is one command. Inform would take several at once ("take key. go east", "take key and lamp"), and knows
        commands that are no moves: some restart the game, and some write files.
        """
        if command in self.commands:
            return None
        if not command:
            return "Say one command."
        if self.facts.planned:
            return "Nothing happens."
        if _SEVERAL.search(command.lower()) or not command.isascii() or not command.isprintable() or len(command) > 100:
            return _NOT_ONE
        verb = command.split()[0].lower()
        if verb not in self.facts.verbs and verb not in _SHORT:
            return f"{verb!r} is not a verb of this game. There are: {', '.join(sorted(self.facts.verbs))}."
        return None


class LiveGame:
    """A running game, decided by its file and its commands; ``position`` is where it is."""

    def __init__(self, path: Path) -> None:
        tw = textworld()
        self._planned = path.name.endswith(".tw-pddl")
        infos = tw.EnvInfos(
            admissible_commands=True, policy_commands=True, verbs=True, max_score=True, extras=["walkthrough"]
        )
        with _parsing:
            self._game = tw.start(str(path), infos, wrappers=[_plain_names()] if self._planned else [])
            state = self._game.reset()
        walkthrough = tuple(state.get("extra.walkthrough") or state.policy_commands)
        self._facts = GameFacts(walkthrough, frozenset(state.get("verbs") or ()), self._planned)
        self.position = self._position(state, _clean(state.feedback, opening=True))

    def _position(self, state: Any, text: str) -> Position:
        most = state.get("max_score") or 1
        return Position(
            text,
            tuple(map(sys.intern, state.admissible_commands)),
            tuple(map(sys.intern, state.policy_commands or ())),
            min(1.0, max(0.0, (state.score or 0) / most)),
            bool(state.won),
            bool(state.lost),
            self._facts,
        )

    def solvable(self) -> bool:
        """Play the walkthrough, and return whether it wins."""
        for command in self._facts.walkthrough:
            self.move(command)
        return self.position.won

    def move(self, command: str) -> Position:
        """Send a command, and return where the game is after it.

        After a :class:`GameFault` the game may be in any state, and what TextWorld tracks may not be that state.
        """
        verb, _, rest = command.partition(" ")
        # TextWorld does not recognise what "get" takes out of something, and would lose track of it.
        sent = f"take {rest}" if verb.lower() == "get" and not self._planned else command
        try:
            with _parsing if self._planned else nullcontext():
                state, score, _ = self._game.step(sent)
            state["score"] = score
            position = self._position(state, _clean(state.feedback) or "Nothing happens.")
        except Exception as error:
            raise GameFault("The game could not read that.") from error
        if len(_DONE.findall(state.get("raw") or "")) > 1:
            raise GameFault(_NOT_ONE)
        self.position = position
        return position


@dataclass(frozen=True, slots=True)
class GameFile:
    """A game's file, and what tells it from another one that gets its name."""

    path: Path
    versions: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, path: Path) -> GameFile:
        """Return the file that is at a path now; the ``.json`` beside it belongs to the game."""
        files = [file for file in (path, path.with_suffix(".json")) if file.exists()]
        stats = [file.stat() for file in files]
        return cls(path, tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in stats))


class Positions:
    """Positions of games by their files and commands, for all environments of a process.

    Siblings and forks send the same commands to the same games, and a game is decided by them: what one of them played
    need not be played again.

    Args:
        size: How many are remembered; the least recently used are dropped. One takes 1 to 7 KB.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._positions: OrderedDict[tuple[GameFile, tuple[str, ...]], Position] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: GameFile, moves: tuple[str, ...]) -> Position | None:
        """Return the position of a game after commands, if it is remembered."""
        with self._lock:
            position = self._positions.get((file, moves))
            if position is not None:
                self._positions.move_to_end((file, moves))
            return position

    def keep(self, file: GameFile, moves: tuple[str, ...], position: Position) -> None:
        """Remember a position."""
        with self._lock:
            self._positions[file, moves] = position
            if len(self._positions) > self._size:
                self._positions.popitem(last=False)


_NOT_ONE = "That is not a command. Say one command, in a line of its own."
#: Separators of commands, and words before several objects of one. Inform reads nine letters of a word.
_SEVERAL = re.compile(r"[.,;:?!\"]|\b(?:then|and|all|each|both|every)\b|\beverythin")
#: An action that was carried out, as Inform traces it for TextWorld. Parts of an action have a number in parentheses.
#: Of several objects ("take two red") each is an action, and TextWorld then tracks none of them.
_DONE = re.compile(r"\[[^]()]+ - succeeded\]")
#: Inform's other names of verbs and directions.
_SHORT = frozenset(("get", "x", "l", "i", "north", "south", "east", "west", "n", "s", "e", "w"))
#: The status line at the end of the game's text, and its question at the end.
_STATUS = re.compile(r"\n*>\s*(?:-=.*?=-\s*-?\d+/-?\d+)?\s*\Z", re.DOTALL)
_QUESTION = re.compile(r"\n*Would you like to RESTART,.*\Z", re.DOTALL)


def _clean(text: str, *, opening: bool = False) -> str:
    """Return the game's text without its banner, status line and empty lines."""
    text = _QUESTION.sub("", _STATUS.sub("", text or ""))
    if opening and "$$" in text:  # the banner is TextWorld's name in letters of these
        text = text[text.rindex("$$") :].partition("\n")[2]
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def _plain_names() -> type:
    """Return a wrapper that names objects as ALFWorld does: ``cabinet 3`` for ``cabinet_bar__...``.

    Objects of a kind are numbered in the order of their ids, the last one first; a basin is a kind of its own. Names
    without coordinates stay.
    """
    from textworld.core import Wrapper

    class PlainNames(Wrapper):  # type: ignore[misc]
        def load(self, *arguments: Any) -> None:
            super().load(*arguments)
            infos = self.unwrapped._entity_infos
            counts: Counter[str] = Counter()
            for identifier in sorted(infos, reverse=True):
                name, placed, _ = identifier.partition("_bar_")
                if placed:
                    name += "basin" if "basin" in identifier else ""
                    counts[name] += 1
                    infos[identifier].name = f"{name} {counts[name]}"

    return PlainNames


def dials_text(kind: str, dials: Mapping[str, int]) -> str:
    """Return kind and dials as a task has them."""
    return json.dumps({"game": kind, **dials}, sort_keys=True)
