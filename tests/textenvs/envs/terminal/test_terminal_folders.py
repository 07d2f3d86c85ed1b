"""Tasks of folders in the sandbox: what is read and refused, how they are judged, and attacks on that."""

import asyncio
import copy
import functools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from folder_tasks import EXAMPLES, FINISH, FORMATS, SOLVED, bench_task, harbor_task, make, play, run
from shells import shell_of

import textenvs
from textenvs.audit import Subject, contract
from textenvs.audit.earnings import returns, unasked
from textenvs.env import EnvironmentFailure, NoDemonstration
from textenvs.envs.terminal.folders import sandboxed
from textenvs.envs.terminal.folders.verdict import of_pytest, of_reward_files
from textenvs.sandbox import SandboxFailure, ShellState, Tree
from textenvs.sandbox.result import ShellLimits
from textenvs.task import TaskError

every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(autouse=True)
def sandboxed_machine():
    shell_of(ShellLimits())


@functools.cache
def example(name):
    return make(EXAMPLES / name)


def drive(env, choose, index):
    """Play an episode; return all that can be seen of it, and its actions."""
    rng = np.random.default_rng(0)
    seen, actions = [env.reset(seed=3, options={"task_index": index})], []
    while not env.state.done:
        actions.append(choose(env, rng))
        seen.append(env.step(actions[-1]))
    return seen, actions


# ------------------------------------------------------------------ the contract


@every_format
def test_expert_solves_and_secrets_stay(name):
    env = example(name)
    for index in range(env.tasks.size):
        seen, _ = drive(env, lambda env, rng: env.demonstration(rng), index)
        assert seen[-1][-1]["stop"] == "solved"
        assert sum(step[1] for step in seen[1:]) == 1.5
        opening = " ".join(message["content"] for message in seen[0][0])
        assert env.secrets()
        assert not any(secret in opening for secret in env.secrets())


def test_contract_of_every_environment():
    options = {"tasks": str(EXAMPLES / "harbor" / "tally-visits"), "max_assistant_turns": 3}
    subject = Subject(functools.partial(textenvs.make, "textenv/terminal", **options), episodes=1)
    for verdict in (*contract(subject), returns(subject), unasked(subject)):
        assert verdict.status in ("pass", "skipped"), verdict
    assert all(record.success for record in subject.expert)


@every_format
def test_forks_and_snapshots_continue_alike(name):
    env, other = make(EXAMPLES / name), make(EXAMPLES / name)
    first = [run("x=4; echo $x > note; date > /dev/null"), "words", run("cat note; pwd")]
    env.reset(seed=3, options={"task_index": 1})
    actions = [*first, run(env.secrets()[0]), FINISH]
    seen = [env.step(action) for action in actions]
    assert seen[-1][-1]["stop"] == "solved"
    for turn in range(len(actions)):
        env.reset(seed=3, options={"task_index": 1})
        for action in actions[:turn]:
            env.step(action)
        fork, moved = env.fork(), pickle.loads(pickle.dumps(env))
        other.restore(pickle.loads(pickle.dumps(env.snapshot())))
        fork.fork().step(run("rm -rf /app/*"))
        for copied in (fork, env, moved, other, copy.deepcopy(other)):
            assert [copied.step(action) for action in actions[turn:]] == seen[turn:]


def test_last_reply_is_judged_without_finish():
    env = make(EXAMPLES / "harbor", max_assistant_turns=1)
    env.reset(seed=0, options={"task_index": 0})
    _, reward, terminated, truncated, info = env.step(run(env.secrets()[0]))
    assert (reward, terminated, truncated, info["stop"]) == (1.5, True, False, "solved")


def test_partial_reward_is_paid_as_progress():
    reward, info = play(example("harbor"), run("""echo '{"color": "red", "size": 5}' > settings.json"""), FINISH)
    assert (reward, info["stop"], info["metrics"]["share"]) == (0.25, "unsolved", 0.5)


# ------------------------------------------------------------------ attacks


@every_format
@pytest.mark.parametrize("index", [0, 1])
def test_no_attack_earns_or_fails(name, index):
    env = example(name)
    for attack in env.attacks():
        env.reset(seed=0, options={"task_index": index})
        cheater = attack.start(np.random.default_rng(0), ())
        for _ in range(3):
            if not env.state.done:
                _, reward, *_, info = env.step(cheater(env.state.messages))
                assert reward == 0.0, (attack.name, info)
                assert info["stop"] in (None, "unsolved"), (attack.name, info)


@pytest.mark.parametrize(
    "command",
    [
        "ln -s /tests/expected.csv tally.csv",
        "ln -s ../tests/expected.csv tally.csv",
        "ln -s / r; ln -s r/tests/expected.csv tally.csv",
        "ln -s /home k; ln -s k/../tests/expected.csv tally.csv",
        "mkdir -p /home/h; ln -s /home/h k; ln -s /app/k/../../tests /srv/t; ln -s /srv/t/expected.csv tally.csv",
        "ln -s /proc/1/root/tests/expected.csv tally.csv",
        "ln -s /usr/share/../../tests/expected.csv tally.csv",
        "ln -s /logs l; mkdir -p /logs/verifier; ln -s l/verifier/../../tests/expected.csv tally.csv",
    ],
)
def test_link_to_tests_is_no_work(command):
    reward, info = play(example("harbor"), run(command), FINISH, index=1)
    assert (reward, info["stop"]) == (0.0, "unsolved")


def test_links_to_own_files_are_kept():
    tree = Tree.of({"app/a": "x"}, links={"app/b": "a", "app/c": "../app/b", "home/d": "/app", "app/e": "/dev/null"})
    assert sandboxed._work_of(tree).keys() == tree.keys()


def test_link_through_the_system_is_no_work():
    """Links of the system, which the tree does not have, decide where such a path leads."""
    tree = Tree.of({"app/a": "x"}, links={"app/b": "/usr/lib/ssl/certs/../../../tests/x", "app/c": "/usr/bin/env"})
    assert sandboxed._work_of(tree).keys() == tree.keys() - {"app/b"}


@pytest.mark.parametrize(
    "program",
    [
        'echo "echo 1 > /logs/verifier/reward.txt" >> /tests/test.sh',
        "echo 1 > /logs/verifier/reward.txt; kill -9 $PPID",
        "(while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.05; done) > /dev/null 2>&1 &",
    ],
)
def test_program_that_tests_run_cannot_pay_itself(tmp_path, program):
    tests = "#!/bin/bash\n/app/program\necho 0 > /logs/verifier/reward.txt\nsleep 0.3\n"
    env = make(harbor_task(tmp_path, tests=tests))
    env.folder._proven.add("one")
    reward, info = play(env, run(f"cat > program <<'END'\n#!/bin/bash\n{program}\nEND\nchmod +x program"), FINISH)
    assert (reward, info["stop"]) == (0.0, "unsolved")


# ------------------------------------------------------------------ what fails is no reward


@pytest.mark.parametrize(
    ("tests", "solution"),
    [
        ("#!/bin/bash\ncurl -f https://example.org > /dev/null || exit 1\n", SOLVED),  # no result
        ("#!/bin/bash\nno-such-program; echo 0 > /logs/verifier/reward.txt\n", SOLVED),  # a result that is always 0
        ("#!/bin/bash\nsleep 30\n", SOLVED),
        ("#!/bin/bash\nno-such-program\n", None),
    ],
)
def test_tests_that_cannot_work_are_a_failure(tmp_path, tests, solution):
    toml = "[verifier]\ntimeout_sec = 2.0\n"
    env = make(harbor_task(tmp_path, toml=toml, tests=tests, solution=solution))
    reward, info = play(env, FINISH)
    assert (reward, info["failed"], info["stop"]) == (0.0, True, "judge_failed")
    assert "task one" in info["failure"]


def test_policy_that_breaks_tests_has_lost(tmp_path):
    tests = "#!/bin/bash\nif [ -e /app/break ]; then kill -9 $$; fi\necho 0 > /logs/verifier/reward.txt\n"
    tests = tests.replace("echo 0", "[ -e /app/done ]; echo $((1 - $?))")
    env = make(harbor_task(tmp_path, tests=tests))
    reward, info = play(env, run("touch break done; echo 1 > /logs/verifier/reward.txt"), FINISH)
    assert (reward, info["failed"], info["stop"]) == (0.0, False, "unsolved")


def test_solution_is_proven_once(tmp_path, monkeypatch):
    env, proofs = make(harbor_task(tmp_path)), []
    prove = env.folder._prove
    monkeypatch.setattr(env.folder, "_prove", lambda task: proofs.append(task.name) or prove(task))
    assert [play(env, FINISH)[1]["stop"] for _ in range(2)] == ["unsolved", "unsolved"]
    assert proofs == ["one"]


def test_sandbox_that_fails_fails_the_episode(tmp_path, monkeypatch):
    async def run_nothing(*args, **options):
        raise SandboxFailure("no box")

    env = make(harbor_task(tmp_path))
    env.reset(seed=0)
    monkeypatch.setattr(sandboxed.Shell, "run", run_nothing)
    *_, info = env.step(FINISH)
    assert (info["stop"], info["failed"]) == ("judge_failed", True)


def test_line_that_fails_to_build_is_named(tmp_path):
    env = make(harbor_task(tmp_path, dockerfile="FROM ubuntu\nWORKDIR /app\nRUN mkdir a && cat nothing\n"))
    with pytest.raises(EnvironmentFailure, match="line 3: RUN mkdir a && cat nothing"):
        env.reset(seed=0)


# ------------------------------------------------------------------ what is read


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("FROM node:20", "not those of an image"),
        ("FROM ubuntu\nFROM debian", "not those of an image"),
        ("FROM ubuntu\nRUN apt-get update && \\\n apt-get install -y curl", "apt-get is not among the programs"),
        ("FROM ubuntu\nRUN git clone https://example.org/a.git", "git needs a network"),
        ("FROM ubuntu\nRUN python3 -m pip install numpy", "python3 needs a network"),
        ("FROM ubuntu\nRUN echo $(curl example.org)", "cannot be checked"),
        ("FROM ubuntu\nRUN mkdir a; ./install.sh", "install.sh is not among the programs"),
        ("FROM ubuntu\nUSER nobody", "FROM, WORKDIR, COPY, ENV and RUN alone"),
        ("FROM ubuntu\nCOPY missing /app/", "the task's folder has no missing"),
        ("FROM ubuntu\nCOPY Dockerfile /etc/x", "/etc is this machine's"),
        ("FROM ubuntu\nCOPY --from=other a /app/", "--from is not supported"),
        ("FROM ubuntu\nCOPY ../tests /app/", "outside of the task's folder"),
        ('FROM ubuntu\nCOPY ["a", b', "its words cannot be read"),
        ('FROM ubuntu\nCOPY "a b /app', "its words cannot be read"),
        ('FROM ubuntu\nRUN ["echo", 1]', "something that is no text"),
    ],
)
def test_line_that_needs_an_image_is_refused(tmp_path, line, why):
    with pytest.raises(TaskError) as refusal:
        make(harbor_task(tmp_path, dockerfile=line))
    text, last = str(refusal.value), line.splitlines()[-1 if "\\" not in line else 1].rstrip("\\ ")
    assert why in text
    assert last.split()[0] in text
    assert "Dockerfile, line" in text
    assert "runtime='docker'" in text


def test_all_refusals_come_at_once(tmp_path):
    harbor_task(tmp_path, name="a", dockerfile="FROM node\n")
    harbor_task(tmp_path, name="b", dockerfile="FROM ruby\n")
    with pytest.raises(TaskError, match=r"(?s)FROM node.*FROM ruby"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ('[environment]\ndocker_image = "some/image"\n', "a sandbox has none"),
        ('[agent]\nuser = "ana"\n', "agent.user is 'ana'"),
        ('[environment]\nos = "windows"\n', "only 'linux'"),
        ('[verifier]\nenvironment_mode = "separate"\n', "environment_mode is 'separate'"),
        ('[[steps]]\nname = "a"\n', "steps is not supported"),
        ('[environment.env]\nKEY = "${API_KEY}"\n', "variables of this machine are not passed on"),
        ('[environment]\nnetwork_mode = "allowlist"\n', "network_mode is 'allowlist'"),
        ("[verifier]\ntimeout_sec = -1\n", "verifier.timeout_sec is wrong"),
        ('schema_version = "2.0"\n', "those of 1 are read here"),
        ("[environment\n", "not TOML"),
    ],
)
def test_key_that_is_not_supported_is_named(tmp_path, toml, why):
    with pytest.raises(TaskError, match="task.toml|one:") as refusal:
        make(harbor_task(tmp_path, toml=toml))
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    ("yaml", "compose", "why"),
    [
        ("parser_name: swebench\n", None, "parser_name is 'swebench'"),
        ("run_tests_in_same_shell: true\n", None, "run_tests_in_same_shell is not supported"),
        ("", "services:\n  a: {build: .}\n  b: {build: .}\n", "one service is played here, and it has 2"),
        ("", "services:\n  client: {build: ., privileged: true}\n", "client.privileged is not supported"),
        ("", "services:\n  client: {build: ., volumes: ['/:/host']}\n", "gets no folder of the host"),
        ("", "services:\n  client: {build: ., environment: [HOME]}\n", "the host's are not passed on"),
        ("", "services:\n  client: {build: {context: ../..}}\n", "outside of the task's folder"),
    ],
)
def test_bench_key_that_is_not_supported_is_named(tmp_path, yaml, compose, why):
    bench_task(tmp_path, yaml=yaml)
    if compose is not None:
        (tmp_path / "one" / "docker-compose.yaml").write_text(compose)
    with pytest.raises(TaskError) as refusal:
        make(tmp_path)
    assert why in str(refusal.value)


def test_tests_beside_the_dockerfile_are_not_copied(tmp_path):
    bench_task(tmp_path, dockerfile="FROM debian\nWORKDIR /app\nCOPY . .\n")
    with pytest.raises(TaskError, match=r"it copies .*, which the policy must not see"):
        make(tmp_path)


def test_link_out_of_the_task_is_not_copied(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    place = harbor_task(tmp_path / "tasks", dockerfile="FROM debian\nCOPY app /app\n")
    folder = next(place.rglob("Dockerfile")).parent / "app"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    with pytest.raises(TaskError, match="app/link is a link out of the task's folder"):
        make(place)


def test_solution_with_keystrokes_is_no_demonstration(tmp_path):
    bench_task(tmp_path, solution=None)
    (tmp_path / "one" / "solution.yaml").write_text("- command: nano\n")
    env = make(tmp_path)
    env.reset(seed=0)
    with pytest.raises(NoDemonstration, match="no solution script"):
        env.demonstration(np.random.default_rng(0))


def test_copied_files_are_where_docker_puts_them(tmp_path):
    harbor_task(
        tmp_path,
        dockerfile="FROM ubuntu\nWORKDIR /app\nCOPY d e\nCOPY a.txt .\nCOPY a.txt /app/b\nCOPY *.txt /app/f/\n"
        "ENV X='y z' W=1\nCOPY --chmod=700 a.txt e\nRUN echo \"$X\" > x",
    )
    context = tmp_path / "one" / "environment"
    (context / "a.txt").write_text("a")
    (context / "c.txt").write_text("c")
    (context / "d" / "g").mkdir(parents=True)
    (context / "d" / "g" / "h").write_text("h")
    env = make(tmp_path)
    env.reset(seed=0)
    app = env.state.shell.tree.below("app")
    assert {path for path, entry in app.items() if entry.kind == "file"} == {
        *("a.txt", "b", "e/a.txt", "e/g/h", "f/a.txt", "f/c.txt", "x")
    }
    assert app["e/a.txt"].mode == 0o700
    assert app.text("x") == "y z\n"
    assert env.step(run("echo $X $W $PWD $HOME"))[0][-1]["content"].startswith("y z 1 /app /root\n")


def test_folder_without_tasks_says_what_a_task_is(tmp_path):
    with pytest.raises(TaskError, match="task.toml"):
        make(tmp_path)


def test_row_names_a_task_of_the_folder(tmp_path):
    env = make(harbor_task(tmp_path))
    row = env.tasks[0]
    env.reset(options={"task": row})
    with pytest.raises(TaskError, match="the folder has no such task"):
        env.reset(options={"task": replace(row, extra={"folder_task": "../one"})})


@pytest.mark.parametrize(
    "options", [{"level": "easy"}, {"templates": ["shop"]}, {"network": True}, {"clean_tests": False}]
)
def test_option_of_others_is_refused(options):
    with pytest.raises(ValueError, match="are of generated tasks|options of containers"):
        make(EXAMPLES / "harbor", **options)


@pytest.mark.parametrize("options", [{"runtime": "sandbox"}, {"network": True}, {"clean_tests": False}])
def test_option_of_folders_needs_a_folder(options):
    with pytest.raises(ValueError, match="tasks=FOLDER"):
        textenvs.make("textenv/terminal", **options)


# ------------------------------------------------------------------ rewards of the formats


@pytest.mark.parametrize(
    ("summary", "reward"),
    [
        ("PASSED t.py::a\nPASSED t.py::b", 1.0),
        ("PASSED t.py::a\nFAILED t.py::b - assert 1 - 2", 0.0),
        ("PASSED t.py::a\nSKIPPED [1] t.py:3: why\nXFAIL t.py::c - x", 1.0),
        ("PASSED t.py::a\nXPASS t.py::b", 0.0),
        ("PASSED t.py::a\nERROR t.py::b - x", 0.0),
        ("SKIPPED [1] t.py:3: why", 0.0),
        ("PASSED t.py::a\nFAILED t.py::a - x", 0.0),
        ("1 passed in 0.1s", None),
        ("", None),
    ],
)
def test_pytest_summary_is_the_reward(summary, reward):
    assert of_pytest(f"PASSED t.py::z\n=== short test summary info ===\n{summary}\n").reward == reward
    assert of_pytest(summary).reward is None


@pytest.mark.parametrize(
    ("json_text", "text", "reward"),
    [
        (None, b"1\n", 1.0),
        (None, b"0.25", 0.25),
        (b'{"reward": 0.5, "style": 1}', b"1", 0.5),  # the JSON file is the first
        (b'{"score": 0.75}', None, 0.75),
        (b'{"a": 1, "b": 0}', None, None),
        (b"0.5", None, 0.5),
        (b'{"reward": "1"}', None, None),
        (None, b"", None),
        (None, b"nan", None),
        (None, b"inf", None),
        (None, b"one", None),
        (b"{", b"1", None),
        (None, None, None),
    ],
)
def test_reward_files_are_the_reward(json_text, text, reward):
    verdict = of_reward_files(json_text, text)
    assert verdict.reward == reward
    assert bool(verdict.why) == (reward is None)


def test_reward_above_one_is_a_share_of_one():
    assert (of_reward_files(None, b"3").share, of_reward_files(None, b"-2").share) == (1.0, 0.0)


# ------------------------------------------------------------------ folders of a shell


@pytest.mark.parametrize("path", ["etc/x", "usr/x", "file"])
def test_shell_has_no_folder_of_the_system(path):
    with pytest.raises(ValueError, match="a shell keeps folders of its own in the root"):
        ShellState.rooted(Tree.of({path: "x"}), (), "/")


def test_read_only_folder_cannot_be_written():
    shell = shell_of(ShellLimits())
    state = ShellState.rooted(Tree.of({"tests/t": "x", "app/a": "y"}), ("tmp",), "/app")
    command = "echo z >> /tests/t; rm -f /tests/t; chmod 777 /tests; echo z >> a; cat /tests/t"
    after, result = asyncio.run(shell.run(state, command, read_only=("/tests",)))
    assert (after.tree.text("tests/t"), after.tree.text("app/a")) == ("x", "yz\n")
    assert result.exit_code == 0
