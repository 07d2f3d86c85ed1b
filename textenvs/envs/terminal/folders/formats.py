"""Task folders of Terminal-Bench (``task.yaml``) and of Harbor (``task.toml``), read into one form.

What the formats say, and where that is written: docs/environments/terminal.md. A key that would change what a task is,
and that is not supported here, is an error; metadata are ignored.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ....bounded_files import UnreadableFile, read_bytes, read_text, read_yaml_mapping
from ....task import TaskError

Format = Literal["terminal-bench", "harbor"]
ModelT = TypeVar("ModelT", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, le=1_000_000)]

#: Bytes of a file of tests or of a solution, and of all of one task.
_FILE_BYTES, _ALL_BYTES = 16 << 20, 64 << 20
#: Folders in the root that the formats use, and those in which nothing of an episode's is left when tests run.
TEST_FOLDERS: tuple[str, ...] = ("/tests", "/logs", "/solution", "/oracle", "/agent-logs")
CLEARED: tuple[str, ...] = ("/tests", "/logs/verifier", "/solution", "/oracle", "/agent-logs")
#: A variable of the host in a value.
_HOST_VARIABLE = re.compile(r"\$\{[^}]*\}")
#: What Terminal-Bench itself writes into a compose file.
_COMPOSE_VARIABLES = {"${T_BENCH_TEST_DIR}": "/tests"}
_COMPOSE_KEYS = {"build", "image", "container_name", "command", "environment", "volumes", "working_dir"}
_COMPOSE_VOLUMES = {
    "${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}",
    "${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}",
}


@dataclass(frozen=True)
class FolderTask:
    """A task of a folder.

    Args:
        name: The folder's name.
        format: Whose format it is.
        root: The folder.
        instruction: What the policy is asked to do.
        context: The folder that an image is built from.
        dockerfile: Its Dockerfile; ``None`` where there is an ``image``.
        image: A published image in the place of a Dockerfile.
        variables: Environment variables of everything that runs.
        workdir: Where commands begin; ``None`` for the image's.
        user, tests_user: Who runs the policy's commands, and who the tests; ``None`` for the image's user.
        command_s, tests_s, build_s: Seconds for the solution (and most for a command), the tests, and the build;
            ``command_s`` is ``None`` where the task has no limit.
        tests_variables, solution_variables: Variables of the tests and of the solution alone.
        has_network: Whether the task says that its containers have a network.
        memory_mb, cpus: Of its containers; ``None`` for no limit of the task's.
    """

    name: str
    format: Format
    root: Path
    instruction: str
    context: Path
    dockerfile: Path | None
    image: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    tests_user: str | None = None
    command_s: float | None = None
    tests_s: float = 60.0
    build_s: float = 600.0
    tests_variables: Mapping[str, str] = field(default_factory=dict)
    solution_variables: Mapping[str, str] = field(default_factory=dict)
    has_network: bool = True
    memory_mb: int | None = None
    cpus: float | None = None

    @property
    def tests_command(self) -> str:
        """The command that runs the tests; its output is what Terminal-Bench's parser reads."""
        if self.format == "terminal-bench":
            return "bash /tests/run-tests.sh 2>&1"
        return "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1"

    @property
    def solution_script(self) -> str:
        """The path of the solution's script in a container."""
        return "/oracle/solution.sh" if self.format == "terminal-bench" else "/solution/solve.sh"

    def tests(self) -> dict[str, tuple[bytes, int]]:
        """Return contents and modes of the tests' files, by path in a container without the first ``/``.

        Raises:
            TaskError: A file is too large, or is none.
        """
        files = _files_below(self.root / "tests", "tests")
        if self.format == "terminal-bench":
            files["tests/run-tests.sh"] = _file(self.root / "run-tests.sh")
        else:
            files["tests/test.sh"] = files["tests/test.sh"][0], 0o755
        return files

    def solution(self) -> dict[str, tuple[bytes, int]] | None:
        """Return contents and modes of the solution's files like :meth:`tests`; ``None`` where there is no script.

        Raises:
            TaskError: A file is too large, or is none.
        """
        if self.format == "terminal-bench":
            script = self.root / "solution.sh"
            return {"oracle/solution.sh": _file(script)} if script.is_file() else None
        return _files_below(self.root / "solution", "solution") if self._has_solve else None

    @property
    def _has_solve(self) -> bool:
        return (self.root / "solution" / "solve.sh").is_file()


def read_folder(folder: Path) -> list[FolderTask]:
    """Return the tasks of a folder: itself, or the task folders in it, in the order of their names.

    Raises:
        TaskError: There is no task in it, or tasks that cannot be played; all problems at once.
    """
    places = [folder] if _is_task(folder) else sorted(place for place in folder.iterdir() if _is_task(place))
    if not places:
        raise TaskError(
            f"{folder}: no task is in it; a task is a folder with task.toml (Harbor) or task.yaml (Terminal-Bench), "
            "and tasks names one, or a folder of such folders"
        )
    tasks, problems = [], []
    for place in places:
        try:
            tasks.append(_read_harbor(place) if (place / "task.toml").is_file() else _read_terminal_bench(place))
        except (TaskError, UnreadableFile) as problem:
            problems.append(str(problem))
    if problems:
        raise TaskError("\n".join(problems))
    return tasks


def _is_task(folder: Path) -> bool:
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


# ------------------------------------------------------------------ Terminal-Bench


class _TerminalBench(BaseModel):
    """The keys of ``task.yaml`` that say how a task is played; the others are metadata."""

    model_config = ConfigDict(extra="ignore")

    instruction: str = Field(min_length=1)
    parser_name: str = "pytest"
    max_agent_timeout_sec: Seconds = 360.0
    max_test_timeout_sec: Seconds = 60.0
    run_tests_in_same_shell: bool = False


def _read_terminal_bench(root: Path) -> FolderTask:
    path = root / "task.yaml"
    config = _validated(_TerminalBench, read_yaml_mapping(path), path)
    if config.parser_name != "pytest":
        raise TaskError(f"{path}: parser_name is {config.parser_name!r}, and only 'pytest' is read here")
    if config.run_tests_in_same_shell:
        raise TaskError(
            f"{path}: run_tests_in_same_shell is not supported: tests run in a clean copy of the files, not in the "
            "policy's shell"
        )
    if not (root / "run-tests.sh").is_file():
        raise TaskError(f"{root}: there is no run-tests.sh")
    context, dockerfile, variables, workdir = root, root / "Dockerfile", {"TEST_DIR": "/tests"}, None
    if (compose := root / "docker-compose.yaml").is_file():
        context, dockerfile, own, workdir = _read_compose(compose)
        variables |= own
    if not dockerfile.is_file():
        raise TaskError(f"{root}: there is no {dockerfile.name} in {context}")
    return FolderTask(
        name=root.name,
        format="terminal-bench",
        root=root,
        instruction=config.instruction,
        context=context,
        dockerfile=dockerfile,
        variables=variables,
        workdir=workdir,
        tests_user="root",  # the original runs tests as root, whoever the agent is
        command_s=config.max_agent_timeout_sec,
        tests_s=config.max_test_timeout_sec,
    )


def _read_compose(path: Path) -> tuple[Path, Path, dict[str, str], str | None]:
    """Return build folder, Dockerfile, variables and working directory of a compose file with one service."""
    compose = read_yaml_mapping(path)
    services = compose.get("services")
    if not isinstance(services, dict) or len(services) != 1 or not isinstance(next(iter(services.values())), dict):
        raise TaskError(f"{path}: one service is played here, and it has {len(services or ())}")
    if unknown := sorted(set(compose) - {"services", "version"}):
        raise TaskError(f"{path}: {unknown[0]!r} is not supported; remove it where the task does not need it")
    name, service = next(iter(services.items()))
    if unknown := sorted(set(service) - _COMPOSE_KEYS):
        raise TaskError(f"{path}: {name}.{unknown[0]} is not supported; remove it where the task does not need it")
    if volumes := [volume for volume in service.get("volumes") or () if volume not in _COMPOSE_VOLUMES]:
        raise TaskError(f"{path}: {name}.volumes has {volumes[0]!r}: a container gets no folder of the host")
    build = service.get("build") or {}
    build = {"context": build} if isinstance(build, str) else build
    if unknown := sorted(set(build) - {"context", "dockerfile"}):
        raise TaskError(f"{path}: {name}.build.{unknown[0]} is not supported")
    context = _within(path.parent, str(build.get("context") or "."), path)
    dockerfile = _within(context, str(build.get("dockerfile") or "Dockerfile"), path)
    declared = service.get("environment") or {}
    pairs = declared if isinstance(declared, dict) else dict(_pair(str(line), path) for line in declared)
    variables = {str(key): _COMPOSE_VARIABLES.get(str(value), str(value)) for key, value in pairs.items()}
    _check_variables(variables, f"{path}: {name}.environment")
    workdir = service.get("working_dir")
    return context, dockerfile, variables, None if workdir is None else _absolute(str(workdir), path)


def _pair(line: str, path: Path) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise TaskError(f"{path}: the variable {name} of the environment has no value: the host's are not passed on")
    return name, value


# ------------------------------------------------------------------ Harbor


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Agent(_Section):
    timeout_sec: Seconds | None = None
    user: str | int | None = None
    network_mode: str | None = None


class _Verifier(_Section):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: str | None = None
    network_mode: str | None = None


class _Solution(_Section):
    env: dict[str, str] = Field(default_factory=dict)


class _Environment(_Section):
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    memory: str | None = None
    storage_mb: int | None = None
    storage: str | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    mcp_servers: list[Any] = Field(default_factory=list, max_length=0)
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    network_mode: str | None = None
    allow_internet: bool | None = None


class _Harbor(BaseModel):
    """The sections of ``task.toml`` that say how a task is played."""

    model_config = ConfigDict(extra="forbid")

    schema_version: str = "1.4"
    version: str | None = None  # the name of the above until 1.0
    task: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    artifacts: list[Any] = Field(default_factory=list)  # files that are collected: no part of the reward
    agent: _Agent = Field(default_factory=_Agent)
    verifier: _Verifier = Field(default_factory=_Verifier)
    solution: _Solution = Field(default_factory=_Solution)
    environment: _Environment = Field(default_factory=_Environment)


def _read_harbor(root: Path) -> FolderTask:
    path = root / "task.toml"
    try:
        config = _validated(_Harbor, tomllib.loads(read_text(path)), path)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: not TOML: {error}") from error
    version = config.version or config.schema_version
    if version.partition(".")[0] != "1":
        raise TaskError(f"{path}: its schema_version is {version}, and those of 1 are read here")
    environment = config.environment
    if environment.os.lower() != "linux":
        raise TaskError(f"{path}: environment.os is {environment.os!r}, and only 'linux' is played here")
    if environment.gpus:
        raise TaskError(f"{path}: environment.gpus is {environment.gpus}: containers get no GPU here")
    if config.verifier.environment_mode not in (None, "shared"):
        raise TaskError(f"{path}: verifier.environment_mode is {config.verifier.environment_mode!r}: not supported")
    modes = (environment.network_mode, config.agent.network_mode, config.verifier.network_mode)
    if unknown := [mode for mode in modes if mode not in (None, "public", "no-network")]:
        raise TaskError(f"{path}: network_mode is {unknown[0]!r}: a list of hosts cannot be kept here")
    if len({mode for mode in modes if mode}) > 1:
        raise TaskError(f"{path}: agent and verifier have different values of network_mode: not supported")
    mode = next((mode for mode in modes if mode), None)
    has_network = environment.allow_internet is not False if mode is None else mode == "public"
    for place, variables in (
        ("environment.env", environment.env),
        ("verifier.env", config.verifier.env),
        ("solution.env", config.solution.env),
    ):
        _check_variables(variables, f"{path}: {place}")
    if not (root / "tests" / "test.sh").is_file():
        raise TaskError(f"{root}: there is no tests/test.sh")
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (root / "environment" / name).is_file():
            raise TaskError(f"{root}: environment/{name} is not supported; a task of one Dockerfile is")
    dockerfile = root / "environment" / "Dockerfile"
    if not dockerfile.is_file() and environment.docker_image is None:
        raise TaskError(f"{root}: there is no environment/Dockerfile, and no environment.docker_image")
    return FolderTask(
        name=root.name,
        format="harbor",
        root=root,
        instruction=read_text(root / "instruction.md"),
        context=root / "environment",
        dockerfile=None if environment.docker_image else dockerfile,
        image=environment.docker_image,
        variables=environment.env,
        workdir=None if environment.workdir is None else _absolute(environment.workdir, path),
        user=None if config.agent.user is None else str(config.agent.user),
        tests_user=None if config.verifier.user is None else str(config.verifier.user),
        command_s=config.agent.timeout_sec,
        tests_s=config.verifier.timeout_sec,
        build_s=environment.build_timeout_sec,
        tests_variables=config.verifier.env,
        solution_variables=config.solution.env,
        has_network=has_network,
        memory_mb=environment.memory_mb or _megabytes(environment.memory, path),
        cpus=environment.cpus,
    )


# ------------------------------------------------------------------ both


def _validated(model: type[ModelT], values: Mapping[str, Any], path: Path) -> ModelT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        why = "is not supported here" if problem["type"] == "extra_forbidden" else f"is wrong: {problem['msg']}"
        raise TaskError(f"{path}: {key} {why}") from error


def _megabytes(size: str | None, path: Path) -> int | None:
    """Return the MiB of an older size, such as ``2G``."""
    if size is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([GMK])", size.strip().upper())
    if match is None:
        raise TaskError(f"{path}: environment.memory is {size!r}, and not a size such as '2G'")
    return max(1, int(float(match[1]) * {"G": 1024, "M": 1, "K": 1 / 1024}[match[2]]))


def _check_variables(variables: Mapping[str, str], where: str) -> None:
    for name, value in variables.items():
        if re.fullmatch(r"[A-Za-z_]\w*", name) is None or "\0" in value:
            raise TaskError(f"{where}: {name!r} is no name of a variable")
        if match := _HOST_VARIABLE.search(value):
            raise TaskError(f"{where}.{name} is {match[0]}: variables of this machine are not passed on; write a value")


def _absolute(folder: str, path: Path) -> str:
    if not folder.startswith("/") or ".." in folder.split("/"):
        raise TaskError(f"{path}: the working directory {folder!r} is no path from the root")
    return os.path.normpath(folder)


def _within(folder: Path, name: str, path: Path) -> Path:
    place = Path(os.path.normpath(folder / name))
    if not place.is_relative_to(path.parent):
        raise TaskError(f"{path}: {name!r} is outside of the task's folder")
    return place


def _file(path: Path) -> tuple[bytes, int]:
    try:
        return read_bytes(path, _FILE_BYTES), 0o755 if os.access(path, os.X_OK) else 0o644
    except UnreadableFile as error:
        raise TaskError(str(error)) from error


def _files_below(folder: Path, place: str) -> dict[str, tuple[bytes, int]]:
    """Return the regular files of a folder, by path below ``place``; links of the folder are followed within it."""
    files: dict[str, tuple[bytes, int]] = {}
    root, size = folder.resolve(), 0
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if not path.resolve().is_relative_to(root):
            raise TaskError(f"{path}: a link out of its folder")
        content, mode = _file(path)
        size += len(content)
        if size > _ALL_BYTES:
            raise TaskError(f"{folder}: its files have more than {_ALL_BYTES >> 20} MiB together")
        files[f"{place}/{path.relative_to(folder).as_posix()}"] = content, mode
    return files
