"""Each stage of an iteration, computed again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from textenvs.records import Episode as Recorded
from textenvs.records import RecordedRun

from ..algorithms.advantages import NEEDS_CRITIC
from ..builders import collection
from ..builders.collection import limits_of, sampling_of
from ..builders.environments import backend_of
from ..builders.environments import played as environments_played
from ..builders.policy import tokenizer_of
from ..checkpoints import CheckpointError, load
from ..config import PPOConfig, load_config
from ..config.schema import ModelSection
from ..policy import end_token_ids_of, resolve_device
from ..report.episodes import Explained
from ..rollout.curriculum import derive_seed
from ..rollout.environments import Backend
from ..rollout.forks import ForkPoint
from ..rollout.play import Episode, Player
from ..rollout.recorded import RecordedEngine, context_of
from ..rollout.renderer import Renderer
from ..rollout.rewards import Score
from ..run import Run, assemble, warm_start_wanted
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
    others: bool,
    components: Mapping[str, str],
) -> tuple[int, list[Difference]]:
    """Let the environments answer the recorded replies: how many episodes that were, and what first differs in each.

    ``ends`` are the model's own tokens that end a reply, beside the tokenizer's.
    ``episodes`` are roots, and forks of these; ``scores`` the rewards that come later and can be computed again; with
    ``others`` there are some that cannot, whose terms are then left aside; ``components`` are those of each group, of a
    mixture.
    """
    engine = RecordedEngine(episodes, config.engine.max_context)
    renderer = Renderer(tokenizer, template_kwargs=config.data.chat_template_kwargs, stop_token_ids=ends)
    player = Player(engine, renderer, limits_of(config), scores)
    forked = {(each.forked_from, each.forked_turn) for each in episodes if each.forked_from}
    points: dict[tuple[str, int], ForkPoint] = {}
    found: dict[str, Difference | None] = {}

    async def play(recorded: Trajectory) -> None:
        begin = points.get((recorded.forked_from, recorded.forked_turn)) if recorded.forked_from else None
        if recorded.env_seed is None or recorded.task_index is None or (recorded.forked_from and begin is None):
            return
        mine: list[ForkPoint] = []
        again = Episode(
            episode_id=recorded.episode_id,
            group_id=recorded.group_id,
            options={"task_index": recorded.task_index},
            env_seed=recorded.env_seed,
            sampling=sampling_of(config),
            sampling_seed=recorded.sampling_seed or 0,
            begin=begin,
            forks=lambda turn: int((recorded.episode_id, turn) in forked),
        )
        backend = backends[components[recorded.group_id] if config.env.mixture else ""]
        played = await player.play(backend, again, points=mine)
        points.update({(recorded.episode_id, point.turn): point for point in mine})
        (played,) = from_table(to_table([played]))  # as it would have been read
        found[recorded.episode_id] = _played(recorded, played, engine.problems.get(recorded.episode_id), others)

    backends: dict[str, Backend] = {}
    async with contextlib.AsyncExitStack() as stack:
        for each in environments_played(config):
            beside = next(iter(backends.values()), None)
            made = backend_of(config, each, validation=False, here=True, beside=beside)
            backends[each.name] = await stack.enter_async_context(made)
        for forks in (False, True):
            await asyncio.gather(*(play(each) for each in episodes if bool(each.forked_from) == forks))
    return len(found), [found[each.episode_id] for each in episodes if found.get(each.episode_id) is not None]  # type: ignore[misc]


def _played(then: Trajectory, now: Trajectory, shown: int | None, others: bool) -> Difference | None:
    """The first difference of an episode, by turn: messages, then what the turn before them earned."""
    candidates: list[tuple[float, Difference]] = []

    def differs(turn: float, stage: str, what: str, expected: Any, got: Any) -> None:
        place = None if turn < 0 else int(turn)
        candidates.append((turn, Difference(stage, what, expected, got, then.episode_id, place)))

    spoken = -1  # the turn that a message answers
    for old, new in itertools.zip_longest(then.messages, now.messages):
        if shown is not None and new is None:
            break  # it ended there
        if old != new:
            differs(spoken, "environment", "the message", old and old["content"], new and new["content"])
            if old and new and old["content"] == new["content"]:
                candidates[-1] = (spoken, replace(candidates[-1][1], expected=dict(old), got=dict(new)))
            break
        spoken += old["role"] == "assistant"
    if shown is not None and not candidates:
        expected = context_of(then, shown).tolist() if shown < then.num_turns else "the end"
        differs(shown - 1, "environment", "what the policy was shown", expected, "something else")
    for turn, (old_reward, new_reward) in enumerate(zip(then.turn_rewards, now.turn_rewards, strict=False)):
        old_terms, new_terms = dict(then.turn_terms[turn]), dict(now.turn_terms[turn])
        if others:
            old_terms = {name: value for name, value in old_terms.items() if name in new_terms}
        if old_terms != new_terms:
            name = next(n for n in [*old_terms, *new_terms] if old_terms.get(n) != new_terms.get(n))
            differs(turn + 0.5, "reward", f"the term {name!r}", old_terms.get(name), new_terms.get(name))
        elif not others and old_reward != new_reward:
            differs(turn + 0.5, "reward", "the reward", float(old_reward), float(new_reward))
    if shown is None:
        for name in ("status", "stop", "terminated", "truncated", "num_turns", "metrics", "error"):
            old_value, new_value = (getattr(each, name) for each in (then, now))
            if old_value != new_value:
                got = f"{new_value} ({now.error})" if name == "status" and now.error else new_value
                differs(then.num_turns, "environment", name, str(old_value), str(got))
    return min(candidates, key=lambda each: each[0])[1] if candidates else None


@contextlib.contextmanager
def scores_of(config: PPOConfig) -> Iterator[tuple[dict[str, Score], list[str]]]:
    """Rewards that come later and can be computed again, and the names of those that cannot."""
    with contextlib.ExitStack() as stack:
        scores = collection.own_scores(config, stack)
        others = ["multiturn_reward"] if config.multiturn_reward.enable else []
        if config.reward_model.enable:
            others.append("reward_model")
        yield scores, others


# ------------------------------------------------------------------------------------------------ sampling


async def sample_again(run: Run, episodes: Sequence[Trajectory], near: float) -> tuple[str, Difference | None]:
    """Sample each reply behind its recorded context; the tokens are to be the same, and their log-probabilities near.

    Returns what was computed, in words, and the first difference.
    """
    config, version, exact = run.config, run.engine.version, run.config.engine.name == "torch"
    openings = {each.episode_id: int(np.argmax(each.action_mask)) for each in episodes if each.num_turns}
    limits, most = limits_of(config), run.engine.max_context
    places = asyncio.Semaphore(1 if config.rollout.max_running == 1 else 2**31)
    found: dict[str, Difference] = {}  # by episode
    tokens = others = unlike = 0
    farthest = 0.0

    async def sample(episode: Trajectory, turn: int) -> Difference | None:
        nonlocal tokens, others, unlike, farthest
        where = np.flatnonzero(episode.turn_id == turn)
        if (episode.weight_version[where] != version).any() or episode.sampling_seed is None:
            others += len(where)
            return None
        context = context_of(episode, turn).tolist()
        limit, opening = min(limits.max_context or most, most), openings.get(episode.forked_from or episode.episode_id)
        if limits.max_response_tokens is not None and opening is not None:
            limit = min(limit, opening + limits.max_response_tokens)
        sampling = sampling_of(config)
        sampling = replace(
            sampling,
            max_new_tokens=min(sampling.max_new_tokens, limit - len(context)),
            stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *run.stop_token_ids))),
            seed=derive_seed(episode.sampling_seed, episode.forked_turn + turn),
        )
        async with places:
            reply = await run.engine.generate(context, sampling, f"replay/{episode.episode_id}")
        tokens += len(where)
        then, now = episode.token_ids[where].tolist(), reply.token_ids.tolist()
        if then != now:
            at = next(n for n, pair in enumerate(itertools.zip_longest(then, now)) if pair[0] != pair[1])
            unlike += 1
            expected, got = (run.tokenizer.decode(each[at : at + 1]) or None for each in (then, now))
            place = episode.episode_id, turn, int(where[0]) + at
            return Difference("sampling", "the sampled token", expected, got, *place) if exact else None
        logprobs = reply.logprobs
        if reply.kept_counts is not None and reply.sampled_logprobs is not None:
            logprobs = np.where(reply.kept_counts > 0, reply.sampled_logprobs, reply.logprobs)
        apart = np.abs(logprobs.astype(np.float64) - episode.logprobs[where])
        farthest = max(farthest, float(apart.max()))
        if not (far := apart > near).any():
            return None
        at = int(np.argmax(far))
        values = float(episode.logprobs[where[at]]), float(logprobs[at])
        return Difference("sampling", "its log-probability", *values, episode.episode_id, turn, int(where[at]))

    async def all_of(episode: Trajectory) -> None:
        for turn in range(episode.num_turns):
            if (difference := await sample(episode, turn)) is not None:
                found.setdefault(episode.episode_id, difference)
        await run.engine.release(f"replay/{episode.episode_id}")

    await asyncio.gather(*(all_of(each) for each in episodes))
    said = f"{tokens} tokens sampled again: the same, log-probabilities "
    said += f"at most {farthest:.2g} apart" if farthest else "to the last bit"
    if unlike:
        said = f"{tokens} tokens sampled again: {unlike} replies are others, as a served engine's may be"
    if others:
        said += f"; {others} tokens are of other weights than those of the checkpoint, or without a seed: left out"
    return said, next((found[each.episode_id] for each in episodes if each.episode_id in found), None)


# ------------------------------------------------------------------------------------------------ credit, learning

_ADVANTAGE = ("importance_weight", "return", "baseline", "advantage")
_STEPS = {"learner_logprobs": "log-probability", "entropy": "log-probability", "ratio": "loss", "clipped": "loss",
          "loss_weight": "loss", "loss": "loss"}  # fmt: skip
_STEP_NUMBERS = {"actor/loss": "loss", "critic/loss": "loss", "actor/grad_norm": "gradient",
                 "critic/grad_norm": "gradient"}  # fmt: skip


def moved_again(
    config: PPOConfig, episodes: Sequence[Trajectory], records: Sequence[Recorded]
) -> tuple[list[Trajectory], Difference | None]:
    """The episodes as the estimator saw them, and the first turn whose credit is now another."""
    move = collection.redistribution_of(config.algorithm)
    paid, difference = [], None
    for episode, record in zip(episodes, records, strict=True):
        again = episode if move is None or record.credit_moved is None else move(episode)
        then = episode.turn_rewards if record.credit_moved is None else record.credit_moved
        if difference is None and (unlike := again.turn_rewards != then).any():
            turn = int(np.argmax(unlike))
            values = float(then[turn]), float(again.turn_rewards[turn])
            difference = Difference("credit", "the turn's reward", *values, episode.episode_id, turn)
        paid.append(replace(again, turn_rewards=np.asarray(then, np.float64)))
    return paid, difference


def learned(report: Report, compare: Comparison, now: Explained, then: Sequence[Mapping[str, float]]) -> None:
    """Compare what the learner made of the batch: advantages, then step by step."""
    difference = compare.first(now.columns, _ADVANTAGE, lambda name: "advantage")
    report.note("advantage", f"{len(now.mask)} tokens: {compare.said(_ADVANTAGE)}", difference)
    if difference is not None:
        for stage in STAGES[STAGES.index("advantage") + 1 :]:
            report.note(stage, "left out: the advantages are others")
        return
    offsets = action_offsets(compare.episodes)
    first = np.array([now.first_step[a] if a < b else -1.0 for a, b in itertools.pairwise(offsets)])
    nothing: Mapping[str, float] = {}
    for step, (old, new) in enumerate(itertools.zip_longest(then, now.steps, fillvalue=nothing)):
        found = compare.first(now.columns, [*_STEPS], _STEPS.__getitem__, first == step, step)
        for name, stage in _STEP_NUMBERS.items():
            a, b = old.get(name), new.get(name)
            if a is not None and b is not None and not compare.exact:
                compare.measure(name, abs(a - b))
            if found is None and a != b and (compare.exact or not _close(a, b)):
                found = Difference(stage, name, a, b, step=step)
        if found is not None:
            break
    else:
        step, found = len(now.steps), None
    for stage in ("log-probability", "loss", "gradient"):
        names = [name for name, own in (_STEPS | _STEP_NUMBERS).items() if own == stage]
        report.note(stage, f"{step} optimizer steps{' before it' if found else ''}: {compare.said(names)}")
    if found is not None:
        report.note(found.stage, "", found)


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and bool(np.isclose(a, b, rtol=RELATIVE))


# ------------------------------------------------------------------------------------------------ the whole


def model_again(recorded: RecordedRun, config: PPOConfig) -> ModelSection:
    """The model of the run; one from scratch has a tokenizer that was made of what environments said then."""
    saved = sorted(recorded.path.glob("checkpoints/iteration_*/model"))
    return config.model.model_copy(update={"path": str(saved[-1])}) if saved else config.model


def checkpoint_before(recorded: RecordedRun, config: PPOConfig, iteration: int) -> Path | None:
    """The checkpoint that an iteration began from, or ReplayError; ``None`` where it began with ``model.path``."""
    path = recorded.path / "checkpoints" / f"iteration_{iteration - 1:06d}"
    if path.is_dir():
        try:
            if load(path).state.get("weights_only"):
                raise ReplayError(f"{path} has the model alone (trainer.save_weights_only), not the optimizer")
        except CheckpointError as error:
            raise ReplayError(str(error)) from error
        return path
    if iteration == 1 and config.model.path != "tiny" and not warm_start_wanted(config):
        return None
    after = {int(each.name.split("_")[1]) + 1 for each in path.parent.glob("iteration_*")}
    there = [str(each.number) for each in recorded.iterations if each.kind == "train" and each.number in after]
    raise ReplayError(
        f"it began from the checkpoint {path.name}, which is not there; iterations that began from one that is: "
        f"{', '.join(there) or 'none'}. trainer.save_freq=1 saves after every iteration, trainer.keep_last_n says how "
        "many checkpoints are kept"
    )


@contextlib.asynccontextmanager
async def run_before(config: PPOConfig, checkpoint: Path | None) -> AsyncIterator[Run]:
    """The run as it stood before an iteration, in a folder of its own, which is deleted."""
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
    """Whether the learner computes the same numbers to the last bit each time: on one rank, on a CPU."""
    here = config.cluster.learner_ranks == 1 and config.cluster.backend != "ray"
    return here and resolve_device(config.model.device).type == "cpu"


async def replay(recorded: RecordedRun, iteration: int, group: str | None = None, near: float | None = None) -> Report:
    """Compute an iteration again; with ``group``, its episodes alone are played, sampled and compared.

    ``near`` is how far apart the engine's log-probabilities may be; by default what the engine's arithmetic explains.
    Raises ReplayError: there is no such group, or the file was written before a run could be computed again;
    RecordsError: the episodes are not there.
    """
    file = recorded.iteration(iteration)
    records = list(file.episodes())
    episodes = read_parquet(file.path)
    chosen = [group is None or each.group_id in (group, f"g{group}") for each in episodes]
    some = [each for each, wanted in zip(episodes, chosen, strict=True) if wanted]
    if not some:
        groups = ", ".join(dict.fromkeys(each.group_id for each in episodes))
        raise ReplayError(f"iteration {iteration} has no group {group}; it has {groups}")
    if any(each.env_seed is None for each in some):
        raise ReplayError(f"{file.path} was written without seeds, by an older version: it cannot be played again")
    config: PPOConfig = load_config(["--config", str(recorded.path / "config.yaml")])[0]
    components = file.info.get("components") or {}
    if config.env.mixture and not components:
        raise ReplayError(f"{file.path} was written by an older version: it does not say what each group played")
    if config.env.train_side != "policy":
        raise ReplayError(f"episodes of a run with env.train_side={config.env.train_side} cannot be played again")
    if config.env.curriculum.reverse_share:
        raise ReplayError(
            "episodes that begin in the middle (env.curriculum.reverse_share) cannot be played again: their files do "
            "not say which state they began in"
        )
    report = Report()

    with scores_of(config) as (scores, others):
        model = model_again(recorded, config)
        tokenizer, ends = tokenizer_of(config.model_copy(update={"model": model})), end_token_ids_of(model)
        played, found = await play_again(config, tokenizer, ends, some, scores, bool(others), components)
    left = [f"{len(some) - played} of {len(some)} episodes left out"] if played < len(some) else []
    left += [f"without {' and '.join(others)}, which ask models"] if others else []
    said = "; ".join([f"{played} episodes: the same", *left])
    for stage in ("environment", "reward"):
        report.note(stage, said, next((each for each in found if each.stage == stage), None))

    paid, moved = moved_again(config, episodes, records)
    report.note("credit", f"{len(paid)} episodes: the same", moved)
    greedy = {each.group_id: each.greedy_reward for each in records if each.greedy_reward is not None}
    compare = Comparison(episodes, records, chosen, is_exact(config))
    try:
        checkpoint = checkpoint_before(recorded, config, iteration)
    except ReplayError as error:
        for stage in ("sampling", *STAGES[STAGES.index("log-probability") :]):
            report.note(stage, f"left out: {error}" if stage == "sampling" else "left out, as sampling is")
        report.note("advantage", *advantages_again(config, compare, paid, greedy))
        return report
    if urls := config.engine.base_urls:  # whoever they serve now is not to get other weights
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"name": "torch"})})
    async with run_before(config, checkpoint) as run:
        near = near if near is not None else _NEAR if config.engine.name == "torch" else _SERVED
        if urls:
            report.note("sampling", f"left out: {', '.join(urls)} may serve others, and would need other weights")
        else:
            report.note("sampling", *await sample_again(run, some, near))
        await asyncio.gather(*(sleeper.sleep() for sleeper in run.sleepers))

        result = await run.learning(
            run.update.step, paid, run.learner, iteration=run.iteration, greedy=greedy, explain=True
        )
        assert result.explained is not None
        if any(each.checksums for each in records):
            learned(report, compare, result.explained, file.info["steps"])
        else:
            for stage in STAGES[STAGES.index("advantage") :]:
                report.note(stage, "left out: the file does not say what the learner made of the episodes")
    return report


def advantages_again(
    config: PPOConfig, compare: Comparison, paid: Sequence[Trajectory], greedy: Mapping[str, float]
) -> tuple[str, Difference | None]:
    """Advantages without a checkpoint, where no model has a part in them: what was computed, and what differs."""
    estimator = config.algorithm.adv_estimator
    if estimator in NEEDS_CRITIC or config.algorithm.use_kl_in_reward or config.actor.old_logprobs == "recompute":
        return "left out: models of the checkpoint have a part in them", None
    without: Any = SimpleNamespace(reference=None, critic=None)
    prepared = Update(config).prepare(paid, without, greedy=greedy, explain=True)
    difference = compare.first(advantage_columns(prepared), _ADVANTAGE, lambda name: "advantage")
    return f"{len(prepared.advantages.advantages)} tokens: the same", difference
