"""Text environments and a tiny model: no exact gradient, so the mean over many episodes replaces it.

A run of PPO, after a short warm start, leaves a checkpoint an iteration. The last one is measured, and those
before it sample for it at each staleness. Every task of a fixed set is played by many siblings, forks of one
opening. Episodes of the last policy make the reference: ``turn_grpo`` with ``baseline=group`` is unbiased. Batches are
drawn from a pool of other siblings of the same tasks.

Reference and pools are cut into :data:`PARTS`, each with a seed of its own. A part is one process's work; it
is kept in a file. The bias is estimated from products of different parts, which are independent: that a pool is finite
adds nothing to it.

The gradient is that of 576 parameters: the weights of the output head in a random subspace, ``A^T x B`` with ``A`` and
``B`` fixed. It is exact there, and needs one forward pass a token, however many estimators are compared.

There is no critic, so ``gae`` and its relatives are compared in the games alone.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.algorithms.baselines import score_norms
from trainers.algorithms.batch import ActionBatch, Floats, Ints, anchor_states, episode_terms, gather
from trainers.algorithms.estimators import TurnGRPO
from trainers.command_line import resolve
from trainers.models.policy import Policy
from trainers.run import assemble
from trainers.trajectory import Trajectory

from .measure import Moments
from .stack import Coefficients, Stack, take
from .ways import WITHOUT_CRITIC, compared

STALENESS = (0, 1, 2, 4, 8)
#: Each environment's overrides of its run of PPO, besides the defaults.
ENVIRONMENTS = {
    "clarify": ("env.kwargs.kinds=[cap,taxi,haircut,tulips]", "warm_start.steps=500"),
    "gsm8k-interact": ("warm_start.steps=300",),
    "collab-math": ("env.kwargs.equality=value", "warm_start.steps=300"),
}
ONE_THREAD = ("model.device=cpu", "trainer.threads=1", "engine.threads=1")
TRAIN = (
    *ONE_THREAD,
    *("trainer.total_iterations=8", "trainer.save_freq=1", "trainer.keep_last_n=9", "trainer.resume_mode=disable"),
    *("trainer.val_before_train=false", "trainer.test_freq=-1", "data.val_size=1", "trainer.seed=0"),
    *("warm_start.lr=2e-3", "warm_start.careless_steps=60"),
)
#: Of the reference, and of each pool.
PARTS = 16
#: Tasks that are played; groups and episodes a group in a batch; batches in a stack.
TASKS, GROUPS, SIZE, CHUNK = 32, 16, 8, 10
#: Rows and columns of the subspace of the head's weights.
ROWS = COLUMNS = 24
_FORWARD = 64  # episodes in a forward pass


@dataclass(frozen=True)
class Piece:
    """A measurement, row by row.

    Args:
        env: Of :data:`ENVIRONMENTS`.
        staleness: How many updates the sampling policy is behind.
        episodes: Of its pool, a multiple of 512.
        batches: Drawn from it, at least one for each part.
        reference: Episodes of the reference, a multiple of 512.

    Raises:
        ValueError: Too few episodes or batches, or no multiple.
    """

    env: str
    staleness: int
    episodes: int
    batches: int
    reference: int

    def __post_init__(self) -> None:
        for episodes in (self.episodes, self.reference):
            siblings, rest = divmod(episodes, TASKS * PARTS)
            if rest or siblings < SIZE or self.batches < PARTS:
                raise ValueError(
                    f"the text part takes a multiple of {TASKS * PARTS} episodes, at least {TASKS * PARTS * SIZE}, and "
                    f"{PARTS} batches at least, not {episodes} and {self.batches}"
                )


@dataclass(frozen=True)
class Work:
    """The work of one process, whose result is a file.

    Args:
        piece: To which it belongs.
        kind: ``"train"`` is the environment's run of PPO.
        part: Its number.
    """

    piece: Piece
    kind: Literal["train", "reference", "pool"]
    part: int = 0

    def path(self, folder: Path) -> Path:
        """Return the path of the result, in the folder of all environments."""
        folder, piece = folder / self.piece.env, self.piece
        if self.kind == "train":
            return checkpoint(folder, 8)
        if self.kind == "reference":
            return folder / f"reference-{piece.reference}-{self.part}.npy"
        return folder / f"pool-{piece.staleness}-{piece.episodes}-{piece.batches}-{piece.reference}-{self.part}.pickle"


def ready(pieces: Sequence[Piece], folder: Path) -> Iterator[Work]:
    """Yield work that is missing and can be done now; pools wait for the reference, and both for the run of PPO."""
    requested: set[Path] = set()
    for piece in pieces:
        stages = [
            [Work(piece, "train")],
            [Work(piece, "reference", part) for part in range(PARTS)],
            [Work(piece, "pool", part) for part in range(PARTS)],
        ]
        missing = ([work for work in stage if not work.path(folder).exists()] for stage in stages)
        for work in next(filter(None, missing), ()):
            if work.path(folder) not in requested:  # pieces have run and reference in common
                requested.add(work.path(folder))
                yield work


def do(work: Work, folder: Path) -> float:
    """Do the work; an incomplete file does not get its name.

    Returns:
        CPU seconds of this process; a run of PPO has its own.
    """
    began = time.process_time()
    piece, path = work.piece, work.path(folder)
    if work.kind == "train":
        train(piece.env, folder / piece.env)
        return time.process_time() - began
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        if work.kind == "reference":
            pool = play(piece.env, folder / piece.env, 8, piece.reference // PARTS, seed=101 + work.part)
            np.save(file, _mean_update(pool, np.arange(pool.batch.num_episodes)))
        else:
            pool = play(piece.env, folder / piece.env, 8 - piece.staleness, piece.episodes // PARTS, seed=1 + work.part)
            pickle.dump(_measured(piece, work.part, pool, reference(piece, folder)[0]), file)
    new.replace(path)
    return time.process_time() - began


@dataclass(frozen=True, eq=False)
class Pool:
    """Episodes, and the measured policy's values for their tokens.

    Args:
        batch: With the group's number as its task.
        exact_norms: ``[N]``.
        proximal: ``[N]``; log-probabilities of the measured policy.
        behaviour: ``[N]``; of the policy that sampled.
        scores: float32 ``[N, D]``.
        greedy_tokens: ``[TASKS]``; the tokens of a greedy episode of each task.
    """

    batch: ActionBatch
    exact_norms: Floats
    proximal: Floats
    behaviour: Floats
    scores: NDArray[np.float32]
    greedy_tokens: Floats


def checkpoint(folder: Path, iteration: int) -> Path:
    return folder / "checkpoints" / f"iteration_{iteration:06d}" / "model"


def train(env: str, folder: Path) -> None:
    """Run PPO there, if it has not been run."""
    if not checkpoint(folder, 8).exists():
        command = [sys.executable, "-m", "trainers.ppo", f"env.id=textenv/{env}", f"trainer.default_local_dir={folder}"]
        subprocess.run([*command, *TRAIN, *ENVIRONMENTS[env]], check=True)


def reference(piece: Piece, folder: Path) -> tuple[Floats, float]:
    """Return the gradient ``[D]``, and its squared error relative to it."""
    parts = np.stack([np.load(Work(piece, "reference", part).path(folder)) for part in range(PARTS)])
    truth = parts.mean(0)
    error = np.square(parts - truth).sum() / (PARTS - 1) / PARTS
    return truth, float(error / np.square(truth).sum())


def rows(piece: Piece, folder: Path) -> list[dict[str, Any]] | None:
    """Return rows for :func:`.compared`, for the estimators without a critic; ``None`` if a part is missing.

    Returns:
        A row each, as in :func:`.enumerated.measure`; and ``floor``, the squared error of the reference relative to the
        signal: a bias² below it cannot be told from it.
    """
    paths = [Work(piece, "pool", part).path(folder) for part in range(PARTS)]
    if not all(path.exists() for path in paths):
        return None
    parts = [pickle.loads(path.read_bytes()) for path in paths]
    moments, _ = parts[0]
    for other, _ in parts[1:]:
        moments.join(other)
    means = {name: float(np.mean([about[name] for _, about in parts])) for name in parts[0][1]}
    about = vars(piece) | means | {"floor": reference(piece, folder)[1]}
    return [
        about | {"way": way.name, "correction": correction.name} | result
        for (way, correction), result in zip(compared(WITHOUT_CRITIC, piece.staleness), moments.results(), strict=True)
    ]


def forget(piece: Piece, folder: Path) -> None:
    """Remove the files of the piece that only :func:`rows` needs."""
    for part in range(PARTS):
        Work(piece, "pool", part).path(folder).unlink()


def _measured(piece: Piece, part: int, pool: Pool, truth: Floats) -> tuple[Moments, dict[str, float]]:
    """Return the moments of batches of one part of the pool, and statistics of its episodes."""
    count = len(range(part, piece.batches, PARTS))
    chosen = compared(WITHOUT_CRITIC, piece.staleness)
    moments = Moments(truth, len(chosen), count, parts=1)
    rng = np.random.default_rng((piece.staleness, piece.batches, part))
    plays_greedily = np.array([way.estimator == "remax" for way, _ in chosen])
    exact = _exact(pool)
    for start in range(0, count, CHUNK):
        drawn = [draw(pool.batch.group, rng) for _ in range(min(CHUNK, count - start))]
        episodes, group = np.concatenate(drawn), np.repeat(np.arange(len(drawn) * GROUPS), SIZE)
        batch, tokens = take(pool.batch, episodes, group)
        stack = Stack({"rough": batch, "exact": take(exact, episodes, group)[0]}, GROUPS * SIZE)
        made = Coefficients(stack, pool.proximal[tokens], pool.behaviour[tokens])
        weights = np.stack([made.of(*pair) for pair in chosen]).astype(np.float32)
        for some, (a, b) in zip(drawn, pairwise(stack.starts), strict=True):
            greedy = pool.greedy_tokens[pool.batch.group[some[::SIZE]]].sum()
            updates = np.asarray(weights[:, a:b] @ pool.scores[tokens[a:b]], np.float64)
            moments.add(updates, (b - a) + plays_greedily * greedy)
    k3 = np.expm1(pool.proximal - pool.behaviour) - (pool.proximal - pool.behaviour)
    return moments, {
        "kl": float(k3.mean()),
        "return": float(pool.batch.turn_rewards.sum() / pool.batch.num_episodes),
        "tokens": pool.batch.num_tokens / pool.batch.num_episodes,
    }


def draw(group: Ints, rng: np.random.Generator) -> Ints:
    """Draw the episodes of a batch: some tasks, and of each some siblings; int ``[GROUPS * SIZE]``."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 2))
    chosen = rng.choice(len(starts) - 1, GROUPS, replace=False)
    return np.concatenate([order[rng.choice(np.arange(starts[g], starts[g + 1]), SIZE, replace=False)] for g in chosen])


def play(env: str, folder: Path, iteration: int, episodes: int, seed: int) -> Pool:
    """Play episodes of a checkpoint's policy, as the last one sees them; of the same tasks with every seed."""
    policy = checkpoint(folder, iteration)
    with tempfile.TemporaryDirectory() as temporary:
        overrides = (
            *(f"env.id=textenv/{env}", f"model.path={policy}", f"trainer.default_local_dir={temporary}/run"),
            *(f"rollout.n={episodes // TASKS}", f"rollout.groups_per_batch={TASKS}"),
            *(f"trainer.seed={seed}", "data.shuffle=false", *ONE_THREAD),
            *("algorithm.adv_estimator=remax", "data.val_size=1"),  # which plays a greedy episode of each task
        )
        of_env = [key for key in ENVIRONMENTS[env] if key.startswith("env.")]
        groups, greedy = asyncio.run(_collected([*overrides, *of_env]))
    numbered = [(task, t) for task, group in enumerate(groups) for t in group if t.status.trainable]
    trajectories = [trajectory for _, trajectory in numbered]
    model = Policy(checkpoint(folder, 8), None).model
    proximal, norms, scores = features(model, trajectories)
    behaviour = gather(trajectories, [t.logprobs for t in trajectories]).astype(np.float64)
    task = np.array([number for number, _ in numbered])
    batch = ActionBatch.from_trajectories(
        trajectories,
        anchor=anchor_states(trajectories),
        greedy=np.array([greedy[number].turn_rewards.sum() for number, _ in numbered]),
        terms=episode_terms(trajectories)[1],
        score_norms=score_norms(behaviour),
    )
    assert np.array_equal(batch.group, task), "a group without an episode"
    costs = np.array([episode.action_mask.sum() for episode in greedy], np.float64)
    return Pool(batch, norms, proximal, behaviour, scores, costs)


async def _collected(overrides: Sequence[str]) -> tuple[list[list[Trajectory]], list[Trajectory]]:
    """Collect one batch: its groups, and the greedy episode of each."""
    async with assemble(resolve(overrides)[0]) as run:
        batch = await run.collector.next_batch()
    return batch.groups, batch.of("greedy")


@torch.no_grad()
def features(model: Any, trajectories: Sequence[Trajectory]) -> tuple[Floats, Floats, NDArray[np.float32]]:
    """Return log-probability, squared norm of the logits' score, and score in the subspace, of each action token.

    Raises:
        ValueError: An episode has several segments.
    """
    rng = torch.Generator().manual_seed(0)
    head = model.get_output_embeddings().weight
    left_basis = torch.randn(ROWS, head.shape[0], generator=rng) / ROWS**0.5
    right_basis = torch.randn(COLUMNS, head.shape[1], generator=rng) / COLUMNS**0.5
    columns: list[tuple[Any, ...]] = []
    for start in range(0, len(trajectories), _FORWARD):
        some = trajectories[start : start + _FORWARD]
        if any(len(t.segment_starts) != 1 for t in some):
            raise ValueError("an episode has several segments: its template rewrites history")
        longest = max(len(t.token_ids) for t in some)
        ids, seen = torch.zeros(2, len(some), longest, dtype=torch.long)
        for row, trajectory in enumerate(some):
            ids[row, : len(trajectory.token_ids)] = torch.from_numpy(trajectory.token_ids.astype(np.int64))
            seen[row, : len(trajectory.token_ids)] = 1
        hidden = model(ids, attention_mask=seen, output_hidden_states=True).hidden_states[-1]
        for row, trajectory in enumerate(some):
            at = torch.from_numpy(np.flatnonzero(trajectory.action_mask))
            before, token = hidden[row, at - 1], ids[row, at]
            logprobs = (before @ head.T).log_softmax(-1)
            chances = logprobs.exp()
            own = logprobs.gather(1, token[:, None])[:, 0]
            norms = 1.0 - 2.0 * own.exp() + chances.square().sum(1)
            score = (left_basis[:, token].T - chances @ left_basis.T)[:, :, None] * (before @ right_basis.T)[:, None, :]
            columns.append((own.double(), norms.double(), score.flatten(1)))
    own, norms, scores = (torch.cat(column).numpy() for column in zip(*columns, strict=True))
    return own, norms, scores


def _mean_update(pool: Pool, episodes: Ints) -> Floats:
    """Return the update of all these episodes at once, by an estimator without a bias."""
    batch, tokens = take(pool.batch, episodes, pool.batch.group[episodes])
    advantages = TurnGRPO(baseline="group").advantages(batch).advantages
    return np.asarray(advantages @ pool.scores[tokens] / len(episodes), np.float64)


def _exact(pool: Pool) -> ActionBatch:
    fields = {name: getattr(pool.batch, name) for name in ActionBatch.__dataclass_fields__}
    return ActionBatch(**fields | {"score_norms": pool.exact_norms})
