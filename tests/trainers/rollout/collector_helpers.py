"""A collector on scripted engines: a renderer of one token a character, scripts, and a trainer that trains nothing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rollout_fakes import AsyncEnv

from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from textenvs.messages import Message
from trainers.chat_template import TemplateReasoning
from trainers.config.rollout import RolloutSection
from trainers.engines.base import Sampling
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec, Kind
from trainers.rollout.episode_tokens import EpisodeTokens
from trainers.rollout.seeds import derive_seed
from trainers.trajectory import Status, Trajectory

END = 2
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}


class Characters:
    """A renderer of one token a character: ``role text END`` for each message, then the assistant's role."""

    stop_token_ids = (END,)
    rewrites_history = False
    observed_roles = frozenset[str]()
    reasoning = TemplateReasoning()

    def render(self, messages: Sequence[Message], tools: Any = None) -> list[int]:
        ids = [i for m in messages for i in (ROLES[m["role"]], *map(ord, m["content"]), END)]
        return [*ids, ROLES["assistant"]]

    def bridge(self, new: Sequence[Message], *, after: int | None, tools: Any = None) -> list[int]:
        return self.render(new) if after == END else [END, *self.render(new)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > 8)

    def warn_once(self, about: str, message: str) -> None:
        """Nothing is logged."""


def tokens(text: str) -> list[int]:
    return [*map(ord, text), END]


def prompt_text(call: Call) -> str:
    return Characters().decode(call.token_ids)


def task_of(call: Call) -> int:
    return int(prompt_text(call).split("task ")[1].split(" ")[0])


def turn_of(call: Call) -> int:
    return call.token_ids.count(ROLES["assistant"]) - 1


def wordy(call: Call, version: int) -> Reply:
    """A reply that depends on the prompt, the seed and the weights alone; of random length, after a random latency."""
    rng = random.Random(f"{call.token_ids} {call.sampling.seed} {version}")
    words = " ".join(str(rng.randrange(10)) for _ in range(rng.randrange(1, 6)))
    last = rng.choice(["end", "end", "more", "enough", "on"])
    return Reply(tokens(f"{words} {last}"), latency=rng.random() ** 4 * 10, per_token=rng.random() / 10)


def engine_of(script: Callable[[Call, int], Reply], **kwargs: Any) -> ScriptedEngine:
    """An engine whose script knows the version too."""
    engine = ScriptedEngine(lambda call: script(call, engine.version), vocab_size=128, **kwargs)
    return engine


def says(text: str, **kwargs: Any) -> Callable[[Call, int], Reply]:
    return lambda call, version: Reply(tokens(text), **kwargs)


def slow_env(seed: int = 0) -> EnvSpec:
    """Environments that take random seconds."""

    def delay(task: int, turn: int) -> float:
        return random.Random(f"{seed} {task} {turn}").random() ** 4 * 20

    return EnvSpec(AsyncEnv, {"delay": delay})


def collector_of(engine: Any, backend: Any, renderer: Any = None, **options: Any) -> Collector:
    """A collector; ``options`` are its arguments, and keys of its section among them."""
    rollout: dict[str, Any] = {"n": 2, "groups_per_batch": 3, "max_response_length": 40}
    rollout |= {"generation_timeout_s": None, "episode_timeout_s": None}  # seconds are simulated: episodes take many
    rollout |= {name: options.pop(name) for name in [*options] if name in RolloutSection.model_fields}
    options = {"tasks": 50, "rollout": RolloutSection(**rollout)} | options
    return Collector(engine, renderer or Characters(), backend, **options)


async def collect(
    engine: ScriptedEngine,
    spec: EnvSpec | None = None,
    batches: int = 1,
    *,
    kind: Kind = "inline",
    limits: dict[str, Any] | None = None,
    after: Callable[[Collector, Batch], Coroutine[Any, Any, None]] | None = None,
    **options: Any,
) -> list[Batch]:
    """The trainer's loop, without training."""
    collected = []
    backend = Backend(spec or EnvSpec(AsyncEnv), kind, **limits or {})
    async with backend, collector_of(engine, backend, **options) as collector:
        for _ in range(batches):
            batch = await collector.next_batch()
            collected.append(batch)
            if after is not None:
                await after(collector, batch)
            await collector.update_weights(None, batch.version + 1)
    return collected


async def play_out(
    engine: ScriptedEngine, env: AsyncEnv, episode: EpisodeTokens, seed: int, metrics: Any = None, **drawn: Any
) -> Trajectory:
    """Play an episode that was opened to its end, one request after the other."""
    for turn in itertools.count():
        sampling = Sampling(max_new_tokens=40, stop_token_ids=(END,), seed=derive_seed(seed, turn))
        text = episode.reply(await engine.generate(episode.context, sampling))
        messages, reward, terminated, truncated, info = await env.astep(text)
        episode.reward(reward, info["terms"])
        if not terminated:
            episode.observe(messages)
        if terminated or truncated:
            break
    ending = {"terminated": terminated, "truncated": truncated, "stop": info["stop"], "sampling_seed": seed, **drawn}
    status = Status.COMPLETED if terminated else Status.TRUNCATED_TURNS
    return episode.finish(**ending, status=status, metrics=(metrics or {}) | info["metrics"], messages=messages)
