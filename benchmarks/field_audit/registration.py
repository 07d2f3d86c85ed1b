"""The form in which this audit plays the environments of other packages.

A package's own code draws the task, answers and pays. Nothing of :mod:`textenvs` is in between: no guard of a scorer,
no forfeit. Two things are added. The global generators of ``random`` and NumPy are set from the episode's seed and kept
apart from other episodes, because many packages draw from them. And an exception ends the episode without a reward and
is counted, so that the audit can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from textenvs.attack import COMMON, Attack
from textenvs.env import EnvironmentFailure, NoDemonstration
from textenvs.envs.reasoning_gym.attacks import ATTACKS as ANSWERS
from textenvs.external import Answer, ExternalEnv
from textenvs.global_rng import RandomState, contained
from textenvs.integrations.importers.seeds import Seeds, seed_of
from textenvs.messages import Message, Messages, user, visible_text
from textenvs.task import Task

#: Replies of an episode at most: some games have no end.
MAX_TURNS = 30


@dataclass(frozen=True)
class Step:
    """A package's answer to a reply: what the policy is shown, what it is paid, and whether the episode is over."""

    text: str
    reward: float = 0.0
    done: bool = False


class Episode(Protocol):
    """An episode of a package, decided by its seed and its replies.

    ``opening`` is what the policy is shown first. ``secrets`` are texts that it must not be shown, such as a word to be
    guessed. ``expert`` returns the next right reply, or ``None`` where none is known.
    """

    opening: str
    secrets: Sequence[str]

    def reply(self, text: str) -> Step: ...

    def expert(self, rng: np.random.Generator) -> str | None: ...


def one_player() -> int:
    """Return 1: of environments without opponents."""
    return 1


@dataclass(frozen=True)
class Registration:
    """An environment that a package registers.

    ``begin`` starts an episode by seed. It is a function of a module, or a partial of one, so that another process can
    begin the same episode. ``full`` is the reward of a whole success.
    """

    name: str
    package: str
    begin: Callable[[int], Episode]
    full: float = 1.0
    #: How many play. What earns against opponents that play at random says little, so it is not judged.
    players: Callable[[], int] = one_player
    #: Whether :meth:`Episode.expert` knows right replies.
    solvable: bool = False
    #: Whether an episode is one answer to one question, which a function of the package scores.
    question: bool = False
    #: Whether that answer may stand between ``<answer>`` and ``</answer>``, as the attacks on answers have it.
    tagged: bool = False

    def form(self, answer: str) -> str:
        """Return the reply that gives an answer."""
        return f"<answer>{answer}</answer>" if self.tagged else answer


class RegisteredEnv(ExternalEnv[Any]):
    """A registered environment as one of this project, for ``textenvs.audit``.

    Args:
        registration: What is registered.
        chance: What a guess among the right answers earns. A cheap policy is a finding where it earns more than halfway
            from there to the answer key.
    """

    def __init__(self, registration: Registration, chance: float = 0.0) -> None:
        super().__init__(Seeds(registration.name), max_assistant_turns=MAX_TURNS)
        self.registration = registration
        self.attack_margin = 0.5 * (1.0 - chance)  # type: ignore[misc]

    @property
    def scripts(self) -> frozenset[str]:
        return frozenset(["demonstration"] if self.registration.solvable else [])

    def attacks(self) -> Sequence[Attack]:
        """Return attacks that are judged by what they earn alone: of few episodes some are solved by chance."""
        attacks = (*COMMON, *(ANSWERS if self.registration.tagged else ()))
        return [replace(attack, fakes_solving=False) for attack in attacks]

    def begin(self, task: Task) -> _Playing:
        return _Playing(self.registration, seed_of(task))

    def demonstration(self, rng: np.random.Generator) -> str:
        playing = self._running()
        assert isinstance(playing, _Playing)
        reply = playing.expert(rng)
        if reply is None:
            raise NoDemonstration(f"{self.registration.name} says no right answer")
        return reply

    def secrets(self) -> Sequence[str]:
        if self.state.task is None:
            return ()
        try:
            playing = self._running()
        except EnvironmentFailure:  # it does not play the same episode again, which another check reports
            return ()
        assert isinstance(playing, _Playing)
        return playing.secrets


class _Playing:
    """A running episode, with global generators of its own."""

    def __init__(self, registration: Registration, seed: int) -> None:
        self._registration = registration
        self._random = RandomState.seeded(seed)
        with contained(self._random):
            self._episode = registration.begin(seed)
        self.opening: Messages = (user(self._episode.opening),)
        self.secrets = tuple(self._episode.secrets)

    def reply(self, message: Message) -> Answer:
        try:
            with contained(self._random):
                step = self._episode.reply(visible_text(message))
        except Exception as error:
            return _answer(0.0, over="raised", raised=1.0, reason=f"{type(error).__name__}: {error}")
        if not step.done:
            return _answer(step.reward, (user(step.text),))
        return _answer(step.reward, over="solved" if step.reward >= self._registration.full else "wrong")

    def expert(self, rng: np.random.Generator) -> str | None:
        with contained(self._random):
            return self._episode.expert(rng)

    def close(self) -> None:
        pass


def _answer(
    reward: float, messages: Messages = (), *, over: str | None = None, raised: float = 0.0, reason: str | None = None
) -> Answer:
    return Answer(
        messages=messages,
        terms={"reward": float(reward)},
        terminated=over is not None,
        stop=over,
        metrics={"raised": raised},
        reason=reason,
    )
