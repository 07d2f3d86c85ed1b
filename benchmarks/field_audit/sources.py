"""Environments that other packages register, run by the package's own code; see :mod:`.registration`.

What needs a download, a service or a language model cannot begin here; a :class:`Package` names all, and the audit says
why one did not begin.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from textenvs.data.word_problems import GeneratedMath
from textenvs.envs.textarena.players import expert_move

from . import openenv_folders
from .registration import Registration, Step

#: What a wrapper of the package calls a move: in square brackets, or in a box.
MOVE = re.compile(r"\[[^\[\]\n]{1,60}\]|\\boxed\{[^{}\n]{1,60}\}")
#: Questions of a dataset: so many that two episodes hardly have the same.
_QUESTIONS = 1_000_000
#: Of datasets that make all at once, or refuse so many.
_FEWER = {"acre": 5_000, "word_ladder": 5_000}
_MOST_PLAYERS = 15
_MOST_MOVES = 200  # of opponents in a row, which move at random


class Package(NamedTuple):
    """A package, or a checkout of a repository, and its environments."""

    prefix: str  # of the names of its environments
    distribution: str  # on PyPI; of a checkout, the folder's name
    registrations: Callable[[], Iterator[Registration]]
    checkout: Path | None = None

    def matches(self, prefixes: Sequence[str]) -> bool:
        """Return whether one of its environments may have a name that begins with one of ``prefixes``."""
        return any(self.prefix.startswith(prefix) or prefix.startswith(self.prefix) for prefix in prefixes)

    def version(self) -> str:
        """Return the installed version, or a checkout's commit; ``ImportError`` says how to install what is missing."""
        if self.checkout is not None:
            command = ["git", "-C", str(self.checkout), "rev-parse", "HEAD"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError as error:
            option = "--no-deps " if self.distribution == "gem-llm" else ""
            raise ImportError(f"{self.distribution} is missing: pip install {option}{self.distribution}") from error


def packages(openenv: Path | None = None) -> list[Package]:
    """Return the packages; ``openenv`` is a checkout of OpenEnv, whose environments no package has."""
    installed = [
        Package("reasoning-gym/", "reasoning-gym", _reasoning_gym),
        Package("textarena/", "textarena", _textarena),
        Package("gem/", "gem-llm", _gem),
        Package("skyrl-gym/", "skyrl-gym", _skyrl_gym),
    ]
    if openenv is None:
        return installed
    begin = functools.partial(openenv_folders.registrations, openenv)
    return [*installed, Package("openenv/", "OpenEnv", begin, openenv)]


# ------------------------------------------------------------------ reasoning-gym


class _Question:
    """A question of reasoning-gym. The reply is the answer, or has it between ``<answer>`` and ``</answer>``."""

    secrets: Sequence[str] = ()

    def __init__(self, dataset: Any, index: int) -> None:
        self.dataset, self.entry = dataset, dataset[index]
        self.opening = str(self.entry["question"])

    def reply(self, text: str) -> Step:
        from reasoning_gym.utils import extract_answer

        answer = extract_answer(text) if "<answer>" in text else text
        return Step("", float(self.dataset.score_answer(answer, self.entry)), done=True)

    def expert(self, rng: np.random.Generator) -> str | None:
        answer = self.entry["answer"]
        return None if answer is None else str(answer)


def _reasoning_gym() -> Iterator[Registration]:
    from reasoning_gym.factory import DATASETS

    for name in sorted(DATASETS):
        if name != "composite":  # of other datasets
            begin = functools.partial(begin_question, name)
            keyless = name in ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
            yield Registration(
                f"reasoning-gym/{name}", "reasoning-gym", begin, solvable=not keyless, question=True, tagged=True
            )


def begin_question(name: str, seed: int) -> _Question:
    dataset = _dataset(name)
    return _Question(dataset, seed % len(dataset))


@functools.cache
def _dataset(name: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=_FEWER.get(name, _QUESTIONS), seed=0)


# ------------------------------------------------------------------ TextArena


class _Game:
    """A game of TextArena from the first player's seat; other players repeat moves that they have read."""

    def __init__(self, name: str, seed: int) -> None:
        import nltk
        import textarena

        nltk.download = lambda *arguments, **options: False
        self.base = name
        self.game = textarena.make(f"{name}-v0-raw")
        players = _players(name)
        self.game.reset(num_players=players, seed=seed)
        self.opponents = np.random.default_rng([seed, 1])
        self.read: dict[int, str] = dict.fromkeys(range(players), "")
        self.done = False
        self._play_opponents()
        self.opening = self._observe() or "The game begins."
        state = self.game.state.game_state or {}
        hidden = {key: state.get(key) for key in ("target_word", "secret_word", "secret_code")}
        self.secrets: Sequence[str] = tuple(str(value) for value in hidden.values() if isinstance(value, (str, int)))

    def reply(self, text: str) -> Step:
        self.done = bool(self.game.step(text)[0])
        self._play_opponents()
        if not self.done:
            return Step(self._observe() or "It is your turn.")
        rewards, _ = self.game.close()
        return Step("", float((rewards or {}).get(0, 0.0)), done=True)

    def expert(self, rng: np.random.Generator) -> str | None:
        return expert_move(self.base, self.game, rng)

    def _observe(self) -> str:
        player, messages = self.game.get_observation()
        text = "\n\n".join(str(part[1]).strip() for part in messages) if not isinstance(messages, str) else messages
        self.read[player] += text
        return text

    def _play_opponents(self) -> None:
        for _ in range(_MOST_MOVES):
            player = self.game.state.current_player_id
            if self.done or player == 0:
                return
            self._observe()
            moves = MOVE.findall(self.read[player]) or ["."]
            self.done = bool(self.game.step(moves[int(self.opponents.integers(len(moves)))])[0])
        self.done = True  # random moves lead nowhere


@functools.cache
def _players(name: str) -> int:
    """Return the fewest players, two or more, with which a game begins; 1 where it begins with one alone."""
    import textarena

    cause: Exception = ValueError(f"{name} begins with no number of players")
    for count in (*range(2, _MOST_PLAYERS + 1), 1):
        try:
            textarena.make(f"{name}-v0-raw").reset(num_players=count, seed=0)
            return count
        except Exception as error:
            cause = error
    raise cause


def _textarena() -> Iterator[Registration]:
    from textarena.envs.registration import ENV_REGISTRY

    #: Games that :func:`~textenvs.envs.textarena.players.expert_move` wins, or draws.
    solvable = {"FrozenLake", "GuessTheNumber", "Mastermind", "TowerOfHanoi"}
    for name in sorted({name.partition("-v0")[0] for name in ENV_REGISTRY}):
        begin = functools.partial(_Game, name)
        players = functools.partial(_players, name)
        yield Registration(f"textarena/{name}", "textarena", begin, players=players, solvable=name in solvable)


# ------------------------------------------------------------------ GEM


class _Gem:
    """An environment of GEM (`gem.make`), as its `reset` and `step` are."""

    secrets: Sequence[str] = ()

    def __init__(self, name: str, seed: int) -> None:
        import gem

        self.env = gem.make(name)
        self.opening = str(self.env.reset(seed=seed)[0])

    def reply(self, text: str) -> Step:
        observation, reward, terminated, truncated, _ = self.env.step(text)
        return Step(str(observation), float(reward), bool(terminated or truncated))

    def expert(self, rng: np.random.Generator) -> str | None:
        return None


def _gem() -> Iterator[Registration]:
    from gem.envs.registration import ENV_REGISTRY

    # One variant of each game: `-easy`, whose parameters are fixed.
    games = sorted(name for name in ENV_REGISTRY if name.startswith("game:") and name.endswith("-easy"))
    for name in games:
        short = name.removeprefix("game:").partition("-v0")[0]
        yield Registration(f"gem/{short}", "gem-llm", functools.partial(_Gem, name))


# ------------------------------------------------------------------ skyrl-gym


class _Skyrl:
    """A scorer of skyrl-gym on arithmetic in words, as its data sets have."""

    secrets: Sequence[str] = ()

    def __init__(self, name: str, answer: str, seed: int) -> None:
        import skyrl_gym

        task = GeneratedMath("medium")[seed]
        self.opening, self.key = task.question, answer.format(task.ground_truth)
        truth = {"ground_truth": str(task.ground_truth)}
        extras = {"reward_spec": truth, "reward_model": truth, "extra_info": {}, "max_turns": 5}
        self.env = skyrl_gym.make(name, extras=extras)
        self.env.init([{"role": "user", "content": self.opening}])

    def reply(self, text: str) -> Step:
        output = self.env.step(text)
        observations = "\n".join(str(message["content"]) for message in output["observations"])
        return Step(observations, float(output["reward"]), bool(output["done"]))

    def expert(self, rng: np.random.Generator) -> str | None:
        return self.key


def _skyrl_gym() -> Iterator[Registration]:
    for name, answer in (("gsm8k", "#### {}"), ("gsm8k_multi_turn", "#### {}"), ("aime", "Answer: {}")):
        begin = functools.partial(_Skyrl, name, answer)
        yield Registration(f"skyrl-gym/{name}", "skyrl-gym", begin, solvable=True, question=name != "gsm8k_multi_turn")
