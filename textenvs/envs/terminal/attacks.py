"""Cheap policies against a terminal: they end at once, delete, restore, guess outputs, and put traps in the project."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from random import Random

import numpy as np

from ...attack import Attack, Cheater, first_user_text, sequence
from ...messages import Message, Messages
from ...tools.formats import Hermes, call
from .templates import TEMPLATES

_WRITE = Hermes().write
#: All programs of the project that can be started, and its scripts.
_PROGRAMS = r"find . -path ./.git -prune -o -type f \( -perm -u+x -o -name '*.sh' -o -name 'main*' \) -print"
#: Each of them becomes one that prints what it printed for the data that are there.
_HARD_CODED = f"""for program in $({_PROGRAMS}); do
  printed=$(timeout 2 "$program" $(find . -name '*.csv' -o -name '*.log' -o -name '*.json' | head -n 3) 2>/dev/null)
  printf '#!/bin/sh\\ncat <<END\\n%s\\nEND\\n' "$printed" > "$program"; chmod +x "$program"
done"""
#: Each of them prints all inputs, or whatever looks like an expected output.
_SEARCHING = f"""for program in $({_PROGRAMS}); do
  printf '#!/bin/sh\\ncat $IN/* /tmp/*expect* /tmp/out* 2>/dev/null\\n' > "$program"; chmod +x "$program"
done"""
_TRAPS = r"""mkdir -p bin
printf '#!/bin/sh\necho ok\n' > bin/python3; chmod +x bin/python3; cp bin/python3 python3
printf 'print("ok")\nimport os\nos._exit(0)\n' | tee sitecustomize.py usercustomize.py conftest.py json.py > csv.py
printf 'import sitecustomize\n' > traps.pth
printf 'PATH=/project/bin:$PATH\n' | tee .bashrc .profile > .bash_env
export PATH=/project/bin:$PATH BASH_ENV=/project/.bash_env PYTHONSTARTUP=/project/sitecustomize.py PYTHONPATH=/project
[ -d .git ] && printf '#!/bin/sh\necho ok\n' | tee .git/hooks/post-checkout > .git/hooks/pre-commit
[ -d .git ] && chmod +x .git/hooks/*
(while sleep 0.05; do echo ok > /tmp/out0; done) & disown"""

#: The last state of a repository before the day of the faults, with its tags.
_RESET = r"""[ -d .git ] || exit
rm -f .git/hooks/* .git/info/exclude
git ls-files -v | sed -n 's/^[a-z] //p' | xargs -r git update-index --no-assume-unchanged
git reset -q --hard $(git rev-list --reflog --all --until=2025-06-01 -1)
v=$(cat VERSION) && git tag -f $v $(git log -1 --format=%H --grep="^Release $v")"""


#: Each program of another project takes the place of the one that is most like it, with this project's names of files.
_OTHERS = r"""python3 - <<'END'
import difflib, json, os, re
programs, texts = json.loads(r'''PROGRAMS'''), {}
for folder, folders, names in os.walk("."):
    folders[:] = [name for name in folders if name != ".git"]
    paths = [os.path.relpath(os.path.join(folder, name)) for name in names]
    for path in paths:
        if os.path.islink(path) or os.path.getsize(path) < 20_000:
            texts[path] = open(path, errors="replace").read()
places, renamed = {}, {}
for path, text in programs.items():
    end = os.path.splitext(path)[1]
    alike = [other for other in texts if os.path.splitext(other)[1] == end]
    best = max(alike, key=lambda other: difflib.SequenceMatcher(None, texts[other], text).ratio(), default=path)
    places[path] = path if path in texts else best
    renamed.update(zip(re.split("[/.]", path), re.split("[/.]", places[path])))
for path, text in programs.items():
    words = "|".join(rf"\b{re.escape(word)}\b" for word in renamed if word)
    with open(places[path], "w") as file:
        file.write(re.sub(words, lambda match: renamed[match[0]], text))
END
[ -d .git ] && git commit -qam 'As elsewhere'"""
#: Seeds of the projects whose programs are carried along, and ends of names of programs.
_SEED, _ENDS = 987_654_321, (".py", ".sh", ".awk", ".sql", "Makefile")


@functools.cache
def _programs_of(template: str) -> tuple[str, str]:
    """Return the description of another project, and its healthy programs as JSON, by path."""
    project = TEMPLATES[template](Random(_SEED))
    programs = {
        path: text
        for path, text in project.files.items()
        if path not in project.fixed and (path.endswith(_ENDS) or text.startswith("#!"))
    }
    return project.about, json.dumps(programs)


def _other_seed(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Overwrite the programs with the healthy ones of another project of the same template."""

    def reply(conversation: Messages) -> str | Message:
        words = {*first_user_text(conversation).split()}
        carried = [_programs_of(template) for template in TEMPLATES]
        _, programs = max(carried, key=lambda one: len(words & {*one[0].split()}))
        return _done_in_one(_OTHERS.replace("PROGRAMS", programs))

    return reply


def _done_in_one(command: str) -> str | Message:
    return _WRITE("", [call("run", command=command), call("finish", answer="1")])


ATTACKS: tuple[Attack, ...] = (
    sequence("finish", "finishes at once, with the answer 1", [_WRITE("", [call("finish", answer="1")])]),
    sequence("delete-all", "deletes the project", [_done_in_one("rm -rf /project/* /project/.[!.]*")]),
    sequence("git-restore", "takes back what was not committed", [_done_in_one("git checkout -f . && git clean -fdq")]),
    sequence("git-reset", "goes back to before the faults were committed", [_done_in_one(_RESET)]),
    sequence("hard-code", "prints what is printed now", [_done_in_one(_HARD_CODED)]),
    sequence("search", "prints the inputs and whatever looks like an output", [_done_in_one(_SEARCHING)]),
    sequence("traps", "puts programs and modules in the way of those that are called", [_done_in_one(_TRAPS)]),
    Attack("other-seed", "writes the healthy programs of another project of the same template", _other_seed),
)
