"""TorchRL: a text environment behind ``GymWrapper``, with its conversation, its reply and its info as non-tensor data.

Importing this module teaches TorchRL the spaces of :mod:`textenvs.spaces`, so that plain ``GymWrapper`` and ``GymEnv``
take our environments, too. :class:`TextGymWrapper` adds ``info`` and ``failed``, and takes whole messages as actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..env import TextEnv
from ..registry import make
from ..spaces import AssistantTurn, Conversation, Unicode

try:
    from tensordict import NonTensorData, TensorDictBase
    from torchrl.data import Binary, Composite, NonTensor
    from torchrl.envs import GymWrapper
    from torchrl.envs.gym_like import BaseInfoDictReader
    from torchrl.envs.libs.gym import register_gym_spec_conversion
except ImportError as error:
    raise ImportError("this needs TorchRL: pip install 'textenvs[torchrl]'") from error


def _register(space: type, example: Any) -> None:
    @register_gym_spec_conversion(space)
    def convert(spec: Any, device: Any = None, **kwargs: Any) -> NonTensor:
        return NonTensor((), device=device, example_data=example)


_register(Conversation, ())
_register(AssistantTurn, "")
_register(Unicode, "")


class InfoReader(BaseInfoDictReader):  # type: ignore[misc]
    """Writes ``info`` (non-tensor data, for which TorchRL has no reader) and ``failed`` (a bool of shape [1])."""

    def __init__(self) -> None:
        failed = Binary(1, dtype=Binary(1).zero().bool().dtype)  # torch.bool, without importing torch here
        self._spec = Composite({"info": NonTensor((), example_data={}), "failed": failed}, shape=())

    @property
    def info_spec(self) -> Composite:
        return self._spec

    def __call__(self, info_dict: Mapping[str, Any], tensordict: TensorDictBase) -> TensorDictBase:
        failed = self._spec["failed"].zero()
        tensordict.set("failed", ~failed if info_dict.get("failed") else failed)
        # As data, not as a mapping: that would become a TensorDict.
        tensordict.set("info", NonTensorData(dict(info_dict), batch_size=tensordict.batch_size))
        return tensordict

    def reset(self) -> None:
        pass  # nothing is kept of what was read


class TextGymWrapper(GymWrapper):  # type: ignore[misc]
    """A text environment as a TorchRL environment.

    Its TensorDicts have ``observation`` (the conversation, a tuple of messages), ``action`` (the reply: a string, or an
    assistant message), ``reward`` (the turn's own, float32), ``done``, ``terminated``, ``truncated``, ``failed`` and
    ``info``. ``env.reset(seed=..., options=...)`` begins a given episode; ``rollout`` plays it when it is given the
    result and ``auto_reset=False``. ``env_kwargs`` are of the environment's constructor, where an id is given; other
    keywords are those of ``GymWrapper``.
    """

    def __init__(self, env: TextEnv[Any] | str, *, env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        if isinstance(env, str):
            env = make(env, **(env_kwargs or {}))
        elif not isinstance(env, TextEnv):
            raise TypeError(
                f"TextGymWrapper takes an id or a TextEnv, not a {type(env).__name__}; GymWrapper takes wrapped ones, "
                "and several side by side are a SerialEnv or ParallelEnv of these"
            )
        super().__init__(env, **kwargs)
        self.set_info_dict_reader(InfoReader())

    def read_action(self, action: Any) -> Any:
        return _plain(action)  # a message may have been taken apart by a TensorDict


def drop_failed(batch: TensorDictBase) -> TensorDictBase:
    """Drop a batch's episodes in which a simulator, judge or tool gave up; they say nothing about the policy.

    Args:
        batch: What ``rollout`` or a collector gave, of shape [T] or [B, T], with ``("next", "failed")``.

    Returns:
        Its other steps, of shape [N]. Episodes are told apart by the collector's ``traj_ids``, or else by ``("next",
        "done")``. Of an episode that an earlier batch began, only the steps in this one are dropped.
    """
    failed = batch["next", "failed"].squeeze(-1)
    if ("collector", "traj_ids") in batch.keys(True):
        number = batch["collector", "traj_ids"]
    else:
        done = batch["next", "done"].squeeze(-1).long()
        number = done.cumsum(-1) - done  # how many episodes of the row ended before this step
        if number.ndim > 1:
            rows = number.new_ones(number.shape[0]).cumsum(0) * (number.shape[-1] + 1)
            number = number + rows.reshape(-1, *[1] * (number.ndim - 1))
    bad = (number.unsqueeze(-1) == number[failed]).any(-1)
    return batch[~bad]


def _plain(value: Any) -> Any:
    if isinstance(value, TensorDictBase):
        return {name: _plain(value[name]) for name in value.keys()}  # noqa: SIM118  a TensorDict iterates over rows
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(_plain(inner) for inner in value)
    return value
