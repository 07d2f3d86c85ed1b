"""Environments of commands."""

import sys
import textwrap

import pytest
from agent_kit import HEAD, TASKS

from textenvs.envs.agent import Agent, serving


@pytest.fixture
def command_env(tmp_path):
    """Return a function that makes an environment of a Python program, closed with its processes after the test.

    The program begins with ``agent_kit.HEAD``; ``files`` are the texts of further files by their names.
    """
    made, folders = [], {}

    def make(program, files=None, **options):
        texts = {"program.py": HEAD + textwrap.dedent(program), **(files or {})}
        folder = tmp_path / f"files{folders.setdefault(str(texts), len(folders))}"  # equal ones share a process
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        command = [sys.executable, "-I", "-S", "program.py"]
        env = Agent(command=command, files=str(folder), timeout=60.0, **{"tasks": TASKS, **options})
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()
        if env._serving is not None:
            serving._stop_all(env._serving._servers)
            env._serving._servers.clear()


@pytest.fixture
def running(command_env):
    """Return a function that makes an environment of a Python program, whose first episode has begun."""

    def make(program, **options):
        env = command_env(program, **options)
        env.reset(seed=0, options={"task_index": 0})
        return env

    return make
