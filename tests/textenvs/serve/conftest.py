"""Servers that the tests of a module share."""

import adapter_kit
import pytest
from served import registered, running


@pytest.fixture(scope="module")
def shipped():
    with running(registered(*adapter_kit.ENVIRONMENTS), allow=["expert", "scores"]) as server:
        yield server


@pytest.fixture(scope="module")
def toys():
    with running(allow=["scores", "tasks"]) as server:
        yield server
