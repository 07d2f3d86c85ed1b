"""Tasks of the reasoning-gym package: each a function of (dataset, config, split, seed, index) alone.

Item ``i`` of a dataset with seed ``s`` is drawn by reasoning-gym from ``Random(s + i)``. So the parity of ``s + i``
decides the split: training and test tasks never share a draw, whatever their seeds. (Datasets with few different items
may still come to the same item by another draw.) The package is called inside
:func:`~textenvs.global_rng.contained`: some of its datasets draw from global generators, seed them, or print.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...global_rng import RandomState, contained
from ...messages import clean_text, user
from ...task import SPLITS, Split, Task, TaskError

log = logging.getLogger("textenvs")

#: Put after the question; the answer between these marks is what is scored.
INSTRUCTION = "End with <answer>your answer</answer>."

# Their items are drawn from sets of texts, whose order Python changes from process to process.
_SET_ORDER = frozenset({"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"})
#: Data sets whose scorer pays without the work, and how.
REFUSED = {"propositional_logic": "its scorer pays nearly any disjunction of the letters"}
# Where most answers are a copy of a word of the question: such items are left out, and others are drawn in their place.
_COPIES, _DRAWS = frozenset({"string_insertion"}), 1024
# Where a dataset without a right answer of its own keeps an example of one.
_EXAMPLES = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
}


def datasets() -> tuple[str, ...]:
    """Return the names of reasoning-gym's datasets without :data:`REFUSED`."""
    return tuple(sorted(set(_registered()) - set(REFUSED)))


@dataclass(frozen=True)
class ReasoningGymTasks:
    """A dataset of reasoning-gym as a :class:`~textenvs.task.TaskSet`.

    Args:
        dataset: Its name.
        config: Its options, as in JSON; ``composite`` takes ``{"datasets": [{"name", "weight", "config"}, ...]}``.
        size: How many tasks there are. Most datasets make an item when it is asked for; ``acre`` makes all at once.
        seed: Which sequence of items; seeds that are near each other share most of theirs, as in reasoning-gym.
        split: ``"train"`` or ``"test"``.
        instruction: Put after every question, on a line of its own; empty for none.
    """

    dataset: str = "chain_sum"
    config: Mapping[str, Any] = field(default_factory=dict)
    size: int = 10_000
    seed: int = 0
    split: Split = "train"
    instruction: str = INSTRUCTION

    def __post_init__(self) -> None:
        names = datasets()
        try:
            object.__setattr__(self, "config", json.loads(json.dumps(dict(self.config))))
        except (TypeError, ValueError) as error:
            raise ValueError(f"config must be a mapping as in JSON, not {self.config!r}: {error}") from error
        parts = [part.get("name") for part in self.config.get("datasets", ()) if isinstance(part, Mapping)]
        for name in (self.dataset, *parts):
            if why := REFUSED.get(str(name)):
                raise ValueError(f"reasoning-gym's {name!r} is refused: {why}")
        if self.dataset not in names:
            suggestion = _meant(self.dataset, names)
            raise ValueError(f"reasoning-gym has no dataset {self.dataset!r}.{suggestion} It has {', '.join(names)}")
        self.opened()
        if self.dataset in _SET_ORDER and os.environ.get("PYTHONHASHSEED", "random") == "random":
            log.warning(
                "reasoning-gym's %r draws from sets: its items are the same in another process only if PYTHONHASHSEED "
                "is set, for example to 0, before Python starts",
                self.dataset,
            )

    @property
    def name(self) -> str:
        return f"reasoning-gym's {self.dataset} ({self.split}, seed {self.seed}, {self.size} tasks)"

    def opened(self) -> Any:
        return _open(*self.opening())

    def opening(self) -> tuple[str, str, int, int]:
        """Return the dataset's name, its options as JSON text, its seed and its number of items."""
        parts = (part.get("name") for part in self.config.get("datasets", ()) if isinstance(part, Mapping))
        draws = 1 if _COPIES.isdisjoint((self.dataset, *parts)) else _DRAWS
        return self.dataset, json.dumps(self.config, sort_keys=True), self.seed, 2 * self.size * draws

    def __getitem__(self, index: int) -> Task:
        """Return the task at ``index``; a TaskError where the dataset could not make this item: some give up."""
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: index {index} is outside its {self.size} tasks")
        item = 2 * int(index) + (self.seed + SPLITS.index(self.split)) % 2
        dataset = self.opened()
        try:
            for item in range(item, self.opening()[-1], 2 * self.size):  # noqa: B020  (the same split)
                with contained(RandomState.seeded(self.seed + item)):
                    entry = dataset[item]
                if not _is_copy(entry):
                    break
            else:
                raise ValueError("the right answer is a copy of a word of the question in all items that were drawn")
        except Exception as error:
            raise TaskError(
                f"{self.name}: task {index} could not be made ({type(error).__name__}: {error}); "
                "leave it out, or make it easier with config"
            ) from error
        question, metadata = str(entry["question"]), entry["metadata"]
        return Task(
            key=f"{self.dataset}/{self.split}/{self.seed}/{int(index)}",
            data_source=f"reasoning_gym/{self.dataset}",
            prompt=(user(clean_text(f"{question}\n{self.instruction}" if self.instruction else question)),),
            ground_truth=right_answer(entry),
            ability=dataset.category,
            extra={"question": question, "answer": entry["answer"], "metadata": metadata, "item": item},
        )


def _is_copy(entry: Mapping[str, Any]) -> bool:
    if entry["metadata"].get("source_dataset") not in _COPIES:
        return False
    return str(entry["answer"]) in str(entry["question"]).split()


def right_answer(entry: Mapping[str, Any]) -> str | None:
    if entry["answer"] is not None:
        return str(entry["answer"])
    example = _EXAMPLES.get(entry["metadata"].get("source_dataset", ""))
    return None if example is None else str(example(entry["metadata"]))


def entry_of(task: Task, dataset: str) -> dict[str, Any]:
    """Return the item that a task was made from, in the form of reasoning-gym's scorers."""
    metadata = task.extra.get("metadata")
    if not isinstance(metadata, Mapping) or "source_dataset" not in metadata:
        raise TaskError(f"task {task.key}: extra_info.metadata must be reasoning-gym's, with its 'source_dataset'")
    if dataset not in (metadata["source_dataset"], "composite"):
        raise TaskError(f"task {task.key} is of the dataset {metadata['source_dataset']!r}, not of {dataset!r}")
    answer = task.extra.get("answer", task.ground_truth)
    return {"question": task.extra.get("question", ""), "answer": answer, "metadata": dict(metadata)}


@functools.lru_cache(maxsize=8)
def _open(name: str, config: str, seed: int, size: int) -> Any:
    import reasoning_gym

    options = json.loads(config)
    option_names = {option.name for option in dataclasses.fields(_registered()[name][1])} - {"size", "seed"}
    if unknown := sorted(set(options) - option_names):
        suggestion = _meant(unknown[0], option_names)
        raise ValueError(
            f"config: {name!r} has no option {unknown[0]!r}.{suggestion} It has {', '.join(sorted(option_names))}"
        )
    try:
        if name == "composite":
            from reasoning_gym.composite import DatasetSpec

            options = {"datasets": [DatasetSpec(**part) for part in options.get("datasets", ())]}
        with contained(RandomState.seeded(seed)):
            return reasoning_gym.create_dataset(name, seed=seed, size=size, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"reasoning-gym's {name!r} refuses config={json.loads(config)} with {size} items "
            f"(train and test, so twice the option size): {error}"
        ) from error


def _meant(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


@functools.cache
def _registered() -> Mapping[str, Any]:
    try:
        with contained(RandomState.seeded(0)):  # importing it draws from the global generator
            import reasoning_gym.factory
    except ImportError as error:
        raise ImportError("this needs reasoning-gym: pip install 'textenvs[reasoning-gym]'") from error
    return reasoning_gym.factory.DATASETS
