"""The shell whose state is a value: what lasts, what is equal, what a model is shown."""

import asyncio
import copy
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shells import SMALL, Session, shell_of

from textenvs.sandbox import shell as shell_module
from textenvs.sandbox.result import ShellLimits
from textenvs.sandbox.shell import CLOCK_S, STEP_S, ShellResult, ShellState
from textenvs.sandbox.shell_cache import VALUE_BYTES, TreeCache
from textenvs.sandbox.tree import Entry, Tree, decoded, encoded

# ------------------------------------------------------------------ files

names = st.sampled_from(["a", "b", ".c", "two words", "new\nline", "-r", "ü", decoded(b"\xff"), "*", "'"])
times = st.integers(0, 2**31).map(lambda seconds: seconds * 10**9 + 5)
leaves = st.one_of(
    st.builds(Entry, st.just("file"), st.binary(max_size=40), st.integers(0, 0o777), times),
    st.builds(
        Entry, st.just("link"), st.sampled_from([b"a", b"../..", b"/etc/passwd", b"nowhere"]), st.just(0o777), times
    ),
)
folders = st.builds(Entry, st.just("folder"), st.just(b""), st.integers(0, 0o777), times)


@st.composite
def trees(draw):
    entries = {}
    for folder in ("", "d", "d/e", "d/e/f"):
        if folder:
            entries[folder] = draw(folders)
        for name in draw(st.lists(names, max_size=4)):
            entries[f"{folder}/{name}".lstrip("/")] = draw(leaves)
    return Tree(entries)


@settings(max_examples=25, deadline=None)
@given(trees())
def test_command_that_changes_nothing_keeps_the_exact_tree(tree):
    state = ShellState.of(tree)
    after, result = shell_of().run_now(state, ":")
    assert result.status == "ok"
    assert after.tree == state.tree
    assert after.tree.digest == state.tree.digest


def test_shell_has_the_files_of_the_tree():
    modes = {"run.sh": 0o755, "secret": 0o600, "d": 0o750}
    tree = Tree.of({"run.sh": "x", "secret": b"\0\xff", "d/e": ""}, modes=modes, links={"l": "d/e"}, folders=("empty",))
    session = Session()
    session.state = ShellState.of(tree)
    result = session("find . -mindepth 1 -printf '%P %y %m %s %T@ %l\\n' | sort")
    letter = {"file": "f", "folder": "d", "link": "l"}
    lines = []
    for path, entry in tree.items():
        size, target = len(entry.content), entry.content.decode() if entry.kind == "link" else ""
        if entry.kind != "folder":
            lines.append(f"{path} {letter[entry.kind]} {entry.mode:o} {size} {CLOCK_S}.0000000000 {target}")
    shown = [line for line in result.output.splitlines() if line.split()[1] != "d"]
    assert shown == sorted(lines)
    assert "empty d 755" in result.output
    assert "d d 750" in result.output


commands = st.sampled_from(
    [
        "echo one > a",
        "echo two >> a; mkdir -p d/e",
        "mv a d/ 2>/dev/null; mv d z",
        "rm -rf d z",
        "ln -s a link; touch -d 2001-02-03 a",
        "ln a hard; chmod 000 a",
        "cd d && x=$((x + 1))",
        "printf x > $'new\\nline'; export Y=\"$x$x\"",
        "f() { echo $x; }; chmod 500 .",
        "chmod 700 /project; cp -p a b; : > c",
        "echo $RANDOM > random; ls -f",
    ]
)


@settings(max_examples=8, deadline=None)
@given(st.lists(commands, min_size=1, max_size=4), commands, commands)
def test_forks_are_equal_and_diverge_without_each_other(before, one, other):
    shell, state = shell_of(), ShellState.of()
    for command in before:
        state, _ = shell.run_now(state, command)
    saved = pickle.loads(pickle.dumps(state))
    assert saved == state
    assert saved.tree.digest == state.tree.digest
    first, _ = shell.run_now(state, one)
    shell.run_now(copy.deepcopy(saved), other)
    assert state == saved, "a command changed the state that it began from"
    # Not from the cache: the same command with a comment.
    again, _ = shell.run_now(saved, f"{one} # again")
    assert again == first


def test_files_that_swap_their_names_are_seen():
    session = Session({"a/f": "one", "b/f": "two", "g": "three", "h": "four!"})
    session("mv a c; mv b a; mv c b; mv g i; mv h g; mv i h")
    project = session.state.project
    assert [project.text(path) for path in ("a/f", "b/f", "g", "h")] == ["two", "one", "four!", "three"]


def test_change_of_same_size_and_time_is_seen():
    session = Session({"a": "one", "b": "xyz"})
    session("touch -r b stamp; printf two > a; touch -r stamp a; rm stamp; sed -i s/x/y/ b; touch -r a b")
    assert (session.state.project.text("a"), session.state.project.text("b")) == ("two", "yyz")


def test_changed_files_have_the_time_of_their_command():
    session = Session({"old": "1"})
    session("echo 2 > new; mkdir d; touch -d @86400 set")
    session("echo 3 > newer; test newer -nt new -a new -nt old && echo ordered; echo $SOURCE_DATE_EPOCH")
    seconds = {path: entry.mtime_ns / 10**9 for path, entry in session.state.project.items()}
    first, second = CLOCK_S + STEP_S, CLOCK_S + 2 * STEP_S
    assert seconds == {"old": CLOCK_S, "new": first, "d": first, "set": 86400, "newer": second}


def test_tree_refuses_paths_that_lead_out_of_it():
    for path in ("/a", "../a", "a/../b", "./a", "a//b", "", "a\0b"):
        with pytest.raises(ValueError, match="a path of a tree"):
            Tree({path: Entry("file")})
    with pytest.raises(ValueError, match="is in no folder"):
        Tree({"a": Entry("file"), "a/b": Entry("file")})


def test_entries_have_permissions_only():
    with pytest.raises(ValueError, match="mode of a file is of 0 to 777"):
        Entry("file", mode=0o4755)
    assert Tree.of({}, links={"l": "a"}, modes={"l": 0o600})["l"] == Entry("link", b"a", 0o644)
    state = ShellState.of(Tree({"l": Entry("link", b"a")}))
    assert shell_of().run_now(state, ":")[0].tree == state.tree


_ASCII_HOST = """
import pickle, sys
from textenvs.sandbox import Shell, ShellState, Tree
assert sys.getfilesystemencoding() == "ascii"
state = pickle.load(sys.stdin.buffer)
assert state.tree.digest == Tree(dict(state.tree)).digest
state, result = Shell().run_now(state, "mkdir 世界; mv 京/* 世界; cd 世界; ln -s 京 链; ls; echo 好 > 文; x=é")
state, _ = Shell().run_now(state, "echo $x > é")
sys.stdout.buffer.write(pickle.dumps((state, result)))
"""


def test_locale_of_the_host_does_not_matter():
    """Names of an ASCII host are the same, so a state can move between hosts."""
    shell_of()
    state = ShellState.of(Tree.of({"京/ü": "1", f"京/{decoded(b'z' + bytes([255]))}": "2"}, links={"京/l": "ü"}))
    variables = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", _ASCII_HOST.encode("ascii", "backslashreplace").decode()]
    run = subprocess.run(command, env=variables, input=pickle.dumps(state), capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    state, result = pickle.loads(run.stdout)
    assert result.head == "l\nz\udcff\nü\n链\n".encode("utf-8", "surrogateescape")
    assert result.cwd == "/project/世界"
    names = ["世界", "世界/l", "世界/z\udcff", "世界/é", "世界/ü", "世界/文", "世界/链", "京"]
    assert list(state.project) == sorted(names, key=encoded)
    assert state.project["世界/链"].content == "京".encode()
    assert state.project.text("世界/é") == "é\n"
    assert Tree(dict(state.tree)).digest == state.tree.digest


def test_tree_below_and_sizes():
    tree = Tree.of({"a/b/c": "123", "a/d": "4", "ab": "5"})
    assert dict(tree.below("a").items()).keys() == {"b", "b/c", "d"}
    assert tree.size == 5
    assert tree.text("a/d") == "4"
    assert tree.text("a") is None


# ------------------------------------------------------------------ state of the shell


@pytest.mark.parametrize(
    ("change", "show", "expected"),
    [
        ("x='a b'; y=$'l1\\nl2 \"q\" $x'", 'echo "$x|$y"', 'a b|l1\nl2 "q" $x'),
        ("export E=1", "printenv E", "1"),
        ("x=1; unset x HOME", 'echo "${x-none} ${HOME-none}"', "none none"),
        ("a=(1 'b c'); declare -A m=([k]='v w')", 'echo "${a[1]} ${m[k]}"', "b c v w"),
        ("declare -i n=3; readonly r=4", 'n+=1; echo "$n $r"; r=5', "4 4\nbash: line 1: r: readonly variable"),
        ("f() { echo \"got $1\"; }; export -f f", "f 1; bash -c 'f 2'", "got 1\ngot 2"),
        ("mkdir -p 'x y'; cd 'x y'", "pwd", "/project/x y"),
        ("umask 077", "umask", "0077"),
        ("set -o pipefail; shopt -s nullglob", "false | true; echo $? none*", "1"),
        ("shopt -s expand_aliases; alias hi='echo hello'", "hi", "hello"),
        ("IFS=,; set -f", 'v="a,b"; echo $v *', "a b *"),
        ("(exit 7)", "echo $?", "7"),
        ("cd /tmp; echo kept > t", "cat /tmp/t", "kept"),
        ("set -e; false; echo not reached", "set +e; echo again", "again"),
        ("x=1; exit 3", "echo $x", "1"),
        ("IFS=,; PAGER=less; PS4='- '", 'v=a,b; echo $v $PAGER "$PS4."', "a b less - ."),
        ("export -n USER; PAGER=; unset LANG", 'echo $USER; printenv USER LANG PAGER; echo end', "user\n\nend"),
        ("builtin() { :; }; x=1", "echo survived", "survived"),
    ],
)  # fmt: skip
def test_state_lasts_from_command_to_command(change, show, expected):
    session = Session()
    session(change)
    assert session(show).output.strip() == expected


def test_command_finds_no_variables_of_the_shell_itself():
    shown = Session()("compgen -v | grep -v '^BASH'; echo ${REPLY-none}").output.split()
    assert shown[-1] == "none"
    assert "__shell_script" not in shown


def test_unsaved_state_is_the_one_before():
    session = Session()
    session("x=1; cd /tmp")
    for command in ("x=2; exec true", "x=3; kill -9 $$", "set -n"):
        result = session(command)
        assert "as they were before the command" in result.describe()
    assert session("echo $x; pwd").output == "1\n/tmp\n"


@pytest.mark.parametrize(
    "command",
    [
        "exit 3",
        "f() { exit 3; }; f",
        "(exit 7); exit",
        "set -e; false || exit 4",
        "(exit 5) || exit",
        "x=$(exit 9); exit 2",
        "set -u; trap 'echo out; echo err >&2; false; exit' EXIT; exit 6",
        "trap 'exit 8' EXIT; exit 6",
        ": no exit",
        "exit() { echo mine; }; exit 3",
        "exit 1 2",
        "exit word",
    ],
)
def test_exit_trap_runs_and_state_is_saved(command):
    session = Session()
    session("v=1; trap 'echo never' EXIT")
    whole = f"""v=2; cd /tmp; trap 'echo bye $? ${{-//[^eu]/}}; v=3' EXIT; {command}"""
    real = Session({"script": whole})("bash script")
    result = session(whole)
    lines = [re.sub(r"(?m)^\S+: line \d+: ", "", one.output) for one in (result, real)]
    assert lines[0] == lines[1]
    assert (result.exit_code, result.notes) == (real.exit_code, ())
    assert session.state.cwd == "/tmp"
    shown = session("{ set +ex; } 2>/dev/null; echo $v; builtin declare -F").output.splitlines()
    own = {"declare -f __shell_return", "declare -f __shell_save", "declare -f exit"}
    functions = {f"declare -f {name}" for name in ("f", "exit") if f"{name}()" in command}
    assert (shown[0], set(shown[1:]) - own) == ("2", functions - own)
    assert b"__shell" not in session.state.script
    assert (b"exit ()" in session.state.script) == ("exit()" in command)


def test_trace_of_a_command_shows_its_own_lines():
    assert Session()("set -x; x=1; exit 3").output == "++ x=1\n++ exit 3\n"
    assert Session()("set -x; (exit 3); : end").output == "++ exit 3\n++ : end\n"


def test_tools_repeat_themselves():
    code = "import os; print(hash('a'), os.getpid() > 1)"
    command = f'echo $RANDOM $$; python3 -c "{code}"; pwd; id -un; locale 2>/dev/null | head -1; ls -l'
    first, second = Session({"a": "1"}), Session({"a": "1"})
    assert first(command).output == second(f"{command} # not cached").output


def test_git_makes_the_same_commits():
    command = "git init -q && git add . && git commit -qm first && git rev-parse HEAD"
    first, second = Session({"a": "1"}), Session({"a": "1"})
    result = first(command)
    if "command not found" in result.output:
        pytest.skip("no git on this machine")
    assert result.exit_code == 0, result.describe()
    assert second(f"{command} # not cached").output == result.output


def test_run_awaits_many_at_once_and_caches():
    shell, state = shell_of(), ShellState.of()

    async def run():
        return await asyncio.gather(*(shell.run(state, f"echo {n}; echo {n} > f") for n in range(6)))

    ended = asyncio.run(run())
    assert [result.output for _, result in ended] == [f"{n}\n" for n in range(6)]
    assert [after.project.text("f") for after, _ in ended] == [f"{n}\n" for n in range(6)]
    again = shell.run_now(state, "echo 3; echo 3 > f")
    assert again[0] is ended[3][0]


def test_results_with_much_content_are_not_cached():
    shell, state = shell_of(), ShellState.of()
    command = "head -c 1500000 /dev/zero > big"
    first, second = (shell.run_now(state, command)[0] for _ in range(2))
    assert first == second
    assert first is not second


def kept_bytes(trees):
    """Count the bytes of files that are alive because of these trees."""
    entries = {id(entry): entry for tree in trees for entry in tree.values()}
    return sum(len(entry.content) for entry in entries.values())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4000), st.booleans()), max_size=30))
def test_cache_keeps_no_more_than_its_bytes(changes):
    """Whatever the history: chains of states that share files, and ones whose state before is not cached."""
    most = 20_000
    cache = TreeCache(most)
    tree = Tree()
    for number, (name, size, is_new) in enumerate(changes):
        tree = (Tree() if is_new else tree).changed({name: Entry("file", bytes([number]) * size)})
        if number % 3:
            assert cache.put(bytes([number]), tree, tree, 10) is tree
        alive = [cache.get(bytes([number])) for number in range(30)]
        trees = [tree for tree in alive if tree is not None]
        assert kept_bytes(trees) + 10 * len(trees) <= cache.bytes <= most
    for number in range(30, 60):
        cache.put(bytes([number]), Tree(), Tree(), most // 2 - VALUE_BYTES)
    assert (len(cache), cache.bytes) == (2, most // 2 * 2), "what was dropped is not counted"


def test_cache_is_safe_in_threads():
    cache = TreeCache(40_000)
    trees = [Tree.of({f"{n % 5}": bytes([n]) * 900}) for n in range(60)]

    def use(turn):
        for n in range(400):
            number = (n * (turn + 3)) % 60
            assert cache.put(bytes([number]), number, trees[number], 0) == number
            assert cache.get(bytes([number])) in (None, number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert 5 < len(cache) < 30
    assert cache.bytes <= cache.most_bytes
    one = TreeCache(10_000)
    one.put(b"", 0, Tree(), 0)
    for number in range(60, 100):
        cache.put(bytes([number]), 0, Tree(), 0)
    assert cache.bytes == one.bytes * len(cache)


def test_commands_of_a_shell_keep_bounded_memory(monkeypatch):
    """Each command replaces a file; one whose result is not cached leaves large files to the states after it."""
    cache = TreeCache(3 << 20)
    monkeypatch.setattr(shell_module, "_cache", cache)
    shell, state = shell_of(), ShellState.of()
    state, _ = shell.run_now(state, "head -c 1500000 /dev/zero > large")
    assert len(cache) == 0
    for number in range(5):
        state, _ = shell.run_now(state, f"head -c 400000 /dev/zero | tr '\\0' {number} > small")
    trees = [tree for _, tree, _ in cache._kept.values()]
    assert kept_bytes(trees) == 1_500_000 + 4 * 400_000
    assert kept_bytes(trees) <= cache.bytes <= 3 << 20


def test_pickled_shell_runs():
    shell = pickle.loads(pickle.dumps(shell_of()))
    assert shell.run_now(ShellState.of(), "echo pickled")[1].output == "pickled\n"


# ------------------------------------------------------------------ words


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(0, 5), st.integers(2, 50))
def test_description_counts_what_it_leaves_out(head, tail, omitted, most):
    if not omitted:
        head, tail = head + tail, b""
    head, tail = (part.translate(None, delete=bytes({*range(128, 256), 10, 91})) for part in (head, tail))
    lines = ShellResult("ok", head, tail, omitted, 0).describe(most).split("\n")
    assert lines.pop() == "[exit code 0, in /project]"
    text = "".join(line for line in lines if not line.startswith("[... "))
    marks = [int(line.split()[1]) for line in lines if line.startswith("[... ")]
    assert len(text) <= most
    assert len(text) + sum(marks) == len(head) + len(tail) + omitted
    whole = (head + tail).decode()
    assert any(whole.startswith(text[:n]) and whole.endswith(text[n:]) for n in range(len(text) + 1))


def test_output_keeps_its_beginning_and_end():
    result = Session()("seq 1 100000")
    assert result.output.startswith("1\n2\n")
    assert result.output.endswith("99999\n100000\n")
    size = sum(len(str(n)) + 1 for n in range(1, 100_001))
    assert len(result.head) + len(result.tail) == SMALL.output_bytes
    assert result.omitted == size - SMALL.output_bytes


def test_errors_have_the_lines_of_the_command():
    result = Session()("echo one\nnonsense\necho three >&2")
    assert result.output == "one\nbash: line 2: nonsense: command not found\nthree\n"


def test_command_that_cannot_be_run_is_an_answer():
    session = Session()
    for command in ("echo \0", ":" * 200_000):
        result = session(command)
        assert (result.status, result.exit_code) == ("error", 2)
        assert "not run" in result.output
    assert session("echo 'lone \ud800'").output == "lone ?\n"
    assert session("if").exit_code == 2


def test_limits_refuse_too_few_open_files():
    with pytest.raises(ValueError, match="open_files must be at least 256"):
        ShellLimits(open_files=64)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("shopt -s extglob", 'f() { case $1 in +(a|b)) echo yes;; esac; }; umask 027; alias q="echo q"', None),
        ("set -o posix", "f() { echo yes; }; umask 027", None),
        ("EPOCHS=10; BASH_X=1; GIT_MY_DATE=2", "", "10 1 2"),
    ],
)
def test_state_of_a_shell_is_whole(before, after, shown):
    session = Session()
    session(before)
    session(after)
    if shown is None:
        assert session("f ab; umask").head.split() == [b"yes", b"0027"]
    else:
        assert session("echo $EPOCHS $BASH_X $GIT_MY_DATE").head.decode().strip() == shown


def test_ended_processes_do_not_use_up_the_limit():
    result = Session()("for i in $(seq 40); do (true &); sleep 0.02; done; echo done")
    assert result.head == b"done\n"


def test_file_written_through_a_mapping_is_kept():
    session = Session({"a": "old content"})
    program = (
        "import mmap, time; f = open('a', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0]; time.sleep(0.1); m[:3] = b'NEW'"
    )
    session(f'python3 -c "import mmap, time; {program}"')
    assert session.state.project.text("a") == "NEW content"
