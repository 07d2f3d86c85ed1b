"""Every fault of every template breaks a check by itself, and its repair mends it."""

import random

import pytest
from shells import shell_of

from textenvs.envs.terminal.project import verify
from textenvs.envs.terminal.templates import TEMPLATES
from textenvs.sandbox.result import ShellLimits


@pytest.mark.parametrize("name", TEMPLATES)
def test_fault_breaks_a_check_until_it_is_repaired(name):
    shell, project = shell_of(ShellLimits()), TEMPLATES[name](random.Random(0))
    assert all(verify(shell, project.state(shell).project, project, random.Random(1)).values())
    for fault in project.faults:
        broken = project.state(shell, [fault])
        assert not all(verify(shell, broken.project, project, random.Random(2)).values()), fault.kind
        repaired, _ = shell.run_now(broken, fault.repair)
        assert all(verify(shell, repaired.project, project, random.Random(3)).values()), fault.kind
