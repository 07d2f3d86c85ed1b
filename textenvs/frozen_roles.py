"""An environment of several roles, some of which a fixed model plays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, TypeAlias

from .chat.clients import client_for
from .chat.errors import ChatFailure, PromptTooLong
from .chat.spec import SpecLike
from .event_loop import wait_for
from .messages import Message, Messages, copy_messages
from .registry import make
from .turn import own_terms

StepResult: TypeAlias = Any


class FrozenRoles:
    """An environment (``id``, ``options``) in which ``step`` takes the turns of some of its roles.

    ``reset`` and ``step`` (and their async twins) return what those of :class:`~textenvs.env.TextEnv` do, from one turn
    of the caller's roles to the next; the turns of the ``frozen`` roles are played in between, and are no turns of
    the episode. ``info["terms"]`` and ``info["earlier"]`` have what the caller's turns earned since: what frozen turns
    earn is left out. A model that gives no reply ends the episode as ``role_failed``, with ``info["failed"]``. A model
    whose context is full truncates it as ``role_no_room``, which is no failure: a failed episode is left out of
    training, and the caller's roles could fill that context wherever they are losing.

    Args:
        id: Of the environment.
        options: Its arguments.
        frozen: The model of each frozen role, as a chat spec (``{"model": FOLDER}``, with ``base_url`` for a service).

    Raises:
        ValueError: The environment has no such role, or all of its roles are frozen.
    """

    def __init__(self, id: str, options: Mapping[str, Any], *, frozen: Mapping[str, SpecLike]) -> None:
        self.env = make(id, **options)
        self.frozen, self.blocking = dict(frozen), self.env.blocking
        check_frozen(self.env.roles, self.frozen)
        self.roles = tuple(role for role in self.env.roles if role not in self.frozen)

    async def areset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> StepResult:
        """Begin an episode; ``RuntimeError``: it ended before a role of the caller's had a turn."""
        observation, info = await self.env.areset(seed=seed, options=None if options is None else dict(options))
        self._seed, self._steps = seed or 0, 0
        self._numbers: list[int | None] = []  # of each turn of the environment: that of the caller's step, if it is one
        observation, _, terminated, truncated, info = await self._go_on((observation, 0.0, False, False, info), {})
        if terminated or truncated:
            raise RuntimeError(f"the frozen roles ended the episode ({info['stop']}): {info.get('failure', 'no turn')}")
        return observation, {**info, "role": self._role}

    async def astep(self, action: str) -> StepResult:
        """Take the caller's turn, and those of frozen roles that follow it."""
        own, self._steps = self._steps, self._steps + 1
        self._numbers.append(own)
        payments: dict[int, dict[str, float]] = {own: {}}
        result = await self.env.astep(action)
        self._pay(result, payments)
        observation, _, terminated, truncated, info = await self._go_on(result, payments)
        terms: dict[str, float] = {}
        for parts in payments.values():
            _add(terms, parts)
        earlier = {number: parts for number, parts in payments.items() if number != own}
        info = {**info, "role": self._role, "terms": terms, "earlier": earlier, "own_terms": payments[own]}
        return observation, fsum(terms.values()), terminated, truncated, info

    async def _go_on(self, result: StepResult, payments: dict[int, dict[str, float]]) -> StepResult:
        """Play frozen roles until the caller is to act, or the episode is over; what it is shown then is its own."""
        while not (result[2] or result[3]):
            if (role := result[4]["role"]) not in self.frozen:
                self._role: str = role
                return result
            try:
                reply = await self._reply(role, result[0])
            except PromptTooLong:
                result = (result[0], 0.0, False, True, {**result[4], "stop": "role_no_room"})
                break
            except ChatFailure as failure:
                info = {**result[4], "stop": "role_failed", "failed": True, "failure": f"{role}: {failure}"}
                result = (result[0], 0.0, False, True, info)
                break
            self._numbers.append(None)
            result = await self.env.astep(reply)
            self._pay(result, payments)
        view = self.env.state.waiting.get(self._role) if self._numbers and self._numbers[-1] is None else None
        return (result[0] if view is None else copy_messages(view), *result[1:])

    async def _reply(self, role: str, observation: Messages) -> Message:
        client = await client_for(self.frozen[role])
        tools = getattr(self.env, "tools_not_in_prompt", None)
        sample = (self._seed + len(self._numbers)) % 2**31
        return (await client.complete(observation, tools=tools or None, sample=sample)).message

    def _pay(self, result: StepResult, payments: dict[int, dict[str, float]]) -> None:
        """Add what a turn of the environment paid to the caller's turns."""
        info = result[4]
        for number, parts in info.get("earlier", {}).items():
            if (step := self._numbers[number]) is not None:
                _add(payments.setdefault(step, {}), parts)
        if (step := self._numbers[-1]) is not None:
            _add(payments[step], own_terms(info))

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> StepResult:
        return wait_for(self.areset(seed=seed, options=options))

    def step(self, action: str) -> StepResult:
        return wait_for(self.astep(action))

    def close(self) -> None:
        self.env.close()

    async def aclose(self) -> None:
        await self.env.aclose()


def check_frozen(roles: Sequence[str], frozen: Iterable[str]) -> None:
    """Raise ``ValueError`` if a frozen role is none of the environment's ``roles``, or no role is left to train."""
    if unknown := sorted(set(frozen) - set(roles)):
        several = f"its roles are {', '.join(roles)}" if len(roles) > 1 else "it has one role"
        raise ValueError(f"{unknown[0]!r} is no role of the environment: {several}")
    if not set(roles) - set(frozen):
        raise ValueError(f"all roles are frozen ({', '.join(roles)}): there is nothing to train")


def _add(terms: dict[str, float], parts: Mapping[str, float]) -> None:
    terms.update({name: terms.get(name, 0.0) + value for name, value in parts.items()})
