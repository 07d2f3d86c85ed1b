"""Random programs that call a model, and the tokens that training gets of them: none lost, doubled or tokenised again.

    python -m benchmarks.random_programs --programs 10000

A program is a function of its seed. It makes calls over HTTP (OpenAI's chat completions) as ``textenv/agent``: calls
that extend a conversation, begin one, branch off, rewrite history, compact it, repeat a call or change the tools; one
at a time, in parallel, streamed, retried after a lost connection, and cancelled. A tiny model answers, token by token;
some replies are tool calls, a token a character, which no tokenizer would cut so (their log-probabilities are a forward
pass's, not the engine's). Of each program it is checked:

* every call that was answered is one turn, a cancelled one at most one;
* the turns' tokens are those that the engine sampled, each once and in their order, and the context of each turn is
  what the engine was given for it;
* log-probabilities are the engine's to the last bit, and within ``--tolerance`` those of a forward pass of the model
  over what the engine was given, and those of the learner, which reads the trajectory's contexts as trees.

It fails with the first program that breaks one of these; ``--first SEED --programs 1`` plays it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from textenvs.messages import user
from textenvs.task import Task
from trainers.config.engine import TorchEngineSection
from trainers.config.model import ModelSection
from trainers.config.rollout import RolloutSection
from trainers.engines.base import Generation, Sampling, UpdateMode
from trainers.engines.torch_engine import TorchEngine
from trainers.learner.learner import Learner
from trainers.models import tiny
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.play import Episode, Player
from trainers.rollout.recorded import context_of
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Status, Trajectory

SCHEMAS = [
    {"type": "function", "function": {"name": name, "description": "Work.", "parameters": {"type": "object"}}}
    for name in ("double", "halve")
]
TOOLSETS = ([], SCHEMAS[:1], SCHEMAS)
KINDS = ("extend", "extend", "extend", "begin", "branch", "rewrite", "edit", "compact", "repeat", "tools")
WAYS = ("plain", "plain", "stream", "retry")
TEXTS = ["Be brief. Twice 2? It is 4. #1 user assistant tool", '<tool_call>\n{"name": "double", "arguments": {"a": 3}}']
#: Differences that float32 may make.
TOLERANCE = 2e-4
VOCABULARY = 320
NUMBER = re.compile(r"#(\d+)\D*<\|im_start\|>assistant\n$")


# ------------------------------------------------------------------ programs


@dataclass
class Talk:
    """A conversation of the program, as its client has it."""

    tools: int
    messages: list[dict[str, Any]] = field(default_factory=list)

    def upto(self, replies: int) -> Talk:
        ends = [0, *(place + 1 for place, message in enumerate(self.messages) if message["role"] == "assistant")]
        return Talk(self.tools, self.messages[: ends[replies % len(ends)]])

    @property
    def copy(self) -> Talk:
        return Talk(self.tools, [*self.messages])


class Program:
    """A random program: a function of ``seed``, of what it is answered, and of the order of parallel replies."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.talks: list[Talk] = []
        self.last: dict[int, Talk] = {}  # the call with a number
        self.lock = threading.Lock()
        self.answered, self.cancelled = Counter[int](), Counter[int]()  # calls by their number
        self.counts = Counter[str]()  # of everything that the program did

    def run(self, task: Task, url: str, key: str) -> float:
        self.address, self.key = urlsplit(url), key
        for step in range(int(self.rng.integers(1, 7))):
            size = int(self.rng.choice([1, 1, 1, 2, 3])) if step else 1
            ways = [str(self.rng.choice(WAYS)) for _ in range(size)]
            if size == 1 and step and self.rng.random() < 0.1:
                ways = ["cancel"]
            elif size > 1:
                self.counts["parallel"] += size
                ways[1:] = ["stream" if way == "stream" else "plain" for way in ways[1:]]
            calls = [self.call() for _ in ways]
            if size == 1:
                self.ask(*calls[0], ways[0])
            else:
                with ThreadPoolExecutor(size) as pool:
                    list(pool.map(self.ask, *zip(*calls, strict=True), ways))
        return 1.0

    def call(self) -> tuple[Talk, int]:
        """Return the next call, and its number, which its last message has."""
        rng, kind = self.rng, str(self.rng.choice(KINDS))
        if kind == "repeat" and self.last:
            self.counts[kind] += 1
            number = int(rng.choice([*self.last]))
            return self.last[number].copy, number
        if not self.talks:
            kind = "begin"
        old = self.talks[int(rng.integers(len(self.talks)))].copy if self.talks else Talk(0)
        self.counts[kind] += 1
        number = len(self.last) + 1
        if kind == "begin":
            talk = Talk(int(rng.integers(3)))
            if rng.random() < 0.5:
                talk.messages.append({"role": "system", "content": "Be brief."})
        elif kind == "branch":
            talk = old.upto(int(rng.integers(9)))
        elif kind == "compact":
            summary = " ".join(str(message.get("content"))[:9] for message in old.messages)
            talk = Talk(
                old.tools, [{"role": "user", "content": f"So far: {summary}"}, {"role": "assistant", "content": "Yes."}]
            )
        else:
            talk = old
            if kind == "tools":
                talk.tools = int(rng.integers(3))
            elif kind == "rewrite":
                talk.messages[0] = {"role": talk.messages[0]["role"], "content": f"Edited {number}."}
            elif kind == "edit":
                place = next(place for place, message in enumerate(talk.messages) if message["role"] == "assistant")
                talk.messages[place] = {**talk.messages[place], "content": f"No, {talk.messages[place]['content']}"}
        made = (talk.messages[-1] if talk.messages else {}).get("tool_calls") or ()
        for part in made[:-1]:
            talk.messages.append({"role": "tool", "tool_call_id": part["id"], "content": "Done."})
        last = {"role": "tool", "tool_call_id": made[-1]["id"]} if made else {"role": "user"}
        talk.messages.append({**last, "content": f"#{number}"})
        self.last[number] = talk
        return talk.copy, number

    def ask(self, talk: Talk, number: int, way: str) -> None:
        with self.lock:
            self.counts[way] += 1
        body = {"messages": talk.messages, "tools": TOOLSETS[talk.tools] or None, "stream": way == "stream"}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = ("POST", f"{self.address.path}/chat/completions", json.dumps(body), headers)
        if way in ("retry", "cancel"):
            headers["Idempotency-Key"] = f"{number}-{self.counts.total()}"
            connection = http.client.HTTPConnection(self.address.netloc)
            connection.request(*request)
            connection.close()
            if way == "cancel":
                self.cancelled[number] += 1
                return
        connection = http.client.HTTPConnection(self.address.netloc, timeout=300)
        connection.request(*request)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"call {number} was answered with {response.status}: {text}")
        reply = _streamed(text) if way == "stream" else json.loads(text)["choices"][0]["message"]
        with self.lock:
            self.answered[number] += 1
            self.counts["tool calls"] += len(reply.get("tool_calls") or ())
            talk.messages.append(reply)
            self.talks.append(talk)


def _streamed(text: str) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in text.splitlines():
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            reply["content"] += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                calls = reply.setdefault("tool_calls", [])
                if part["index"] == len(calls):
                    calls.append({"id": part["id"], "type": "function", "function": {**part["function"]}})
                else:
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return reply


# ------------------------------------------------------------------ the model


class Recorder:
    """An engine that records what it was given and what it sampled; some replies are tool calls."""

    def __init__(self, engine: TorchEngine, model: Any, tokenizer: Any) -> None:
        self._engine, self._model, self._tokenizer = engine, model, tokenizer
        self.version, self.max_context = engine.version, engine.max_context
        self.records: dict[str, list[tuple[list[int], Generation]]] = defaultdict(list)
        self._letters: dict[str, list[int]] = {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        rng, context = np.random.default_rng(sampling.seed), list(token_ids)
        if rng.random() < 0.3:
            generation = self._tool_call(context, int(rng.integers(100)), sampling.max_new_tokens)
        else:
            short = replace(sampling, max_new_tokens=int(rng.integers(1, 16)))
            generation = await self._engine.generate(context, short, session)
        self.records[str(session).rpartition("/")[2]].append((context, generation))
        return generation

    def _tool_call(self, context: list[int], number: int, most: int) -> Generation:
        name = ("double", "halve")[number % 2]
        text = f'Well. <tool_call>\n{{"name": "{name}", "arguments": {{"a": {number}}}}}\n</tool_call>'
        ids = [token for letter in text for token in self._letter(letter)]
        ids = [*ids, self._tokenizer.eos_token_id][:most]
        logprobs = forward(self._model, context, ids).astype(np.float32)
        return Generation(np.array(ids, np.int32), logprobs, np.full(len(ids), self.version, np.int32), "stop")

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        raise ValueError("the weights of this run never change")

    def _letter(self, letter: str) -> list[int]:
        if letter not in self._letters:
            self._letters[letter] = self._tokenizer.encode(letter, add_special_tokens=False)
        return self._letters[letter]

    async def release(self, session: str) -> None:
        await self._engine.release(session)

    async def close(self) -> None:
        await self._engine.close()

    def stats(self) -> dict[str, float]:
        return dict(self._engine.stats())


@torch.no_grad()
def forward(model: Any, context: Sequence[int], ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the model's log-probability of each of ``ids`` after ``context``, float64 ``[n]``."""
    tokens = torch.tensor([*context, *ids])
    logits = model(tokens[None], use_cache=False).logits[0, len(context) - 1 : -1].double()
    scores: np.ndarray[Any, Any] = logits.log_softmax(-1).gather(1, tokens[len(context) :, None])[:, 0].numpy()
    return scores


# ------------------------------------------------------------------ the run


@dataclass
class Totals:
    """Sums over programs, and the largest differences of log-probabilities."""

    counts: Counter[str] = field(default_factory=Counter)
    contexts: Counter[int] = field(default_factory=Counter)  # programs by their number of contexts
    forward: float = 0.0
    learner: float = 0.0


class Bench:
    """A tiny model, an engine, a learner and an environment in which random programs run.

    Args:
        count: The seeds of programs are below it.
        concurrent: Programs at a time.
        tolerance: The largest difference of two log-probabilities that float32 may make.
    """

    def __init__(self, count: int, concurrent: int, tolerance: float = TOLERANCE) -> None:
        self.concurrent, self.tolerance, self.totals = concurrent, tolerance, Totals()
        self.programs: dict[int, Program] = {}
        self.tokenizer = tiny.build_tokenizer(TEXTS, VOCABULARY)
        shape: dict[str, Any] = {"hidden": 16, "layers": 2, "heads": 2, "kv_heads": 1, "max_context": 8192}
        self.model = tiny.build_model(len(self.tokenizer), eos_token_id=self.tokenizer.eos_token_id, **shape)
        section = TorchEngineSection(max_slots=concurrent, max_context=8192, threads=1)
        self.engine = Recorder(TorchEngine(self.model, section), self.model, self.tokenizer)
        self.learner = Learner(self.model, ModelSection(device="cpu"))
        self.renderer = Renderer(self.tokenizer)
        options = {"agent": self._run, "tasks": Seeds(count), "max_assistant_turns": None, "timeout": 600.0}
        self.backend = Backend(EnvSpec("textenv/agent", options), "thread", workers=concurrent)

    def _run(self, task: Task, url: str, key: str) -> float:
        return self.programs[int(task.key)].run(task, url, key)

    async def play(self, seed: int) -> Trajectory:
        """Play the program of a seed, and check what needs no other program."""
        program = self.programs[seed] = Program(seed)
        sampling = Sampling(temperature=1.0, max_new_tokens=int(np.random.default_rng([seed, 1]).integers(40, 90)))
        player = Player(self.engine, self.renderer, RolloutSection())
        name = f"program-{seed}"
        trajectory = await player.play(self.backend, Episode(name, "g", {"task_index": seed}, seed, sampling, seed))
        assert trajectory.status is Status.COMPLETED, f"{trajectory.status}: {trajectory.error}"
        records = self.engine.records.pop(name)
        self._check_calls(program, records)
        self._check_tokens(trajectory, records)
        del self.programs[seed]
        self.totals.contexts[len(trajectory.segment_starts)] += 1
        self.totals.counts.update(program.counts)
        self.totals.counts.update(programs=1, turns=trajectory.num_turns, tokens=int(trajectory.action_mask.sum()))
        return trajectory

    def _check_calls(self, program: Program, records: Sequence[tuple[list[int], Generation]]) -> None:
        turns = Counter[int]()
        for context, _ in records:
            match = NUMBER.search(str(self.tokenizer.decode(context)))
            assert match is not None, "a context does not end with a call's last message"
            turns[int(match[1])] += 1
        for number in program.last:
            least = program.answered[number]
            most = least + program.cancelled[number]
            assert least <= turns[number] <= most, f"call {number}: {turns[number]} turns, {least} to {most} answers"
        assert not turns.keys() - program.last.keys(), "a turn of no call"

    def _check_tokens(self, trajectory: Trajectory, records: Sequence[tuple[list[int], Generation]]) -> None:
        assert trajectory.num_turns == len(records)
        sampled = [token for _, generation in records for token in generation.token_ids.tolist()]
        assert trajectory.token_ids[trajectory.actions].tolist() == sampled, "sampled tokens differ"
        for turn, (context, generation) in enumerate(records):
            assert context_of(trajectory, turn).tolist() == context, f"turn {turn}: the engine was given other tokens"
            logprobs = trajectory.logprobs[trajectory.turn_id == turn]
            assert logprobs.tolist() == generation.logprobs.tolist(), f"turn {turn}: other log-probabilities"
            difference = np.abs(logprobs - forward(self.model, context, generation.token_ids.tolist())).max()
            self.totals.forward = max(self.totals.forward, float(difference))
            assert difference <= self.tolerance, f"turn {turn}: {difference} from a forward pass"

    def check_learner(self, trajectories: Sequence[Trajectory]) -> None:
        """Compare the learner's log-probabilities of the programs, computed together."""
        scores = self.learner.logprobs(trajectories)
        for trajectory, own in zip(trajectories, scores, strict=True):
            difference = float(np.abs(own - trajectory.logprobs[trajectory.actions]).max())
            self.totals.learner = max(self.totals.learner, difference)
            assert difference <= self.tolerance, f"{trajectory.episode_id}: the learner is {difference} away"

    async def run(self, seeds: Sequence[int]) -> None:
        """Play programs, so many at a time."""
        for first in range(0, len(seeds), self.concurrent):
            part = seeds[first : first + self.concurrent]
            results = await asyncio.gather(*(self.play(seed) for seed in part), return_exceptions=True)
            for seed, result in zip(part, results, strict=True):
                if isinstance(result, BaseException):
                    result.add_note(f"program {seed}: python -m benchmarks.random_programs --first {seed} --programs 1")
                    raise result
            self.check_learner([result for result in results if isinstance(result, Trajectory)])

    async def close(self) -> None:
        await self.backend.close()
        await self.engine.close()


class Seeds:
    """A task for each program; its key is the program's seed."""

    name = "random programs"

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> Task:
        return Task(str(index), "programs", (user("Run."),), None)


async def played(
    seeds: Sequence[int],
    concurrent: int,
    tolerance: float = TOLERANCE,
    report: Callable[[Totals], object] = lambda t: None,
) -> Totals:
    """Play the programs of these seeds, ``concurrent`` at a time, and ``report`` on the way; raise at a broken rule."""
    bench = Bench(max(seeds) + 1, concurrent, tolerance)
    try:
        for first in range(0, len(seeds), 10 * concurrent):
            await bench.run(seeds[first : first + 10 * concurrent])
            report(bench.totals)
    finally:
        await bench.close()
    return bench.totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--concurrent", type=int, default=16, help="programs at a time")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--out", type=Path, help="a JSON file for the result, written on the way, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, seeds = time.monotonic(), range(options.first, options.first + options.programs)

    def report(totals: Totals) -> None:
        differences = {"forward pass": totals.forward, "learner": totals.learner, "tolerance": options.tolerance}
        result = {
            "command": f"python -m benchmarks.random_programs --programs {options.programs} --first {options.first}",
            "counts": dict(sorted(totals.counts.items())),
            "contexts": {str(number): totals.contexts[number] for number in sorted(totals.contexts)},
            "largest difference of log-probabilities": differences,
            "seconds": round(time.monotonic() - start),
        }
        if options.out:
            options.out.write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result), flush=True)

    asyncio.run(played(seeds, options.concurrent, options.tolerance, report))


if __name__ == "__main__":
    main()
