"""The part of docker's command line that folder tasks use, with images and containers as folders of ``FAKE_DOCKER``.

A command runs in new namespaces of users, mounts and processes, in the container's folder as its root, with the
system's ``/usr`` below a layer of its own. So processes end with the command that started them: there is no daemon.
Users are noted and not kept. The file ``faults`` has the names of calls that fail or
hang; ``calls`` has a line for each call.
"""

import json
import os
import shutil
import stat
import sys
import tarfile
import time
from pathlib import Path

HOME = Path(os.environ["FAKE_DOCKER"])
IMAGES, CONTAINERS = HOME / "images", HOME / "containers"
#: Folders of a container that are no part of what it shows.
OWN = (".layer", ".work")
MOUNTS = ("usr", "dev", "proc", "bin", "sbin", "lib", "lib64")
#: Makes the root and starts the command; a machine whose kernel allows no layer shows /usr as it is.
ENTER = """
root=$1; where=$2; shift 2
mount --rbind /usr "$root/usr" && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" 2>/dev/null
mount -t overlay overlay -o "lowerdir=/usr,upperdir=$root/.layer,workdir=$root/.work" "$root/usr" 2>/dev/null
exec chroot "$root" /usr/bin/env -i "$@"
"""


def fail(message: str, code: int = 1) -> None:
    print(f"Error response from daemon: {message}", file=sys.stderr)
    sys.exit(code)


def options_of(arguments: list[str], with_value: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the options at the beginning, by name, and the other arguments."""
    options: dict[str, list[str]] = {}
    arguments = list(arguments)
    while arguments and arguments[0].startswith("-") and arguments[0] != "-":
        name = arguments.pop(0)
        options.setdefault(name, []).append(arguments.pop(0) if name in with_value.split() else "")
    return options, arguments


def image_folder(name: str) -> Path:
    return IMAGES / name.replace("/", "+").replace(":", "@")


def config_of(folder: Path) -> dict:
    if not (folder / "config").is_file():
        fail(f"No such container or image: {folder.name}")
    return json.loads((folder / "config").read_text())


def enter(folder: Path, variables: dict[str, str], where: str, argv: list[str]) -> list[str]:
    root = folder / "root"
    pairs = [f"{name}={value}" for name, value in variables.items()]
    inside = ["sh", "-c", 'cd "$0" && exec "$@"', where, *argv]
    namespaces = ["unshare", "-r", "-m", "-p", "-f", "--kill-child"]
    return [*namespaces, "sh", "-c", ENTER, "sh", str(root), where, *pairs, *inside]


def base_variables() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


def build(arguments: list[str]) -> None:
    options, (context,) = options_of(arguments, "-t -f")
    folder = image_folder(options["-t"][0])
    root = folder / "root"
    for name in ("app", "dev", "etc", "home", "proc", "root", "tmp", "usr", "var", *OWN):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    shutil.copy("/etc/passwd", root / "etc" / "passwd")
    if Path("/etc/alternatives").is_dir():
        shutil.copytree("/etc/alternatives", root / "etc" / "alternatives", symlinks=True)
    workdir, variables = "/", base_variables()
    text = Path(options["-f"][0]).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "WORKDIR":
            workdir = os.path.join(workdir, rest)
            (root / workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction == "ENV":
            name, _, value = rest.partition("=")
            variables[name] = value
        elif instruction == "COPY":
            source, target = rest.split()
            place = root / os.path.normpath(os.path.join(workdir, target)).lstrip("/")
            if (path := Path(context, source)).is_dir():
                shutil.copytree(path, place, dirs_exist_ok=True)
            else:
                shutil.copy(path, place)
        elif instruction == "RUN" and os.spawnvp(
            os.P_WAIT, "unshare", enter(folder, variables, workdir, ["sh", "-c", rest])
        ):
            fail(f"process {rest!r} did not complete successfully")
    (folder / "config").write_text(json.dumps({"workdir": workdir, "variables": variables}))


def run(arguments: list[str]) -> None:
    options, (image, *argv) = options_of(arguments, "--name --network --memory --cpus --pids-limit -e")
    source, folder = image_folder(image), CONTAINERS / options["--name"][0]
    config = config_of(source)
    shutil.copytree(source / "root", folder / "root", symlinks=True)
    variables = dict(pair.split("=", 1) for pair in options.get("-e", ()))
    network = options.get("--network", ["bridge"])[0]
    state = {"image": str(source), "running": True, "argv": argv, "network": network}
    state |= {"workdir": config["workdir"], "variables": config["variables"] | variables}
    (folder / "config").write_text(json.dumps(state))
    print(folder.name)


def execute(arguments: list[str]) -> None:
    options, (name, *argv) = options_of(arguments, "-u -e -w")
    folder = CONTAINERS / name
    config = config_of(folder)
    if not config["running"]:
        fail(f"container {name} is not running")
    variables = config["variables"] | dict(pair.split("=", 1) for pair in options.get("-e", ()))
    if "-i" not in options:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    where = config["workdir"] if (folder / "root" / config["workdir"].lstrip("/")).is_dir() else "/"
    command = enter(folder, variables, where, argv)
    os.execvp(command[0], command)


def place_of(text: str) -> Path:
    name, _, path = text.partition(":")
    config_of(CONTAINERS / name)
    return CONTAINERS / name / "root" / path.lstrip("/")


def copy(arguments: list[str]) -> None:
    _, (source, target) = options_of(arguments, "")
    if source == "-":
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
            archive.extractall(place_of(target), filter="fully_trusted")
        return
    place = place_of(source)
    if not os.path.lexists(place):
        fail(f"Could not find the file {place}")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(place, arcname=place.name, filter=lambda entry: None if entry.isdev() else entry)


def entries_of(root: Path) -> dict[str, tuple]:
    """Return what is below a root, by path: kind, permissions, and content of files and links."""
    entries = {}
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name not in (*OWN, *MOUNTS)]
        for name in (*folders, *names):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(mode) else None
            entries["/" + str(path.relative_to(root))] = (stat.S_IFMT(mode), stat.S_IMODE(mode), content)
    layer = root / ".layer"
    return entries | {"/usr/" + str(path.relative_to(layer)): (1, 1, None) for path in layer.rglob("*")}


def diff(arguments: list[str]) -> None:
    folder = CONTAINERS / arguments[0]
    before, after = entries_of(Path(config_of(folder)["image"]) / "root"), entries_of(folder / "root")
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            print("A" if path not in before else "D" if path not in after else "C", path)


def change(name: str, running: bool) -> None:
    config = config_of(CONTAINERS / name)
    if not running and not config["running"]:
        fail(f"container {name} is not running")
    (CONTAINERS / name / "config").write_text(json.dumps(config | {"running": running}))


def inspect(arguments: list[str]) -> None:
    options, (name,) = options_of(arguments, "-f")
    config = config_of(CONTAINERS / name)
    shown = {"{{.Config.WorkingDir}}": config["workdir"], "{{.State.Running}}": str(config["running"]).lower()}
    print(shown[options["-f"][0]] if "-f" in options else json.dumps(config))


def main() -> None:
    command, *arguments = sys.argv[1:]
    IMAGES.mkdir(parents=True, exist_ok=True)
    CONTAINERS.mkdir(exist_ok=True)
    with (HOME / "calls").open("a") as calls:
        calls.write(json.dumps([command, *(text[:300] for text in arguments)]) + "\n")
    faults = (HOME / "faults").read_text().split() if (HOME / "faults").is_file() else []
    if command in faults:
        fail(f"the fake's fault of {command}")
    if f"{command}-hangs" in faults:
        time.sleep(600)
    if command == "info":
        print("Server: fake")
    elif command == "image":
        config_of(image_folder(arguments[1]))
    elif command == "pull":
        fail(f"no registry has {arguments[0]}")
    elif command in ("restart", "start", "kill"):
        change(arguments[-1], command != "kill")
    elif command == "rm":
        for name in arguments[2:]:
            shutil.rmtree(CONTAINERS / name, ignore_errors=True)
    elif command == "ps":
        print(*sorted(path.name for path in CONTAINERS.iterdir()), sep="\n")
    else:
        {"build": build, "run": run, "exec": execute, "cp": copy, "diff": diff, "inspect": inspect}[command](arguments)


main()
