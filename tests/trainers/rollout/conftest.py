"""Time limits of environments' calls."""

from typing import Any

import pytest

from trainers.rollout.workers import Worker


@pytest.fixture
def short_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a short time limit to the steps that hang, and to no other call: a busy machine may take its time there."""
    call = Worker.call

    async def limited(self: Worker, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        hangs = method == "step" and args[0].endswith("hang")
        return await call(self, method, 0.1 if hangs else timeout, *args, **kwargs)

    monkeypatch.setattr(Worker, "call", limited)
