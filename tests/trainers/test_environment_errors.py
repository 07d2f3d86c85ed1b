"""The errors of a run whose environment cannot be made."""

from __future__ import annotations

import pytest

from trainers.builders import SetupError
from trainers.builders.environments import Component


def test_missing_sandbox_is_setup_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textenvs.sandbox.backends._problem_with", lambda backend, user: "not on this machine")
    with pytest.raises(SetupError, match="^env.id=textenv/terminal: No sandbox holds on this machine"):
        Component("", "textenv/terminal", {}).make()


def test_refused_option_is_setup_error() -> None:
    with pytest.raises(SetupError, match=r"^env.id=textenv/gsm8k with {'flour': 1}: .*see env.kwargs"):
        Component("", "textenv/gsm8k", {}).make({"flour": 1})
