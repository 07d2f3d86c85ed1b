"""The shell as a tool: what lasts belongs to the episode, and goes with its snapshots and forks."""

import pickle
from dataclasses import dataclass

import pytest
from shells import shell_of

from textenvs import Task, Turn
from textenvs.messages import user
from textenvs.sandbox import SandboxFailure, Shell, ShellState, Tree
from textenvs.task import Rows
from textenvs.tool_env import ToolEnv, ToolState
from textenvs.tools import call
from textenvs.tools.shell import HasShell, shell_tool


@dataclass
class ProjectState(ToolState, HasShell):
    pass


class Project(ToolEnv[ProjectState]):
    state_type = ProjectState

    def opening(self, task):
        self.state.shell = ShellState.of(Tree.of({"todo.txt": "one\n"}))
        return task.prompt

    def answer(self, reply):
        done = self.state.shell.project.text("todo.txt") == self.task.ground_truth
        return Turn(terms=self.terms(reward=done), terminated=True, stop="solved" if done else "wrong")


def project():
    tasks = Rows("projects", [Task("1", "project", (user("Add the line two."),), "one\ntwo\n")])
    env = Project(tasks, [shell_tool(shell_of())])
    env.reset(seed=0)
    return env


def run(env, command, **arguments):
    conversation, *_ = env.step(env.format.write("", [call("run", command=command, **arguments)]))
    return conversation[-1]["content"]


def test_state_lasts_over_turns_and_decides_the_reward():
    env = project()
    assert "[exit code 0, in /tmp]" in run(env, "line=two; cd /tmp")
    assert "two" in run(env, "echo $line >> /project/todo.txt; cat /project/todo.txt", timeout_s=5)
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["stop"]) == (1.0, True, "solved")


def test_fork_and_snapshot_share_no_state():
    env = project()
    run(env, "x=before")
    saved, fork = env.snapshot(), env.fork()
    assert saved.shell is env.state.shell is fork.state.shell
    run(fork, "rm todo.txt; x=fork")
    assert "one" in run(env, "cat todo.txt; echo $x")
    env.restore(pickle.loads(pickle.dumps(saved)))
    assert "before" in run(env, "echo $x")
    assert fork.state.shell.project.text("todo.txt") is None


def test_arguments_are_checked_and_times_end():
    env = project()
    assert "timeout_s" in run(env, "echo", timeout_s=-1)
    assert "ran for more than 0.2 s" in run(env, "sleep 30", timeout_s=0.2)


def test_failed_sandbox_is_a_failed_episode(monkeypatch):
    async def fail(self, *arguments, **options):
        raise SandboxFailure("the disk is full")

    env = project()
    monkeypatch.setattr(Shell, "run", fail)
    _, reward, terminated, truncated, info = env.step(env.format.write("", [call("run", command="ls")]))
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert info["failure"] == "the disk is full"


def test_shell_needs_a_state_that_has_one():
    class Without(ToolEnv[ToolState]):
        pass

    shell_of()
    with pytest.raises(ValueError, match="is given a HasShell"):
        Without([Task("1", "x", (user("?"),), "1")], [shell_tool()])
