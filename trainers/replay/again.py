"""Recompute each stage of an iteration."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textenvs.records import Episode as Recorded
from textenvs.records import RecordedRun

from ..builders import collection
from ..builders.environments import backend_of
from ..builders.environments import played as environments_played
from ..builders.policy import tokenizer_of
from ..checkpoints import CheckpointError, load
from ..command_line import load_config
from ..config import PPOConfig
from ..config.model import ModelSection
from ..engines.base import Generation
from ..models.policy import end_token_ids_of, resolve_device
from ..report.episodes import Explained
from ..rollout.batch import BatchEpisode, roots_and_forks
from ..rollout.environments import Backend
from ..rollout.forks import ForkPoint
from ..rollout.play import Episode, Player, sampling_of
from ..rollout.recorded import RecordedEngine, context_of
from ..rollout.renderer import Renderer
from ..rollout.rewards import Score
from ..rollout.seeds import derive_seed
from ..run import Run, assemble, warm_start_enabled
from ..trajectory import Trajectory, action_offsets, from_table, read_parquet, to_table
from ..update import Update, advantage_columns
from .compare import RELATIVE, STAGES, Comparison, Difference, ReplayError, Report

#: Log-probabilities that are further apart differ. The embedded engine's last bits depend on which requests it computed
#: together, a served engine's and those of several ranks, or in bfloat16, also on kernels.
_NEAR, _SERVED = 1e-5, 5e-2


# ------------------------------------------------------------------------------------------------ environments, rewards


async def play_again(
    config: PPOConfig,
    tokenizer: Any,
    ends: Sequence[int],
    episodes: Sequence[Trajectory],
    scores: Mapping[str, Score],
    partial_rewards: bool,
    components: Mapping[str, str],
) -> tuple[int, list[Difference]]:
    """Step the environments with the recorded replies; return the number of episodes, and their first differences.

    ``ends`` are the model's own tokens that end a reply, in addition to the tokenizer's. ``episodes`` are roots and
    their forks. ``scores`` are the delayed rewards that can be recomputed; with ``partial_rewards`` others cannot, and
    their terms are not compared. ``components`` names each group's component of a mixture.
    """
    engine = RecordedEngine(episodes, config.engine.max_context)
    template, observed = config.data.chat_template_kwargs, config.actor.observed_roles
    renderer = Renderer(tokenizer, template_kwargs=template, stop_token_ids=ends, observed_roles=observed)
    player = Player(engine, renderer, config.rollout, scores, reward_timeout=None)
    forked = {(episode.forked_from, episode.forked_turn) for episode in episodes if episode.forked_from}
    points: dict[tuple[str, int], ForkPoint] = {}
    differences: dict[str, Difference | None] = {}

    async def play(recorded: Trajectory) -> None:
        begin = points.get((recorded.forked_from, recorded.forked_turn)) if recorded.forked_from else None
        if recorded.env_seed is None or recorded.task_index is None or (recorded.forked_from and begin is None):
            return
        fork_points: list[ForkPoint] = []
        again = Episode(
            episode_id=recorded.episode_id,
            group_id=recorded.group_id,
            options={"task_index": recorded.task_index},
            env_seed=recorded.env_seed,
            sampling=sampling_of(config.rollout),
            sampling_seed=recorded.sampling_seed or 0,
            begin=begin,
            forks=lambda turn: int((recorded.episode_id, turn) in forked),
        )
        backend = backends[components[recorded.group_id] if config.env.mixture else ""]
        played = await player.play(backend, again, points=fork_points)
        points.update({(recorded.episode_id, point.turn): point for point in fork_points})
        (played,) = from_table(to_table([played]))  # as it would have been read
        differences[recorded.episode_id] = _played(
            recorded, played, engine.problems.get(recorded.episode_id), partial_rewards
        )

    backends: dict[str, Backend] = {}
    async with contextlib.AsyncExitStack() as stack:
        for component in environments_played(config):
            beside = next(iter(backends.values()), None)
            opened = backend_of(config, component, validation=False, local=True, beside=beside)
            backends[component.name] = await stack.enter_async_context(opened)
        for forks in (False, True):
            await asyncio.gather(*(play(episode) for episode in episodes if bool(episode.forked_from) == forks))
    first = (differences.get(episode.episode_id) for episode in episodes)
    return len(differences), [difference for difference in first if difference is not None]


def _played(then: Trajectory, now: Trajectory, diverged_turn: int | None, partial_rewards: bool) -> Difference | None:
    """Return an episode's first difference, by turn: messages, then the reward of the turn before them."""
    candidates: list[tuple[float, Difference]] = []

    def differs(turn: float, stage: str, what: str, expected: Any, got: Any) -> None:
        place = None if turn < 0 else int(turn)
        candidates.append((turn, Difference(stage, what, expected, got, then.episode_id, place)))

    spoken = -1  # the turn that a message answers
    for old, new in itertools.zip_longest(then.messages, now.messages):
        if diverged_turn is not None and new is None:
            break  # it ended there
        if old != new:
            differs(spoken, "environment", "the message", old and old["content"], new and new["content"])
            if old and new and old["content"] == new["content"]:
                candidates[-1] = (spoken, replace(candidates[-1][1], expected=dict(old), got=dict(new)))
            break
        spoken += old["role"] == "assistant"
    if diverged_turn is not None and not candidates:
        expected = context_of(then, diverged_turn).tolist() if diverged_turn < then.num_turns else "the end"
        differs(diverged_turn - 1, "environment", "what the policy was shown", expected, "something else")
    for turn, (old_reward, new_reward) in enumerate(zip(then.turn_rewards, now.turn_rewards, strict=False)):
        old_terms, new_terms = dict(then.turn_terms[turn]), dict(now.turn_terms[turn])
        if partial_rewards:
            old_terms = {name: value for name, value in old_terms.items() if name in new_terms}
        if old_terms != new_terms:
            name = next(n for n in [*old_terms, *new_terms] if old_terms.get(n) != new_terms.get(n))
            differs(turn + 0.5, "reward", f"the term {name!r}", old_terms.get(name), new_terms.get(name))
        elif not partial_rewards and old_reward != new_reward:
            differs(turn + 0.5, "reward", "the reward", float(old_reward), float(new_reward))
    if diverged_turn is None:
        # A judge may have named them, and older files do not have them.
        moves = ("turn_moves",) if then.turn_moves and not partial_rewards else ()
        for name in ("status", "stop", "terminated", "truncated", "num_turns", "metrics", *moves, "error"):
            old_value, new_value = (getattr(trajectory, name) for trajectory in (then, now))
            if old_value != new_value:
                got = f"{new_value} ({now.error})" if name == "status" and now.error else new_value
                differs(then.num_turns, "environment", name, str(old_value), str(got))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


@contextlib.contextmanager
def scores_of(config: PPOConfig) -> Iterator[tuple[dict[str, Score], list[str]]]:
    """Yield the delayed rewards that can be recomputed, and the names of those that cannot."""
    with contextlib.ExitStack() as stack:
        scores = collection.own_scores(config, stack)
        unavailable = ["multiturn_reward"] if config.multiturn_reward.enable else []
        if config.reward_models:
            unavailable.append("reward_model")
        yield scores, unavailable


# ------------------------------------------------------------------------------------------------ sampling


async def sample_again(run: Run, episodes: Sequence[Trajectory], near: float) -> tuple[str, Difference | None]:
    """Sample each reply after its recorded context; expect equal tokens, and log-probabilities at most ``near`` apart.

    Returns a summary of what was computed, and the first difference.
    """
    resampling = _Resampling(run, episodes, near)
    differences = await asyncio.gather(*map(resampling.episode, episodes))
    return resampling.summary(), next((difference for difference in differences if difference is not None), None)


class _Resampling:
    """Samples recorded replies with a run's engine, and counts what it compared."""

    def __init__(self, run: Run, episodes: Sequence[Trajectory], near: float) -> None:
        self._run, self._near = run, near
        self._openings = {t.episode_id: len(context_of(t, 0)) for t in episodes if t.num_turns}
        self._places = asyncio.Semaphore(1 if run.config.rollout.max_running == 1 else 2**31)
        self._tokens = self._skipped_tokens = self._changed_replies = 0
        self._farthest = 0.0

    async def episode(self, episode: Trajectory) -> Difference | None:
        """Sample the replies of an episode; return the first difference."""
        differences = [await self._turn(episode, turn) for turn in range(episode.num_turns)]
        await self._run.engine.release(f"replay/{episode.episode_id}")
        return next((difference for difference in differences if difference is not None), None)

    async def _turn(self, episode: Trajectory, turn: int) -> Difference | None:
        where = np.flatnonzero(episode.turn_id == turn)
        if (episode.weight_version[where] != self._run.engine.version).any() or episode.sampling_seed is None:
            self._skipped_tokens += len(where)
            return None
        context = context_of(episode, turn).tolist()
        seed = derive_seed(episode.sampling_seed, episode.forked_turn + turn)
        room = self._room(episode, len(context))
        sampling = sampling_of(self._run.config.rollout).of_reply(room, self._run.stop_token_ids, seed)
        async with self._places:
            reply = await self._run.engine.generate(context, sampling, f"replay/{episode.episode_id}")
        return self._compare(episode, turn, where, reply)

    def _room(self, episode: Trajectory, context: int) -> int:
        """Return the most tokens that a reply could have had after a context of so many."""
        rollout, limit = self._run.config.rollout, self._run.engine.max_context
        opening = self._openings.get(episode.forked_from or episode.episode_id)
        if rollout.max_response_tokens is not None and opening is not None:
            limit = min(limit, opening + rollout.max_response_tokens)
        return limit - context

    def _compare(
        self, episode: Trajectory, turn: int, where: NDArray[np.int64], reply: Generation
    ) -> Difference | None:
        self._tokens += len(where)
        then, now = episode.token_ids[where].tolist(), reply.token_ids.tolist()
        if then != now:
            at = next(n for n, pair in enumerate(itertools.zip_longest(then, now)) if pair[0] != pair[1])
            self._changed_replies += 1
            if self._run.config.engine.name != "torch":  # its kernels may choose another token
                return None
            expected, got = (self._run.tokenizer.decode(ids[at : at + 1]) or None for ids in (then, now))
            place = episode.episode_id, turn, int(where[0]) + at
            return Difference("sampling", "the sampled token", expected, got, *place)
        logprobs = reply.policy_logprobs
        apart = np.abs(logprobs.astype(np.float64) - episode.logprobs[where])
        self._farthest = max(self._farthest, float(apart.max()))
        if not (far := apart > self._near).any():
            return None
        at = int(np.argmax(far))
        values = float(episode.logprobs[where[at]]), float(logprobs[at])
        return Difference("sampling", "its log-probability", *values, episode.episode_id, turn, int(where[at]))

    def summary(self) -> str:
        farthest = f"at most {self._farthest:.2g} apart" if self._farthest else "to the last bit"
        summary = f"{self._tokens} tokens sampled again: the same, log-probabilities {farthest}"
        if self._changed_replies:
            summary = f"{self._tokens} tokens sampled again: {self._changed_replies} replies differ"
            summary += ", as a served engine's may"
        if self._skipped_tokens:
            summary += f"; {self._skipped_tokens} tokens are of other weights than the checkpoint's, or without a seed"
            summary += ": left out"
        return summary


# ------------------------------------------------------------------------------------------------ credit, learning

_ADVANTAGE = ("importance_weight", "return", "baseline", "advantage")
_STEPS = {"learner_logprobs": "log-probability", "entropy": "log-probability", "ratio": "loss", "clipped": "loss",
          "loss_weight": "loss", "loss": "loss"}  # fmt: skip
_STEP_NUMBERS = {"actor/loss": "loss", "critic/loss": "loss", "actor/grad_norm": "gradient",
                 "critic/grad_norm": "gradient"}  # fmt: skip


def moved_again(
    config: PPOConfig, episodes: Sequence[Trajectory], records: Sequence[Recorded]
) -> tuple[list[BatchEpisode], Difference | None]:
    """Return the batch with the rewards as the estimator saw them, and the first turn whose credit differs."""
    move, compare = collection.redistribution_of(config.algorithm), collection.group_credit_of(config)
    credited, difference = list[Trajectory](), None
    moved = [
        episode if move is None or record.credit_moved is None else move(episode)
        for episode, record in zip(episodes, records, strict=True)
    ]
    if compare is not None:
        moved = compare(moved)
    for episode, record, again in zip(episodes, records, moved, strict=True):
        then = episode.turn_rewards if record.credit_moved is None else record.credit_moved
        if difference is None and (unlike := again.turn_rewards != then).any():
            turn = int(np.argmax(unlike))
            values = float(then[turn]), float(again.turn_rewards[turn])
            difference = Difference("credit", "the turn's reward", *values, episode.episode_id, turn)
        credited.append(replace(again, turn_rewards=np.asarray(then, np.float64)))
    return [*roots_and_forks(credited), *greedy_episodes(episodes, records)], difference


def greedy_episodes(episodes: Sequence[Trajectory], records: Sequence[Recorded]) -> list[BatchEpisode]:
    """Return an episode for each group with the total of its greedy one: all that files have of it, and is read."""
    by_group = {episode.group_id: (episode, record) for episode, record in zip(episodes, records, strict=True)}
    greedy = [
        replace(episode, turn_rewards=record.greedy_reward * np.eye(episode.num_turns)[-1])
        for episode, record in by_group.values()
        if record.greedy_reward is not None
    ]
    return [BatchEpisode(episode, episode, "greedy") for episode in greedy]


def learned(report: Report, compare: Comparison, now: Explained, then: Sequence[Mapping[str, float]]) -> None:
    """Compare the learner's numbers: advantages, then each optimizer step."""
    difference = compare.first(now.columns, _ADVANTAGE, lambda name: "advantage")
    report.note("advantage", f"{len(now.mask)} tokens: {compare.summary(_ADVANTAGE)}", difference)
    if difference is not None:
        for stage in STAGES[STAGES.index("advantage") + 1 :]:
            report.note(stage, "left out: the advantages differ")
        return
    offsets = action_offsets(compare.episodes)
    first = np.array([now.first_step[a] if a < b else -1.0 for a, b in itertools.pairwise(offsets)])
    nothing: Mapping[str, float] = {}
    for step, (old, new) in enumerate(itertools.zip_longest(then, now.steps, fillvalue=nothing)):
        step_difference = compare.first(now.columns, [*_STEPS], _STEPS.__getitem__, first == step, step)
        for name, stage in _STEP_NUMBERS.items():
            a, b = old.get(name), new.get(name)
            if a is not None and b is not None and not compare.exact:
                compare.measure(name, abs(a - b))
            if step_difference is None and a != b and (compare.exact or not _close(a, b)):
                step_difference = Difference(stage, name, a, b, step=step)
        if step_difference is not None:
            break
    else:
        step, step_difference = len(now.steps), None
    for stage in ("log-probability", "loss", "gradient"):
        names = [name for name, own in (_STEPS | _STEP_NUMBERS).items() if own == stage]
        report.note(stage, f"{step} optimizer steps{' before it' if step_difference else ''}: {compare.summary(names)}")
    if step_difference is not None:
        report.note(step_difference.stage, "", step_difference)


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and bool(np.isclose(a, b, rtol=RELATIVE))


# ------------------------------------------------------------------------------------------------ the whole


def model_again(recorded: RecordedRun, config: PPOConfig) -> ModelSection:
    """Return the run's model; the tokenizer of a model from scratch was made from environments' messages of then."""
    saved = sorted(recorded.path.glob("checkpoints/iteration_*/model"))
    return config.model.model_copy(update={"path": str(saved[-1])}) if saved else config.model


def checkpoint_before(recorded: RecordedRun, config: PPOConfig, iteration: int) -> Path | None:
    """Return the checkpoint that an iteration began from, or raise ReplayError; ``None`` if it is ``model.path``."""
    path = recorded.path / "checkpoints" / f"iteration_{iteration - 1:06d}"
    if path.is_dir():
        try:
            if load(path).state.get("weights_only"):
                raise ReplayError(f"{path} has the model alone (trainer.save_weights_only), not the optimizer")
        except CheckpointError as error:
            raise ReplayError(str(error)) from error
        return path
    if iteration == 1 and config.model.path != "tiny" and not warm_start_enabled(config):
        return None
    after = {int(folder.name.split("_")[1]) + 1 for folder in path.parent.glob("iteration_*")}
    available = [
        str(record.number) for record in recorded.iterations if record.kind == "train" and record.number in after
    ]
    raise ReplayError(
        f"it began from the checkpoint {path.name}, which does not exist; iterations that began from one that is: "
        f"{', '.join(available) or 'none'}. trainer.save_freq=1 saves after every iteration, trainer.keep_last_n says "
        "how many checkpoints are kept"
    )


@contextlib.asynccontextmanager
async def run_before(config: PPOConfig, checkpoint: Path | None) -> AsyncIterator[Run]:
    """Yield the run in its state before an iteration, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        changed = {
            "default_local_dir": folder,
            "resume_mode": "disable" if checkpoint is None else "resume_path",
            "resume_from_path": None if checkpoint is None else str(checkpoint),
            **{"logger": (), "keep_rollouts": 0, "rollout_data_dir": None, "validation_data_dir": None},
            **{"trace_file": None, "profile_steps": (), "val_only": False},
        }
        trainer = config.trainer.model_copy(update=changed)
        async with assemble(config.model_copy(update={"trainer": trainer})) as run:
            yield run


def is_exact(config: PPOConfig) -> bool:
    """Return whether the learner is deterministic to the last bit: on one rank, on a CPU."""
    single_process = config.cluster.learner_ranks == 1 and config.cluster.backend != "ray"
    return single_process and resolve_device(config.model.device).type == "cpu"


@dataclass(frozen=True)
class _Iteration:
    """A recorded iteration."""

    config: PPOConfig
    info: Mapping[str, Any]
    records: Sequence[Recorded]
    episodes: Sequence[Trajectory]
    chosen: Sequence[bool]  #: of each episode, whether it is to be played and sampled again

    @property
    def selected(self) -> list[Trajectory]:
        return [*itertools.compress(self.episodes, self.chosen)]


def read_iteration(recorded: RecordedRun, iteration: int, group: str | None) -> _Iteration:
    """Read what :func:`replay` needs of the files; it says what is refused."""
    file = recorded.iteration(iteration)
    records, episodes = list(file.episodes()), read_parquet(file.path)
    chosen = [group is None or episode.group_id in (group, f"g{group}") for episode in episodes]
    if not any(chosen):
        groups = ", ".join(dict.fromkeys(episode.group_id for episode in episodes))
        raise ReplayError(f"iteration {iteration} has no group {group}; it has {groups}")
    if any(episode.env_seed is None for episode in itertools.compress(episodes, chosen)):
        raise ReplayError(f"{file.path} was written without seeds, by an older version: it cannot be played again")
    config: PPOConfig = load_config(["--config", str(recorded.path / "config.yaml")])[0]
    if config.env.mixture and not file.info.get("components"):
        raise ReplayError(f"{file.path} was written by an older version: it does not say what each group played")
    if config.env.train_side != "policy":
        raise ReplayError(f"episodes of a run with env.train_side={config.env.train_side} cannot be played again")
    if config.env.frozen:
        raise ReplayError(
            "episodes of a run with env.frozen cannot be played again: the models' replies are not recorded"
        )
    for component in environments_played(config):
        with contextlib.closing(component.make(component.training)) as env:
            if len(env.roles) > 1:
                raise ReplayError(
                    f"episodes of several roles ({', '.join(env.roles)} of {component.id}) cannot be played again: "
                    "their files do not say in which order the roles spoke"
                )
    if config.env.curriculum.reverse_share:
        raise ReplayError(
            "episodes that begin in the middle (env.curriculum.reverse_share) cannot be played again: their files do "
            "not say which state they began in"
        )
    return _Iteration(config, file.info, records, episodes, chosen)


async def replay(recorded: RecordedRun, iteration: int, group: str | None = None, near: float | None = None) -> Report:
    """Recompute an iteration; with ``group``, only its episodes are played, sampled and compared.

    ``near`` is the greatest difference of the engine's log-probabilities that counts as equal; by default, what the
    engine's arithmetic explains.
    Raises ReplayError if there is no such group, or an older version wrote the file; RecordsError if there are no
    records of the episodes.
    """
    files, report = read_iteration(recorded, iteration, group), Report()
    config = files.config
    await environments_again(report, files, model_again(recorded, config))
    batch, moved = moved_again(config, files.episodes, files.records)
    report.note("credit", f"{len(files.episodes)} episodes: the same", moved)
    compare = Comparison(files.episodes, files.records, files.chosen, is_exact(config))
    try:
        checkpoint = checkpoint_before(recorded, config, iteration)
    except ReplayError as error:
        for stage in ("sampling", *STAGES[STAGES.index("log-probability") :]):
            report.note(stage, f"left out: {error}" if stage == "sampling" else "left out, as sampling is")
        report.note("advantage", *advantages_again(config, compare, batch))
        return report
    if urls := config.engine.base_urls:  # their present clients must not get other weights
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"name": "torch"})})
    async with run_before(config, checkpoint) as run:
        near = near if near is not None else _NEAR if config.engine.name == "torch" else _SERVED
        if urls:
            report.note("sampling", f"left out: {', '.join(urls)} may serve others, and would need other weights")
        else:
            report.note("sampling", *await sample_again(run, files.selected, near))
        await asyncio.gather(*(sleeper.sleep() for sleeper in run.sleepers))

        result = await run.learning(run.update.step, batch, run.learner, iteration=run.iteration, explain=True)
        assert result.explained is not None
        if any(record.checksums for record in files.records):
            learned(report, compare, result.explained, files.info["steps"])
        else:
            for stage in STAGES[STAGES.index("advantage") :]:
                report.note(stage, "left out: the file does not say what the learner made of the episodes")
    return report


async def environments_again(report: Report, files: _Iteration, model: ModelSection) -> None:
    """Report what the environments and the rewards of the selected episodes do now, with the tokens of ``model``."""
    config, episodes, components = files.config, files.selected, files.info.get("components") or {}
    with scores_of(config) as (scores, unavailable):
        tokenizer, ends = tokenizer_of(config.model_copy(update={"model": model})), end_token_ids_of(model)
        played, differences = await play_again(config, tokenizer, ends, episodes, scores, bool(unavailable), components)
    omissions = [f"{len(episodes) - played} of {len(episodes)} episodes left out"] if played < len(episodes) else []
    omissions += [f"without {' and '.join(unavailable)}, which ask models"] if unavailable else []
    summary = "; ".join([f"{played} episodes: the same", *omissions])
    for stage in ("environment", "reward"):
        report.note(stage, summary, next((difference for difference in differences if difference.stage == stage), None))


def advantages_again(
    config: PPOConfig, compare: Comparison, batch: Sequence[BatchEpisode]
) -> tuple[str, Difference | None]:
    """Recompute advantages without a checkpoint, if no model takes part; return a summary and the first difference."""
    if (
        "critic" in config.algorithm.needs
        or config.algorithm.use_kl_in_reward
        or config.actor.old_logprobs == "recompute"
        or config.actor.distill.teacher is not None
    ):
        return "left out: models of the checkpoint have a part in them", None
    without: Any = SimpleNamespace(reference=None, critic=None)
    prepared = Update(config).prepare(batch, without, explain=True)
    difference = compare.first(advantage_columns(prepared), _ADVANTAGE, lambda name: "advantage")
    return f"{len(prepared.advantages.advantages)} tokens: the same", difference
