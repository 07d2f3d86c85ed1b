"""Programs as commands: their surroundings, their ends, and nothing that is left of them."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from agent_kit import HEAD, TASKS, content, folder_of, killed_run, runs, wait_until

from textenvs.env import EnvironmentFailure
from textenvs.envs.agent import Agent


def test_command_plays_and_is_rewarded(running):
    env = running(
        """
        assert json.loads(os.environ["TEXTENVS_TASK"]) == task
        assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
        assert os.environ["ANTHROPIC_API_KEY"] == os.environ["OPENAI_API_KEY"]
        assert os.environ["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
        reply = ask(task["question"], open("note.txt").read() + json.dumps(task["extra"]))
        post("/rewards", {"reward": float(task["ground_truth"] in reply["content"])})
        """,
        files={"note.txt": "a note"},
    )
    folder = folder_of(env)
    assert [message["content"] for message in env.state.messages] == ["Twice 2?", 'a note{"hint": "add"}']
    assert env.step("It is 4.")[1:3] == (1.0, True)
    wait_until(lambda: not folder.exists())


def count_lines(task, messages, files):
    assert task.ground_truth == "4"
    return len((files / "answer.txt").read_text().splitlines())


def test_scorer_reads_the_folder(running):
    env = running(
        """
        assert "ground_truth" not in task
        open("answer.txt", "w").write(ask("?")["content"])
        """,
        scorer=count_lines,
    )
    assert env.step("a\nb\nc")[1:3] == (3.0, True)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("ask('?'); print('some words'); sys.exit(3)", "it exited with 3; its last words: some words"),
        ("ask('?'); raise KeyError('lost')", "KeyError: 'lost'"),
        ("ask('?'); os.kill(os.getpid(), 9)", "it was killed by signal 9; its last words: none"),
        ("ask('?'); os.kill(0, 9)", "it was killed by signal 9"),
        ("ask('?'); print('x' * 10**7); sys.exit(1)", "it exited with 1"),
        ("ask('?')", "gave no reward"),
    ],
)
def test_broken_command_ends_with_its_last_words(running, program, words):
    _, reward, terminated, truncated, info = running(program).step("x")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, True, False, "program_error")
    assert words in info["reason"]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)", "os._exit(1)"])
def test_policy_that_kills_its_program_is_judged(running, end):
    """Whatever a policy's command does to its program, the scorer reads the files, and the episode counts."""
    env = running(
        f"""
        open("answer.txt", "w").write(ask("?")["content"])
        {end}
        """,
        scorer=lambda task, messages, files: count_lines(task, messages, files) - 5.0,
    )
    _, reward, terminated, truncated, info = env.step("a\nb\nc")
    assert (reward, terminated, truncated, info["failed"]) == (-2.0, True, False, False)
    assert info["stop"] == ("done" if end == "os._exit(0)" else "program_error")


def test_command_that_cannot_start_fails_reset(running):
    env = Agent(command="/no/such/program", tasks=TASKS)
    with pytest.raises(EnvironmentFailure, match="cannot be started"):
        env.reset(seed=0)
    with pytest.raises(EnvironmentFailure, match="exited with 2; its last words: bad start"):
        running("print('bad start'); sys.exit(2)")


CHILDREN = """
kinds = [False, True]  # the second leaves the process group
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleep, start_new_session=new) for new in kinds]
pids = [os.getpid(), *(child.pid for child in children)]
ask(json.dumps(pids))
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["close", "reset", "killed"])
def test_program_ends_with_all_its_processes(running, how):
    env = running(CHILDREN)
    pids, folder = content(env), folder_of(env)
    assert all(map(runs, pids))
    if how == "killed":
        os.kill(pids[0], signal.SIGKILL)
        assert "killed by signal 9" in env.step("x")[-1]["reason"]
    elif how == "close":
        env.close()
    else:
        env.reset(seed=0)
    wait_until(lambda: not any(map(runs, pids)) and not folder.exists())


def test_programs_end_with_the_killed_run(tmp_path):
    """SIGKILL of the process that plays: its programs, their children and their folders are gone."""
    (tmp_path / "program.py").write_text(HEAD + CHILDREN)
    run = f"""
        import json, sys, time
        from textenvs.envs.agent import Agent
        from textenvs.task import Task
        from textenvs.messages import user
        envs = [Agent(command=[sys.executable, {str(tmp_path / "program.py")!r}],
                      tasks=[Task("a", "test", (user("?"),), "4")]) for _ in range(2)]
        for env in envs:
            env.reset(seed=0)
        programs = [[json.loads(env.state.messages[-1]["content"]), str(env._live[2]._program.folder)] for env in envs]
        print(json.dumps(programs), flush=True)
        time.sleep(600)
    """
    programs = killed_run(run)
    pids = [pid for listed, _ in programs for pid in listed]
    wait_until(lambda: not any(map(runs, pids)) and not any(Path(folder).exists() for _, folder in programs))


def test_end_of_the_gateways_thread_costs_one_episode(tmp_path):
    (tmp_path / "program.py").write_text(HEAD + CHILDREN)
    run = f"""
        import json, sys
        from textenvs import event_loop
        from textenvs.envs.agent import Agent
        from textenvs.messages import user
        from textenvs.task import Task
        env = Agent(command=[sys.executable, {str(tmp_path / "program.py")!r}],
                    tasks=[Task("a", "test", (user("?"),), "4")])
        env.reset(seed=0)
        pids = [json.loads(env.state.messages[-1]["content"])]
        event_loop._loop.call_soon_threadsafe(sys.exit)
        event_loop._thread.join()
        object.__setattr__(env._settings, "timeout", 0.1)
        print(json.dumps(env.step("x")[-1]["reason"]))
        object.__setattr__(env._settings, "timeout", 60.0)
        env.reset(seed=0)
        pids.append(json.loads(env.state.messages[-1]["content"]))
        env.close()
        print(json.dumps(pids), flush=True)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(run)], capture_output=True, text=True, timeout=120, check=True
    )
    failure, pids = map(json.loads, result.stdout.splitlines())
    assert "neither called the model nor ended within 0.1 s" in failure
    wait_until(lambda: not any(runs(pid) for listed in pids for pid in listed))
