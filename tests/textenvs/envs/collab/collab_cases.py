"""The ids of CollabLLM's families; where this machine has no sandbox, the one that needs it is skipped."""

import pytest

from textenvs.sandbox import Sandbox, SandboxUnavailable

try:
    Sandbox()
    no_sandbox = ()
except SandboxUnavailable as refused:  # test_contract.py checks the refusal
    no_sandbox = (pytest.mark.skip(reason=f"no sandbox here: {str(refused).splitlines()[1]}"),)

SCORES = {
    "textenv/collab-math": "accuracy",
    "textenv/collab-document": "faithfulness",
    "textenv/collab-code": "pass_rate",
}
IDS = [pytest.param(env_id, marks=no_sandbox if env_id.endswith("code") else ()) for env_id in SCORES]
every_id = pytest.mark.parametrize("env_id", IDS)
