"""SkyRL-Gym: every environment as a ``BaseTextEnv``.

::

    from textenvs.integrations.skyrl import register
    register("textenv/gsm8k-interact")  # inside SkyRL's entrypoint task

The rows (``textenvs rows skyrl``) name it as their ``env_class`` and say which episode to play. See
docs/adapters/skyrl.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..registry import list_environments
from ..trust import Environments
from .rows import same_messages
from .session import EpisodeSpec, Session, SpecError

try:
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as problem:
    raise ImportError(f"SkyRL-Gym is not installed ({problem}): pip install 'textenvs[skyrl]'") from problem

_CLASS = f"{__name__}:SkyRLTextEnv"


def register(*ids: str, environments: Environments | None = None) -> None:
    """Make environments known to ``skyrl_gym.make``; what was registered here before stays as it is.

    Without ``ids``, all that ship here. ``environments`` has, by id, options that rows may have beyond the harmless
    ones (docs/security.md); these ids are registered besides, anew where they were registered before.
    """
    environments = environments or {}
    for env_id in dict.fromkeys((*(ids or list_environments()), *environments)):
        current = skyrl_gym.registry.get(env_id)
        if current is None or current.entry_point != _CLASS or env_id in environments:
            skyrl_gym.registry.pop(env_id, None)
            options = environments.get(env_id, {})
            skyrl_gym.register(id=env_id, entry_point=_CLASS, kwargs={"env_id": env_id, "options": options})


class SkyRLTextEnv(BaseTextEnv):  # type: ignore[misc]
    """One episode of any environment; SkyRL makes one of these for each.

    What it holds is released at the end of the episode, after an exception, by ``close``, and when it is collected:
    SkyRL calls ``close`` only after an episode that went well.

    Args:
        env_config: Must be empty: options belong to the rows, or else a group's episodes could differ.
        extras: The row's other columns; ``textenv`` says which episode to play. With ``max_turns``, which SkyRL sets to
            its ``generator.max_turns``, the episode is truncated after as many replies, the last of them judged.
        env_id: As registered, and so are ``options``; the row's environment must be the same.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        *,
        env_id: str,
        options: Any = (),
    ) -> None:
        super().__init__()
        extras = extras or {}
        if env_config:
            raise ValueError(
                f"{env_id}: environment.skyrl_gym has options for it ({sorted(env_config)}), and nothing would read "
                f"them; give them when the rows are written (`textenvs rows skyrl {env_id} key=value ...`)"
            )
        if "textenv" not in extras:
            raise SpecError(
                f"the row has no column 'textenv', which says what episode to play; `textenvs rows skyrl {env_id}` "
                "writes such rows"
            )
        self.episode = EpisodeSpec.from_row(extras["textenv"], "column 'textenv'", {env_id: options})
        if self.episode.env != env_id:
            raise SpecError(f"the row's env_class is {env_id!r}, and its episode one of {self.episode.env!r}")
        self.max_turns = extras.get("max_turns")
        self._session: Session | None = None

    def init(self, prompt: Sequence[Mapping[str, str]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin the episode: its opening, and what ``reset`` says of the task."""
        self.close()
        self.turns = 0
        self._session, opening = Session.of(self.episode)
        if prompt and not same_messages(prompt, opening):
            self.close()
            raise SpecError(
                f"the row's prompt is not what {self.episode.env} opens with at seed {self.episode.seed}: the rows "
                "were written with another version or other data; write them again with `textenvs rows skyrl`"
            )
        return [dict(message) for message in opening], dict(self._session.info)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Play one reply; raises ``EnvironmentFailure`` where a simulator or judge gave up."""
        session = self._session
        if session is None or session.closed:
            raise RuntimeError("there is no episode to step in: init() begins one")
        try:
            turn = session.reply(action)
            self.turns += 1
            session.check()
        except BaseException:
            self.close()
            raise
        cut = not turn.done and self.max_turns is not None and self.turns >= self.max_turns
        if turn.done or cut:
            self.close()
        return BaseTextEnvStepOutput(
            observations=[dict(message) for message in turn.messages],
            reward=turn.reward,
            done=turn.done or cut,
            metadata=turn.outcome | ({"truncated": True, "stop": "max_turns"} if cut else {}),
        )

    def close(self) -> None:
        """Release what the episode holds. Its metrics stay."""
        if self._session is not None:
            self._session.close()

    def get_metrics(self) -> dict[str, Any]:
        """Return ``turns``, ``return``, ``terminated``, reward terms' sums and metrics of the episode so far."""
        if self._session is None or not self._session.turns:
            return {"turns": self.turns}
        last = self._session.turns[-1]
        return {
            **last.metrics,
            **{f"reward/{name}": value for name, value in self._session.terms.items()},
            "turns": self.turns,
            "return": self._session.reward,
            "terminated": float(last.terminated),
        }
