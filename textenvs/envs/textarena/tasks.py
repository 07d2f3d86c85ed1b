"""Games of the TextArena package: the playable ones, a running game, and the task set of its starts.

TextArena's games draw from the process's global generators, print, and download word lists when they are imported. All
calls into them go through :func:`~textenvs.global_rng.contained`, with a state of the generators that belongs to the
game, and with NLTK's downloader switched off: nothing is ever downloaded.
"""

from __future__ import annotations

import copy
import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...global_rng import RandomState, contained
from ...messages import user
from ...task import SPLITS, Endless, Split, Task, TaskError
from ...text import load_yaml

_DATA: dict[str, Any] = load_yaml(__package__, "games.yaml")
TWO_PLAYER: frozenset[str] = frozenset(_DATA["two_player"])
_PLAYABLE = TWO_PLAYER.union(_DATA["single_player"])
_CORPORA: Mapping[str, list[str]] = _DATA["corpora"]


class GameFault(RuntimeError):
    """A game raised an exception on a move: a fault of the game, not a rule of it."""


class LiveGame:
    """A running game, decided by its seed and its moves."""

    def __init__(self, game: str, options: Mapping[str, Any], seed: int) -> None:
        self.players = players_of(game)
        self._pays_bets = base_of(game) == "KuhnPoker"
        self._random = RandomState.seeded(seed)
        with _in_textarena(self._random):
            self.game = _new_game(game, json.dumps(dict(options), sort_keys=True))
            self.game.reset(num_players=self.players, seed=seed)
        self.done = False

    @property
    def turn(self) -> int:
        return int(self.game.state.current_player_id)

    def move(self, action: str) -> None:
        """Make a move of the player whose turn it is. After a :class:`GameFault` the game may be in any state."""
        try:
            with _in_textarena(self._random):
                if self._pays_bets:
                    _pay_bet(self.game, action)
                self.done = bool(self.game.step(action)[0])
        except Exception as error:
            raise GameFault(f"{type(error).__name__}: {error}") from error

    def new_messages(self, player: int) -> tuple[str, bool]:
        """Return ``player``'s messages since the last call, without its own moves; and whether its move was invalid."""
        from textarena import ObservationType

        observations, self.game.state.observations[player] = self.game.state.observations[player], []
        parts, invalid = [], False
        for speaker, text, kind in observations:
            own = speaker in (player, -1)
            # Some games give the arguments of a player's own move in the wrong order.
            if isinstance(speaker, ObservationType) or (own and kind == ObservationType.PLAYER_ACTION):
                continue
            invalid = invalid or kind == ObservationType.GAME_ADMIN
            parts.append(str(text).strip() if own else f"Player {speaker}: {str(text).strip()}")
        return "\n\n".join(part for part in parts if part), invalid

    def outcome(self, player: int) -> tuple[float, bool]:
        """Return the game's reward for ``player``, 0 where it gives none; and whether an invalid move ended it."""
        with _in_textarena(self._random):
            rewards, game_info = self.game.close()
        info = game_info.get(player, {})
        raw_reward = reward = (rewards or {}).get(player, 0.0)
        if isinstance(raw_reward, str):
            # Some games pass reward and reason of an invalid move the wrong way round.
            reward = str(info.get("reason", "")).removeprefix("Invalid Move: ")
        try:
            return float(reward), bool(info.get("invalid_move", False))
        except (TypeError, ValueError) as error:
            raise GameFault(f"the reward is {raw_reward!r}, and not a number") from error


def _pay_bet(game: Any, action: str) -> None:
    """Take the chip of a bet or a call to the pot, as the rules of Kuhn poker say; the package leaves it out."""
    state = game.state.game_state
    match = re.search(r"\[(check|bet|fold|call)\]", action, re.IGNORECASE)
    if match and match[1].lower() in ("bet", "call") and match[1].lower() in state["current_legal_action_tree"]:
        state["player_chips"][game.state.current_player_id] -= 1
        state["pot"] += 1


def base_of(game: str) -> str:
    """Return the name before ``-v0``: that of the game whose variant ``GuessTheNumber-v0-hardcore`` is."""
    return game.partition("-v0")[0]


def players_of(game: str) -> int:
    return 2 if base_of(game) in TWO_PLAYER else 1


def games() -> tuple[str, ...]:
    """Return the ids that can be played here, given their requirements."""
    return tuple(sorted(game for game in _registered() if base_of(game) in _PLAYABLE))


def check_game(game: str, options: Mapping[str, Any]) -> None:
    """Make the game, or raise the errors that :class:`~textenvs.envs.textarena.env.TextArena` names."""
    if game in _registered() and base_of(game) not in _PLAYABLE:
        raise ValueError(
            f"TextArena's {game!r} is for several players, or for a language model behind a service; there are "
            f"opponents for {', '.join(sorted(TWO_PLAYER))}"
        )
    if game not in games():
        near = difflib.get_close_matches(game, games(), n=3, cutoff=0.4)
        suggestion = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"TextArena has no game {game!r} that can be played here.{suggestion} See games() for all")
    try:
        text = json.dumps(dict(options), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"options must be a mapping as in JSON, not {options!r}: {error}") from error
    _check_corpora(base_of(game))
    _try_out(game, text)


@functools.lru_cache(maxsize=64)
def _try_out(game: str, options: str) -> None:
    try:
        LiveGame(game, json.loads(options), seed=0)
    except (ImportError, SyntaxError) as error:
        raise ImportError(f"TextArena's {game!r} cannot be imported: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise ValueError(
            f"TextArena's {game!r} cannot be started with options={options}: {type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True)
class TextArenaTasks(Endless):
    """The starts of a game as an endless :class:`~textenvs.task.TaskSet`: one for every seed, for training even ones.

    A task's prompt only names them: a player's first message comes from the game itself.
    """

    game: str = "GuessTheNumber-v0"
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_game(self.game, self.options)

    @property
    def name(self) -> str:
        return f"TextArena's {self.game} ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        seed = self.seed * 2**32 + 2 * index + SPLITS.index(self.split)
        return Task(
            key=f"{self.game}/{self.split}/{self.seed}/{index}",
            data_source=f"textarena/{base_of(self.game)}",
            prompt=(user(f"{self.game}, seed {seed}"),),
            ground_truth=None,
            ability="game",
            extra={"game": self.game, "seed": seed},
        )


def seed_of(task: Task, game: str) -> int:
    """Return the seed of a task; :class:`TaskError` where it is not a start of ``game``."""
    if task.extra.get("game") != game:
        raise TaskError(f"task {task.key}: extra_info.game is {task.extra.get('game')!r}, not {game!r}")
    seed = task.extra.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TaskError(f"task {task.key}: extra_info.seed must be an integer, not {seed!r}")
    return seed


def _new_game(game: str, options: str) -> Any:
    """Return a new game; call it inside :func:`_in_textarena`."""
    # Reading the word lists takes a second. They do not change, and these games keep nothing else before reset().
    return copy.copy(_with_corpora(game, options)) if base_of(game) in _CORPORA else _new(game, options)


def _new(game: str, options: str) -> Any:
    import textarena

    # "-raw": without wrappers, which would repeat the whole conversation in every observation.
    return textarena.make(f"{game}-raw", **json.loads(options))


_with_corpora = functools.lru_cache(maxsize=4)(_new)


def _check_corpora(base: str) -> None:
    import nltk

    missing = []
    for resource in _CORPORA.get(base, ()):
        try:
            nltk.data.find(resource)
        except LookupError:
            missing.append(resource.rpartition("/")[2])
    if missing:
        raise LookupError(
            f"TextArena's {base} needs NLTK's {' and '.join(missing)}, and nothing is downloaded here: "
            f"run python -m nltk.downloader {' '.join(missing)}"
        )


@contextmanager
def _in_textarena(start: RandomState) -> Iterator[None]:
    import nltk

    with contained(start):
        download, nltk.download = nltk.download, lambda *args, **kwargs: False
        try:
            yield
        finally:
            nltk.download = download


@functools.cache
def _registered() -> tuple[str, ...]:
    try:
        with contained(RandomState.seeded(0)):
            import textarena.envs.registration as registration
    except ImportError as error:
        raise ImportError("this needs TextArena: pip install 'textenvs[textarena]'") from error
    return tuple(game for game in registration.ENV_REGISTRY if not game.endswith(("-raw", "-train")))
