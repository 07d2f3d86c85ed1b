"""Dockerfiles that a sandbox can build: a plain base image, folders, files of the task, variables, offline commands.

A sandbox has this machine's programs and no image. So all else is refused when the task is read, with its line.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from ....bounded_files import read_bytes, read_text
from ....sandbox.layout import RESERVED
from ....task import TaskError

#: Images that have nothing but a system, or a system and Python: this machine's take their place.
_PLAIN = re.compile(
    r"(?:docker\.io/)?(?:library/)?(?:ubuntu|debian|python|bash|buildpack-deps)(?:[:@].*)?|"
    r"ghcr\.io/laude-institute/t-bench/(?:ubuntu|python)-[\d-]+(?:[:@].*)?"
)
#: Programs that need no network, of which a RUN line may consist.
_OFFLINE = frozenset(
    ("[", "awk", "basename", "cat", "cd", "chmod", "cp", "cut", "dirname", "echo", "export", "false", "find", "git")
    + ("grep", "gunzip", "gzip", "head", "ln", "ls", "mkdir", "mv", "printf", "python3", "rm", "sed", "seq", "set")
    + ("sort", "sqlite3", "tail", "tar", "tee", "test", "touch", "tr", "true", "truncate", "uniq", "wc", "xargs")
)
_ONLINE = {"git": {"clone", "fetch", "pull", "push", "submodule"}, "python3": {"-m pip", "-m ensurepip", "-mpip"}}
_HEREDOC = re.compile(r"<<-?\s*['\"]?\w")
_OPERATORS = {"&&", "||", ";", "|", "&", "(", ")", "{", "}", "!"}
_REMEDY = "Give runtime='docker' or 'podman', where there is one, or leave the task out"
#: Bytes of a file that is copied into the sandbox; the limits of the shell are for all of them together.
_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Step:
    """Additions of a line: files (by path from the root, with contents and modes), a folder, or a command.

    ``folder`` is where the command runs, or a folder to make; ``line`` is the line's number.
    """

    line: int
    folder: str
    command: str = ""
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A sandbox's way to a task's files: steps in order, and the variables and the folder that result."""

    steps: tuple[Step, ...]
    variables: Mapping[str, str]
    workdir: str

    @property
    def folders(self) -> frozenset[str]:
        """Topmost folders that the steps name."""
        paths = {step.folder.lstrip("/") for step in self.steps} | {path for step in self.steps for path in step.files}
        return frozenset(path.partition("/")[0] for path in paths if path)


def plan_of(dockerfile: Path, context: Path, hidden: frozenset[str] = frozenset()) -> Plan:
    """Return how a sandbox builds a Dockerfile.

    Args:
        dockerfile: The file.
        context: The folder that its files are copied from.
        hidden: Names in that folder which the policy must not see.

    Raises:
        TaskError: A line that it cannot build; the message names it and says what to do.
    """
    steps: list[Step] = []
    variables: dict[str, str] = {}
    folders = {""}
    workdir, bases = "/", 0
    for number, instruction, rest in _lines(read_text(dockerfile)):
        where = f"{dockerfile}, line {number}: {instruction} {rest}"
        if instruction == "FROM":
            bases += 1
            image = re.sub(r"^--platform=\S+\s+", "", rest)
            if bases > 1 or _PLAIN.fullmatch(image) is None:
                _refuse(where, "the sandbox has this machine's programs, not those of an image")
        elif instruction == "WORKDIR":
            workdir = _path(rest.strip("\"'"), workdir, where)
            steps.append(Step(number, workdir))
            folders |= _folders_above(f"{workdir}/x")
        elif instruction == "ENV":
            variables |= _variables(rest, where)
        elif instruction == "COPY":
            files = _copied(rest, context, workdir, where, hidden, folders)
            steps.append(Step(number, workdir, files=files))
            folders = folders.union(*map(_folders_above, files))
        elif instruction == "RUN":
            steps.append(Step(number, workdir, _command(rest, where), variables=dict(variables)))
        else:
            _refuse(where, "a sandbox builds FROM, WORKDIR, COPY, ENV and RUN alone")
    if not bases:
        raise TaskError(f"{dockerfile}: it has no line FROM")
    return Plan(tuple(steps), variables, workdir)


def _refuse(where: str, why: str) -> None:
    raise TaskError(f"{where}\n  cannot be built without an image: {why}. {_REMEDY}")


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Return instructions with their line's number; continued lines are joined, comments left out."""
    waiting, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        start = start if waiting else number
        if stripped.endswith("\\"):
            waiting += stripped[:-1] + " "
            continue
        instruction, _, rest = (waiting + stripped).strip().partition(" ")
        waiting = ""
        yield start, instruction.upper(), rest.strip()


def _path(path: str, workdir: str, where: str) -> str:
    if "$" in path:
        _refuse(where, "a variable in a path is not expanded")
    joined = os.path.normpath(os.path.join(workdir, path))
    if joined.lstrip("/").partition("/")[0] in RESERVED:
        _refuse(where, f"/{joined.lstrip('/').partition('/')[0]} is this machine's, and cannot be changed")
    return joined


def _variables(rest: str, where: str) -> dict[str, str]:
    if "$" in rest:
        _refuse(where, "a variable in a value is not expanded")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        _refuse(where, str(error))
    if words and "=" not in words[0]:
        return {words[0]: rest.partition(" ")[2].strip()}
    if not words or any("=" not in word for word in words):
        _refuse(where, "it is not NAME=VALUE")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _folders_above(path: str) -> set[str]:
    """Return the folders above a path from the root, without the first ``/``."""
    parts = path.lstrip("/").split("/")[:-1]
    return {"/".join(parts[:count]) for count in range(len(parts) + 1)}


def _copied(
    rest: str, context: Path, workdir: str, where: str, hidden: frozenset[str], folders: AbstractSet[str]
) -> dict[str, tuple[bytes, int]]:
    """Return the files of a COPY line, by path from the root; ``folders`` are there already."""
    if (context / ".dockerignore").is_file():
        _refuse(where, "the file .dockerignore is not read")
    mode = None
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        if (match := re.fullmatch(r"--chmod=([0-7]{3,4})", option)) is None:
            _refuse(where, f"{option.partition('=')[0]} is not supported: a sandbox has one user and no other stage")
        else:
            mode = int(match[1], 8) & 0o777
    words = _words(rest, where)
    if len(words) < 2 or _HEREDOC.match(words[0]):
        _refuse(where, "it does not name files and a place for them")
    *sources, target = words
    place = _path(target, workdir, where).lstrip("/")
    files: dict[str, tuple[bytes, int]] = {}
    for source in sources:
        matches = sorted(glob.glob(str(context / source.lstrip("/")), include_hidden=True))
        if not matches:
            _refuse(where, f"the task's folder has no {source}")
        for path in map(Path, matches):
            if not path.resolve().is_relative_to(context.resolve()):
                _refuse(where, f"{source} is outside of the task's folder")
            into = target.endswith("/") or place in folders or len(sources) + len(matches) > 2
            if path.is_dir():
                inner = {part: part.relative_to(path).as_posix() for part in sorted(path.rglob("*")) if part.is_file()}
            else:
                inner = {path: path.name if into else ""}
            if beyond := [part for part in inner if not part.resolve().is_relative_to(context.resolve())]:
                _refuse(where, f"{beyond[0].relative_to(context)} is a link out of the task's folder")
            if shown := [part for part in inner if part.relative_to(context).parts[0] in hidden]:
                _refuse(where, f"it copies {shown[0].relative_to(context)}, which the policy must not see")
            for part, name in inner.items():
                executable = 0o755 if os.access(part, os.X_OK) else 0o644
                files["/".join(filter(None, (place, name)))] = read_bytes(part, _FILE_BYTES), mode or executable
    return files


def _words(rest: str, where: str) -> list[str]:
    """Return the words of a line, which may be a JSON list of them."""
    try:
        words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
    except ValueError as error:
        _refuse(where, f"its words cannot be read: {error}")
    if not all(isinstance(word, str) for word in words):
        _refuse(where, "its list has something that is no text")
    return list(words)


def _command(rest: str, where: str) -> str:
    """Return the shell command of a RUN line all of whose programs work offline."""
    if rest.startswith("--"):
        _refuse(where, "options of RUN are not supported")
    if rest.startswith("["):
        rest = shlex.join(_words(rest, where))
    if _HEREDOC.search(rest) or "$(" in rest or "`" in rest:
        _refuse(where, "a command in it cannot be checked before it runs")
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        _refuse(where, str(error))
    begins = True
    for place, word in enumerate(words):
        if word in _OPERATORS or set(word) <= set(";&|()"):
            begins = True
        elif begins and re.fullmatch(r"[A-Za-z_]\w*=.*", word, re.DOTALL) is None:
            begins = False
            following = words[place + 1 : place + 8]
            if word not in _OFFLINE:
                _refuse(
                    where, f"{word} is not among the programs that run offline here ({', '.join(sorted(_OFFLINE))})"
                )
            if word in _ONLINE and any(bad in following or bad in " ".join(following[:2]) for bad in _ONLINE[word]):
                _refuse(where, f"{word} needs a network for it")
            if word == "xargs" and not {*following} & _OFFLINE:
                _refuse(where, "the program of xargs is not among those that run offline")
    return rest
