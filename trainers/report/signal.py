"""Whether a run has anything to learn from. Pure."""

from __future__ import annotations

#: So many iterations without a signal, from the start, are no accident any more.
PATIENCE = 5


class SignalWatch:
    """Looks at the first :data:`PATIENCE` iterations of a process, and speaks once."""

    def __init__(self) -> None:
        self._tied = 0
        self._over = False

    def observe(self, tied: float, reward: float) -> str | None:
        """An iteration is done.

        Args:
            tied: Share of its groups in which all episodes earned the same.
            reward: The mean of its episodes.

        Returns:
            What is wrong and what to do, after the last of those iterations if none had a signal.
        """
        self._tied += 1
        self._over = self._over or tied < 1.0
        if self._over or self._tied < PATIENCE:
            return None
        self._over = True
        return (
            f"no learning signal in the first {PATIENCE} iterations: in every group all episodes earned the same (the "
            f"last mean reward is {reward:g}), so no reward tells one reply from another. Take easier tasks if nothing "
            "is solved and harder ones if everything is (the environment's options, env.kwargs), a higher "
            "rollout.temperature, more episodes a group (rollout.n), or a reward with more steps between failure and "
            "success"
        )
