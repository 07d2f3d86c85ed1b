"""``textenvs new``: an environment to start from, with a test that passes."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Any

from ..evaluate.records import write_text
from .common import CommandError

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TAKEN = {*sys.stdlib_module_names, "gymnasium", "numpy", "pytest", "textenvs", "trainers"}

ENVIRONMENT = Template('''\
"""$title: spell a word backwards, told after each attempt how many letters are in place."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

import gymnasium
import numpy as np
from textenvs import EpisodeState, Message, Task, TextEnv, Turn
from textenvs.messages import user, visible_text

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Words:
    """The task set: endless words of random letters. A task is a function of its index, and of one split only."""

    length: int = 5
    split: str = "train"
    seed: int = 0
    size: int | None = None  # endless; a finite set says how many tasks it has

    @property
    def name(self) -> str:
        """Which tasks these are, in one line."""
        return f"words of {self.length} letters ({self.split}, seed {self.seed})"

    def __getitem__(self, index: int) -> Task:
        """The task at ``index``."""
        rng = random.Random(f"{self.split} {self.seed} {index}")
        while True:
            word = "".join(rng.choices(string.ascii_lowercase, k=self.length))
            held_out = sum(map(ord, word)) % 8 == 0  # one word in eight is a test word, whatever the seed
            if held_out == (self.split == "test"):
                break
        return Task(
            key=f"{self.split}/{self.seed}/{index}",
            data_source="$id",
            prompt=(user(f"Spell {word} backwards. Answer with the word alone."),),
            ground_truth=word[::-1],
        )


@dataclass
class $state(EpisodeState):
    """All that changes during an episode; that is what makes snapshots and forks work. Every field has a default."""

    best: int = 0  # the most letters that were in place so far


class $cls(TextEnv[$state]):
    """Spell a word backwards.

    Reward terms of every turn: ``correct`` for the word, ``extra_turn`` for every turn after the first.

    Args:
        length: Letters of a word, at least 2.
        split: ``"train"`` or ``"test"``.
        seed: Which endless sequence of words. (Episodes are seeded by ``reset``.)
        max_assistant_turns: How many attempts there are.
        render_mode: As in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: An option outside the above.
    """

    state_type = $state

    def __init__(
        self,
        *,
        length: int = 5,
        split: str = "train",
        seed: int = 0,
        max_assistant_turns: int | None = 3,
        render_mode: str | None = None,
    ) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 2:
            raise ValueError(f"length must be an integer of at least 2, not {length!r}")
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        super().__init__(Words(length, split, seed), max_assistant_turns=max_assistant_turns, render_mode=render_mode)

    def respond(self, reply: Message) -> Turn:
        """Judge a reply, and answer it. A reply in the wrong form is something to answer, never an error."""
        truth, attempt = self._truth(), visible_text(reply).lower()
        solved = attempt == truth
        in_place = sum(given == right for given, right in zip(attempt, truth, strict=False))
        self.state.best = max(self.state.best, in_place)
        return Turn(
            messages=() if solved else (user(f"No: {in_place} of {len(truth)} letters are in place. Try again."),),
            terminated=solved,
            stop="solved" if solved else None,
            terms={"correct": float(solved), "extra_turn": -0.1 if self.state.assistant_turns > 1 else 0.0},
            metrics={"best": self.state.best},
        )

    def demonstration(self, rng: np.random.Generator) -> str:
        """The scripted expert: the best reply in this state."""
        return self._truth()

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Somebody careless: the right form, two letters swapped."""
        letters = list(self._truth())
        first, second = rng.choice(len(letters), size=2, replace=False)
        letters[first], letters[second] = letters[second], letters[first]
        return "".join(letters)

    def _truth(self) -> str:
        task = self.state.task
        assert task is not None
        return str(task.ground_truth)


# Importing this module registers the environment. No max_episode_steps: TextEnv keeps its own limits, because the last
# reply has to be judged before the episode is cut.
if "$id" not in gymnasium.registry:
    gymnasium.register("$id", entry_point=f"{__name__}:$cls")
''')

TEST = Template('''\
"""What must hold of $title; add the properties of your own task."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from textenvs.evaluate.baselines import play_script
from textenvs.evaluate.contract import check_contract

from $module import $cls, Words

REPLIES = ("", "no", "\\x00", "<think>", "a" * 10_000, "ABC", "lone \\ud800")


def test_gymnasium_accepts_it(capsys):
    check_env(gymnasium.make("$id").unwrapped)


def test_the_expert_earns_the_maximum_and_random_replies_next_to_nothing():
    expert = play_script($cls, "expert", 100)
    assert all(record.success and record.total == 1.0 for record in expert)
    assert np.mean([record.total for record in play_script($cls, "random", 100)]) < 0.1


def test_failing_first_never_pays():
    env = $cls()
    env.reset(seed=0)
    rewards = [env.step(reply)[1] for reply in ("wrong", env.demonstration(np.random.default_rng(0)))]
    assert sum(rewards) < 1.0


@pytest.mark.parametrize("reply", REPLIES)
def test_no_reply_makes_it_raise_or_pays(reply):
    env = $cls()
    env.reset(seed=0)
    while not env.state.done:
        assert env.step(reply)[1] <= 0


def test_it_keeps_the_contract():
    """Equal seeds give equal episodes, copies of one continue alike, and every turn has the same terms."""
    check_contract($cls)


def test_train_and_test_have_no_word_in_common():
    train, test = ({Words(2, split)[i].ground_truth for i in range(2000)} for split in ("train", "test"))
    assert train
    assert test
    assert not train & test


@pytest.mark.parametrize("options", [{"length": 1}, {"length": True}, {"split": "dev"}, {"max_assistant_turns": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        $cls(**options)
''')

NEXT = Template('''\
wrote $environment and $test

try it:    textenvs play $module:$id
           textenvs describe $module:$id
test it:   python -m pytest $test
use it:    import $module; env = gymnasium.make("$id")
to have it in textenvs itself: move it to textenvs/envs/, and add to envs_registry.yaml
  textenv/$id:
    version: 1
    entry_point: "textenvs.envs.$module:$cls"
    description: "One line for people."''')


def add(commands: Any) -> argparse.ArgumentParser:
    """Declare the command."""
    parser = commands.add_parser(
        "new",
        help="an environment of your own to start from",
        description="Write a small environment that works, and its test, to change into yours.",
    )
    parser.add_argument("name", help="for example word-chain")
    parser.add_argument("-o", "--out", default=".", metavar="DIR", help="the folder (default: this one)")
    parser.set_defaults(run=run)
    return parser  # type: ignore[no-any-return]


def run(arguments: argparse.Namespace) -> int:
    """Write the two files."""
    name, folder = arguments.name, Path(arguments.out).expanduser()
    if not _NAME.fullmatch(name):
        raise CommandError(f"{name!r} is no name: lower-case letters and digits, with hyphens, as in word-chain", 2)
    module = name.replace("-", "_")
    if module in _TAKEN or keyword.iskeyword(module):
        raise CommandError(f"{name!r}: a file {module}.py would hide the Python module of that name; take another", 2)
    words = re.split("[-_]", name)
    cls = "".join(word.capitalize() for word in words)
    names = {
        "title": " ".join(words).capitalize(),
        "id": "-".join(words),
        "module": module,
        "cls": cls,
        "state": f"{cls}State",
        "environment": str(folder / f"{module}.py"),
        "test": str(folder / f"test_{module}.py"),
    }
    for path in (names["environment"], names["test"]):
        if Path(path).exists():
            raise CommandError(f"{path} is there already; take another name or another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(Path(names["environment"]), ENVIRONMENT.substitute(names))
        write_text(Path(names["test"]), TEST.substitute(names))
    except OSError as error:
        raise CommandError(f"{folder}: {error}") from error
    print(NEXT.substitute(names))
    return 0
