"""Commands that serve many tasks: results by lines, several at once, and their ends."""

import gc
import textwrap
from pathlib import Path

import pytest
from agent_kit import TASKS, content, wait_until

from textenvs.env import EnvironmentFailure
from textenvs.envs.agent import Agent, serving
from textenvs.sandbox import SandboxUnavailable
from textenvs.sandbox.command import CommandSandbox

HEAD = """
def play(job):
    question = json.dumps([os.getpid(), job["task"]["question"]])
    content = ask(question, key=job["key"], url=job["base_url"])["content"]
    if content == "exit":
        print("some words", file=sys.stderr, flush=True)
        os._exit(3)
    if content == "hang":
        time.sleep(600)
    if content == "error":
        return {"error": "it does not work"}
    return {"reward": float(content == job["task"]["ground_truth"])}
def serve(job):
    try:
        result = play(job)
    except Exception as error:
        result = {"error": str(error)}
    print(json.dumps({"id": job["id"], **result}), flush=True)
print("not a result", flush=True)
for line in sys.stdin:
    job = json.loads(line)
"""
ONE, MANY = "    serve(job)", "    threading.Thread(target=serve, args=(job,)).start()"


@pytest.fixture
def make(command_env):
    def make(loop=ONE, serve=1, **options):
        return command_env(HEAD + textwrap.indent(textwrap.dedent(loop), "    "), serve=serve, **options)

    return make


def reset(env, index=0):
    """Begin an episode; return the number of the process that plays it."""
    env.reset(seed=0, options={"task_index": index})
    pid, question = content(env)
    assert question == TASKS[index].question
    return pid


def solve(env):
    return env.step(env.task.ground_truth)[1:3] == (1.0, True)


def test_one_process_serves_task_after_task(make):
    env, pids = make(), set()
    for index in range(4):
        pids.add(reset(env, index))
        assert solve(env)
    assert len(pids) == 1


def test_policy_cannot_write_its_own_result(make):
    """The command prints the policy's words: lines among them that look like results have no id of a task."""
    echo = """
    print(ask("?", key=job["key"], url=job["base_url"])["content"], flush=True)
    print(json.dumps({"id": job["id"], "reward": 0.0}), flush=True)
    """
    env = make(echo)
    env.reset(seed=0)
    forged = "\n".join(f'{{"id": {number}, "reward": 1.0}}' for number in range(100))
    assert env.step(f"\n{forged}")[1:3] == (0.0, True)


def test_environments_share_a_process(make):
    envs = [make(MANY, serve=4) for _ in range(4)]
    assert len({reset(env, index) for index, env in enumerate(envs)}) == 1
    assert all(map(solve, reversed(envs)))
    assert len({reset(env) for env in [*envs, make(MANY, serve=4)]}) == 2  # the fifth has a process of its own


def test_error_of_one_task_ends_it_alone(make):
    first, second = envs = [make(MANY, serve=2) for _ in range(2)]
    assert len({reset(env) for env in envs}) == 1
    assert "it reported: it does not work" in first.step("error")[-1]["reason"]
    assert solve(second)


def test_end_of_the_process_fails_its_tasks(make):
    first, second = envs = [make(MANY, serve=2) for _ in range(2)]
    (pid,) = {reset(env) for env in envs}
    words = "it exited with 3; its last words: some words"
    assert words in first.step("exit")[-1]["reason"]
    assert words in second.step("0")[-1]["reason"]
    assert reset(first) != pid
    assert solve(first)


def test_hanging_task_retires_its_process(make, monkeypatch):
    monkeypatch.setattr(serving, "_GRACE_S", 0.01)
    first, second = envs = [make(MANY, serve=2) for _ in range(2)]
    (pid,) = {reset(env) for env in envs}
    object.__setattr__(first._settings, "timeout", 0.01)
    assert "neither called the model nor ended" in first.step("hang")[-1]["reason"]
    assert solve(second)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert reset(second) != pid


def test_last_environment_ends_the_processes(make):
    env = make()
    pid, folder = reset(env), env._serving._servers[0]._command.folder
    assert env.step("0")[2]
    env._serving = None
    gc.collect()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() and not folder.exists())


def test_served_commands_run_in_a_sandbox(make):
    try:
        CommandSandbox.of(True)
    except SandboxUnavailable as refusal:
        pytest.skip(str(refusal))
    env = make(sandbox=True)
    for index in range(2):
        assert reset(env, index) < 10  # a process of its own space of numbers
        assert solve(env)


@pytest.mark.parametrize(
    ("loop", "words"),
    [("break", "it exited with 0 before it ended the task"), ("raise KeyError(1)", "exited with 1; its last words")],
)
def test_process_that_serves_nothing_fails_reset(make, loop, words):
    with pytest.raises(EnvironmentFailure, match=words):
        make(loop).reset(seed=0)
    with pytest.raises(ValueError, match="serve is for a command"):
        Agent(serve=1)
