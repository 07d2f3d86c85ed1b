"""Tasks of a folder in the sandbox: no image, no network, and an episode's state is a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

from ....sandbox import Entry, SandboxFailure, Shell, ShellLimits, ShellResult, ShellState, Tree
from ....sandbox.layout import RESERVED
from ....sandbox.shell import CLOCK_S
from ....sandbox.tree import decoded
from ....task import TaskError
from .dockerfile import Plan, Step, plan_of
from .formats import CLEARED, TEST_FOLDERS, FolderTask
from .runtime import exported
from .verdict import REWARD_BYTES, Verdict, of_pytest, of_reward_files

#: Folders in the root that a task may use though its Dockerfile does not name them.
_FOLDERS = frozenset(("app", "data", "home", "mnt", "opt", "root", "srv", "tmp", "var", "work", "workspace"))
_TEST_FOLDERS = frozenset(folder.lstrip("/") for folder in TEST_FOLDERS)
#: What is there when tests begin comes from the task alone.
_OF_TESTS = tuple(f"{folder}/" for folder in CLEARED)
_HOME = "/root"
_ROOT_USERS = (None, "root", "0")
#: Names beside a Dockerfile of Terminal-Bench's format that are of the tests and the solution.
_HIDDEN = frozenset(("tests", "run-tests.sh", "solution.sh", "solution.yaml", "task.yaml"))
#: Links that are followed for one path, as the kernel does.
_LINKS = 40
#: MiB, files and bytes of output for the tests, beside what the episode's files may have.
_TESTS_MB, _TEST_FILES, _OUTPUT_BYTES = 64, 4096, 1 << 20


class Sandboxed:
    """Plays tasks in a :class:`~textenvs.sandbox.Shell`.

    Raises:
        SandboxUnavailable: This machine cannot isolate a shell.
    """

    def __init__(self, limits: ShellLimits) -> None:
        self.shell = Shell(limits)
        self._plans: dict[str, Plan] = {}
        self._built: dict[str, ShellState] = {}

    def check(self, tasks: Sequence[FolderTask]) -> None:
        problems = []
        for task in tasks:
            try:
                self._plans[task.name] = _plan(task)
            except TaskError as problem:
                problems.append(str(problem))
        if problems:
            raise TaskError("\n".join(problems))

    async def begin(self, task: FolderTask) -> ShellState:
        if task.name not in self._built:
            self._built[task.name] = await self._build(task)
        return self._built[task.name]

    async def run(
        self, state: ShellState, command: str, *, timeout_s: float | None = None
    ) -> tuple[ShellState, ShellResult]:
        return await self.shell.run(state, command, timeout_s=timeout_s)

    async def judge(self, task: FolderTask, state: ShellState) -> Verdict:
        # Neither variables nor functions, processes or a working directory, and nothing where tests are.
        work = _work_of(state.tree)
        folders = (*_TEST_FOLDERS, "logs/verifier")
        tree = Tree({**work, **{name: Entry("folder", b"", 0o755) for name in folders}})
        added = {path: Entry("file", content, mode) for path, (content, mode) in task.tests().items()}
        tree = tree.changed(_with_folders(tree, added))
        plan = self._plans[task.name]
        workdir = task.workdir or plan.workdir
        variables = {**plan.variables, **task.variables, "HOME": _HOME, "PYTHONNOUSERSITE": "1", **task.tests_variables}
        command = f"exec </dev/null\n{exported(variables)}cd {quote(workdir)} || exit\n{task.tests_command}"
        limits = replace(
            self.shell.limits,
            cpu_s=int(task.tests_s) + 1,
            wall_s=task.tests_s,
            disk_mb=self.shell.limits.disk_mb + _TESTS_MB,
            files=self.shell.limits.files + _TEST_FILES,
            output_bytes=_OUTPUT_BYTES,
        )
        after, result = await Shell(limits).run(ShellState.rooted(tree, (), "/tmp"), command, read_only=("/tests",))
        if result.status not in ("ok", "error") or (result.exit_code or 0) > 128:
            return Verdict(None, f"the tests were stopped: {result.describe(400)}")
        if result.survivors:
            return Verdict(None, f"{result.survivors} processes still ran when the tests had ended")
        if task.format == "terminal-bench":
            verdict = of_pytest(result.output)
        else:
            verdict = of_reward_files(*(_content(after.tree, f"logs/verifier/reward.{end}") for end in ("json", "txt")))
        if verdict.reward is None:
            log = after.tree.text("logs/verifier/test-stdout.txt") or result.output
            return Verdict(None, f"{verdict.why}; the end of their output:\n{log[-600:]}")
        return verdict

    def end(self, state: ShellState) -> None:
        """Nothing is held: a state is a value."""

    def close(self) -> None:
        """Nothing is held."""

    async def _build(self, task: FolderTask) -> ShellState:
        plan = self._plans[task.name]
        state = ShellState.rooted(Tree(), plan.folders | _FOLDERS | _TEST_FOLDERS, _HOME)
        shell = Shell(replace(self.shell.limits, wall_s=task.build_s, cpu_s=int(task.build_s) + 1))
        for step in plan.steps:
            state = await _built(shell, state, step, task)
        variables = {**plan.variables, **task.variables, "HOME": _HOME}
        workdir = task.workdir or plan.workdir
        start = ShellState(state.tree, cwd=workdir)
        start, result = await shell.run(start, f"{exported(variables)}mkdir -p {quote(workdir)} && cd {quote(workdir)}")
        if result.status != "ok":
            raise SandboxFailure(f"task {task.name}: {workdir} could not be made: {result.describe(400)}")
        # Times would say which files were made last, and by which line.
        entries = {path: replace(entry, mtime_ns=CLOCK_S * 10**9) for path, entry in start.tree.items()}
        return replace(start, tree=Tree(entries))


def _work_of(tree: Tree) -> dict[str, Entry]:
    """Return an episode's entries without what is where tests will be, and without links that lead there."""
    return {
        path: entry
        for path, entry in tree.items()
        if not f"/{path}/".startswith(_OF_TESTS) and (entry.kind != "link" or not _leads_to_tests(tree, path))
    }


def _leads_to_tests(tree: Tree, link: str) -> bool:
    """Return whether a link leads to where tests will be, or whether the tree does not tell."""
    place: list[str] = []
    ahead, followed = link.split("/"), 0
    while ahead:
        part = ahead.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            if place and place[0] in RESERVED:
                return True  # the system's links decide
            place = place[:-1]
            continue
        place.append(part)
        entry = tree.get("/".join(place))
        if entry is not None and entry.kind == "link":
            followed += 1
            target = decoded(entry.content)
            place = [] if target.startswith("/") else place[:-1]
            ahead = [*target.split("/"), *ahead]
        if followed > _LINKS or place[:1] == ["proc"] or place[:2] == ["dev", "fd"]:
            return True
    return place in ([], ["logs"]) or f"/{'/'.join(place)}/".startswith(_OF_TESTS)


def _plan(task: FolderTask) -> Plan:
    if task.dockerfile is None:
        raise TaskError(
            f"{task.root}: it is the image {task.image}, and a sandbox has none. Give runtime='docker' or 'podman', or "
            "leave the task out"
        )
    for key, user in (("agent.user", task.user), ("verifier.user", task.tests_user)):
        if user not in _ROOT_USERS:
            raise TaskError(f"{task.root}: {key} is {user!r}, and a sandbox has one user. Give runtime='docker'")
    return plan_of(task.dockerfile, task.context, _HIDDEN if task.context == task.root else frozenset())


async def _built(shell: Shell, state: ShellState, step: Step, task: FolderTask) -> ShellState:
    """Return the state after a line of the Dockerfile."""
    folder = step.folder.lstrip("/")
    entries = {path: Entry("file", content, mode) for path, (content, mode) in step.files.items()}
    if folder and folder not in state.tree:
        entries[folder] = Entry("folder", b"", 0o755)
    try:
        state = ShellState.rooted(state.tree.changed(_with_folders(state.tree, entries)), (), step.folder)
    except ValueError as error:
        raise SandboxFailure(f"{task.dockerfile}, line {step.line}: {error}") from error
    if not step.command:
        return state
    variables = exported({"HOME": _HOME, **step.variables})
    after, result = await shell.run(state, f"{variables}{step.command}")
    if result.status != "ok":
        raise SandboxFailure(
            f"{task.dockerfile}, line {step.line}: RUN {step.command}\n  failed in the sandbox: {result.describe(600)}"
        )
    return ShellState(after.tree, cwd=step.folder)


def _with_folders(tree: Tree, entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return entries with the folders above them that the tree does not have."""
    added = dict(entries)
    for path in entries:
        while path := path.rpartition("/")[0]:
            if path not in tree and path not in added:
                added[path] = Entry("folder", b"", 0o755)
    return added


def _content(tree: Tree, path: str) -> bytes | None:
    entry = tree.get(path)
    return entry.content[:REWARD_BYTES] if entry is not None and entry.kind == "file" else None
