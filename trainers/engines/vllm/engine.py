"""vLLM as an engine: its requests and answers, its weights, its sleep and its counters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save

from textenvs.text import excerpt
from trainers.config.engine import VLLM_MIN_TEMPERATURE, VLLMEngineSection
from trainers.engines.base import EngineError, FinishReason, RequestError, Sampling
from trainers.engines.process_group import Group
from trainers.engines.remote import Flight, RemoteEngine, Reply, UnavailableError
from trainers.engines.server import Answer, UnreachableError, error_text
from trainers.engines.transport import AdapterSource, Bucket, Weights
from trainers.engines.versions import UnsupportedVersionError
from trainers.engines.vllm.command import EXTENSION, server_command
from trainers.engines.vllm.versions import RELEASES, Protocol
from trainers.engines.weight_update import WeightUpdater
from trainers.engines.weights import Sums, differing

# Workers in processes of their own add the second part.
_WRAPPED = re.compile(
    r"Call to \w+ method failed: (?:Worker failed with error '(.*)', please check the stack[^:]*|(?!Worker failed))",
    re.S,
)


class VLLMUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`; the base of a LoRA run is sent once."""

    server = "vLLM"
    checksum_kind = "bits"
    protocol: Protocol  #: of the server's version; set before the first update
    in_place = False  #: whether the workers copy weights over the old ones; set before the first update

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._base: str | None = None  # the base of the workers' adapters

    def check(self, weights: Weights) -> None:
        if not isinstance(weights, AdapterSource):
            super().check(weights)
        elif weights.name != self._base:  # adapters change with every publication; their base is verified once
            super().check(weights.base)

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """See :meth:`trainers.engines.weight_update.WeightUpdater.control`; removes vLLM's text around an error."""
        try:
            return await super().control(path, body)
        except UnreachableError:
            raise
        except EngineError as error:
            raise EngineError(_WRAPPED.sub(r"\1", str(error))) from None

    def _without(self, path: str) -> str:
        return "start it with VLLM_SERVER_DEV_MODE=1"

    async def _send_all(self, source: Any) -> Sums:
        if not isinstance(source, AdapterSource):
            self._base = None
            return await super()._send_all(source)
        if self._base != source.name:
            self._base = None
            await self._send(source.base, "base")
            self._base = source.name
        await self._send(source.adapter, "adapter")
        self.begun = True
        await self._update({"kind": "merge", "scale": source.scale})
        return {}  # the workers have verified it

    def _wrong(self, expected: Sums, actual: Sums) -> list[str]:
        # With one worker, parameters under other names are compared by their total.
        return differing(expected, actual) if self.ranks == 1 else super()._wrong(expected, actual)

    async def _pause(self, *, abort: bool) -> None:
        # Which forgets all KV, also of what runs: that is computed again.
        await self.control(f"/pause?mode={'abort' if abort else 'keep'}&clear_cache=true")

    async def _resume(self) -> None:
        await self.control("/resume")

    async def _sleep(self, *, release: bool) -> None:
        try:
            await self.control(f"/sleep?level={2 if release else 0}&mode=keep")
        except BaseException:
            with contextlib.suppress(EngineError):  # vLLM pauses before it finds out that it cannot sleep
                await self._resume()
            raise

    async def _wake_weights(self) -> None:
        await self.control("/wake_up?tags=weights")

    async def _wake(self) -> None:
        await self.control("/wake_up")

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        try:
            await self.control("/start_weight_update")
        except UnreachableError:
            raise
        except EngineError as error:
            if "already active" not in str(error):
                raise
            await self.control("/finish_weight_update", {})  # of a client that ended in the middle
            await self.control("/start_weight_update")
        yield
        await self.control("/finish_weight_update", {"weight_version": self._label})
        if not self.protocol.reports_weights:
            counts = await self.control("/collective_rpc", {"method": "count_update"})
            self._versions[str(counts["results"][0])] = self._versions[self._label]

    async def _flush(self) -> None:
        """Do nothing: pausing has dropped it."""

    async def _checksums(self) -> Sums:
        ranks = (await self.control("/collective_rpc", {"method": "weight_checksums"}))["results"]
        return {name: tuple(rank.get(name) for rank in ranks) for name in ranks[0]}

    async def _connect_workers(self, address: str, port: int) -> str | None:
        problems = await self._tell("connection_problem", address, port, self._health_timeout_s)
        return next((problem for problem in problems if problem), None)

    async def _reads(self, file: Path, content: str) -> bool | None:
        return all(await self._tell("reads", str(file), content))

    async def _tell(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the workers' extension; return each worker's result."""
        return list((await self.control("/collective_rpc", {"method": method, "args": args}))["results"])

    async def join_group(self, group: Group) -> None:
        await self.control("/init_weight_transfer_engine", {"init_info": {"group": dict(group)}})

    async def leave_group(self, group: Group) -> None:
        await self.control("/init_weight_transfer_engine", {"init_info": {}})

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        self._may_begin()
        await self._update({"kind": self._kind, **bucket})

    async def _take(self, bucket: Bucket) -> None:
        data = await asyncio.to_thread(lambda: base64.b64encode(save(dict(bucket))).decode())
        await self._update({"kind": self._kind, "data": data})

    async def _take_shared(self, references: Sequence[str]) -> None:
        await self._update({"kind": self._kind, "shared": list(references)})

    async def _load(self, folder: Path) -> None:
        await self._update({"kind": self._kind, "path": str(folder / "model.safetensors")})

    async def _update(self, info: Mapping[str, Any]) -> None:
        await self.control("/update_weights", {"update_info": {**info, "in_place": self.in_place}})


#: Prometheus' names of the numbers in ``stats``.
_METRICS = {
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
}


def generate_body(
    token_ids: Sequence[int],
    sampling: Sampling,
    *,
    stops: Sequence[int],
    room: int,
    vocab_size: int,
    protocol: Protocol,
) -> dict[str, Any]:
    """Build the body of ``POST /inference/v1/generate`` for at most ``room`` tokens up to one of ``stops``."""
    parameters: dict[str, Any] = {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "top_k": min(int(sampling.top_k), vocab_size),
        "min_p": float(sampling.min_p),
        "max_tokens": int(room),
        "stop_token_ids": sorted(map(int, stops)),
        "logprobs": protocol.logprobs,
        "detokenize": False,
        "ignore_eos": True,  # stop tokens are those that the request names
    }
    if sampling.seed is not None:
        parameters["seed"] = int(sampling.seed) % 2**63
    return {"token_ids": list(token_ids), "sampling_params": parameters}


def read_reply(body: Any, protocol: Protocol) -> Reply:
    """Parse the answer to ``POST /inference/v1/generate``; EngineError if parts are missing or contradictory."""
    try:
        (choice,) = body["choices"]
        tokens = [int(token) for token in choice["token_ids"]]
        entries = choice["logprobs"]["content"] or []
        logprobs = [float(entry["logprob"]) for entry in entries]
        if protocol.reports_weights:
            spans = choice["weight_versions"] or ()
            labels = [str(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
        else:  # the sampler's second "log-probability" is the number of updates
            labels = [str(int(entry["top_logprobs"][1]["logprob"])) for entry in entries]
        reason, details = choice["finish_reason"], body["usage"]["prompt_tokens_details"]
    except (IndexError, KeyError, TypeError, ValueError):
        raise EngineError(f"vLLM's answer cannot be read: {excerpt(str(body))}") from None
    if details is None:
        raise EngineError("vLLM does not say what it found in its cache; start it with --enable-prompt-tokens-details")
    if len(logprobs) != len(tokens) or len(labels) != len(tokens) or reason not in get_args(FinishReason):
        raise EngineError(f"the parts of vLLM's answer contradict each other: {excerpt(str(body))}")
    return Reply(tokens, logprobs, labels, reason, int(details["cached_tokens"] or 0))


def read_metrics(text: str) -> dict[str, float]:
    """Read the numbers of ``Engine.stats`` from Prometheus' text format."""
    sums: Counter[str] = Counter()
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if brace and name in _METRICS:
            with contextlib.suppress(ValueError):
                sums[_METRICS[name]] += float(rest.rpartition("} ")[2])  # type: ignore[assignment]
    return dict(sums)


def check_description(answer: Answer, vocab_size: int, max_context: int) -> dict[str, Any]:
    """Check and return the first worker's description (``POST /collective_rpc``). EngineError: unsuitable."""
    if answer.status == 404:
        raise EngineError("it has no endpoints for weights; start it with VLLM_SERVER_DEV_MODE=1")
    if answer.status != 200 or not isinstance(answer.body, Mapping) or not answer.body.get("results"):
        problem = error_text(answer.body)
        if "describe_to_the_trainer" in problem:
            raise EngineError(f"its workers lack our extension; start it with --worker-extension-cls {EXTENSION}")
        raise EngineError(f"/collective_rpc answers {answer.status}: {problem}")
    described = dict(answer.body["results"][0])
    vocab, context = described["vocab_size"], described["max_context"]
    for good, problem in (
        (described["sampler"], "its sampler is not ours; start it with VLLM_USE_V2_MODEL_RUNNER=0"),
        (described["transfer"], 'start it with --weight-transfer-config \'{"backend": "textenvs"}\''),
        (
            described["reads_prompts"],
            "on a CPU it dies of a seeded prompt that it reads in parts; start it with --no-enable-chunked-prefill "
            f"--max-num-batched-tokens {max(4096, context)}",
        ),
        (
            vocab == vocab_size,
            f"it serves a model with {vocab} tokens, and this one has {vocab_size}; start it with a folder of the same "
            "model",
        ),
        (
            context >= max_context,
            f"its context is {context} tokens, and max_context is {max_context}; start it with "
            f"--max-model-len {max_context}",
        ),
    ):
        if not good:
            raise EngineError(problem)
    return described


def spans(ids: Sequence[int]) -> list[list[int]]:
    """Convert sorted ids to spans, ``[start, end)`` each."""
    starts = [token for before, token in pairwise([-2, *ids]) if token != before + 1]
    ends = [token + 1 for token, after in pairwise([*ids, -2]) if after != token + 1]
    return [list(pair) for pair in zip(starts, ends, strict=True)]


_METRICS_S = 0.5  # between two polls of the server's counters, while requests run
_GENERATE = "/inference/v1/generate"


class VLLMEngine(RemoteEngine):
    """Serves with vLLM (:class:`trainers.engines.remote.RemoteEngine`); refuses ``0 < T < VLLM_MIN_TEMPERATURE``."""

    kind = "vLLM"
    health_path = "/health"
    server_command = staticmethod(server_command)
    updater_class = VLLMUpdater
    _updater: VLLMUpdater
    _section: VLLMEngineSection
    _protocol: Protocol
    _server_stats: Mapping[str, float] = {}  # the server's counters, and its gauges
    _before: Mapping[str, float] = {}  # its counters when this began

    def stats(self) -> dict[str, float]:
        """See :meth:`trainers.engines.remote.RemoteEngine.stats`; the server's counters are up to half a second old.

        Beside the protocol's: ``steps``, ``preemptions`` (requests whose KV blocks were dropped, for memory or for an
        update, and computed again) and ``kv_use`` (share of the KV blocks in use).
        """
        own = super().stats()
        counted = {name: count - self._before.get(name, 0.0) for name, count in self._server_stats.items()}
        queued = min(counted.get("waiting", 0.0), own["running"])
        return {
            **own,
            "generated_tokens": max(own["generated_tokens"], counted.get("generated_tokens", 0.0)),
            **{name: counted.get(name, 0.0) for name in ("steps", "preemptions", "kv_use")},
            "running": own["running"] - queued,
            "waiting": own["waiting"] + queued,
        }

    async def _meet(self, answer: Any) -> None:
        updater = self._updater
        try:
            self._protocol = updater.protocol = RELEASES.choose(str(await self._get("/version", "version")))
        except UnsupportedVersionError as error:
            raise EngineError(str(error)) from None
        if await self._get("/is_sleeping", "is_sleeping"):  # left so by a client that died
            await updater.control("/wake_up")
        answer = await self._client.request("POST", "/collective_rpc", {"method": "describe_to_the_trainer"})
        described = check_description(answer, self._vocab_size, self.max_context)
        # Also where there are none: a client before this one may have had others.
        await updater.control("/collective_rpc", {"method": "leave_out", "args": [spans(self._unused_token_ids)]})
        updater.connect(
            device=described["device"],
            ranks=await self._get("/get_world_size", "world_size"),
            dtype=getattr(torch, described["dtype"]),
            label=str(
                await self._get("/weight_info", "weight_version")
                if self._protocol.reports_weights
                else described["updates"]
            ),
            version=self.version,
            places=[worker["place"] for worker in answer.body["results"]],
        )
        updater.in_place = bool(described.get("in_place"))
        await updater.control("/resume")
        # Some models that vLLM loads it cannot compute (on a CPU, heads of 8 dimensions): that ends the server, so now.
        first = self._body([0], Sampling(temperature=0.0), stops=(), room=1)
        answer = await self._client.request("POST", _GENERATE, first)
        if answer.status == 401:
            raise EngineError("it wants a key, and this is not the one it has; set VLLM_API_KEY")
        read_reply(answer.body, self._protocol)
        self._before = {**await self._metrics(), "waiting": 0.0, "kv_use": 0.0}
        self._spawn(self._look_at_metrics())

    async def _get(self, path: str, name: str) -> Any:
        answer = await self._client.request("GET", path, timeout=self._update_timeout_s)
        if answer.status != 200 or not isinstance(answer.body, Mapping) or name not in answer.body:
            raise EngineError(f"{path} answers {answer.status}: start it with VLLM_SERVER_DEV_MODE=1")
        return answer.body[name]

    def _check_sampling(self, sampling: Sampling) -> None:
        if 0 < sampling.temperature < VLLM_MIN_TEMPERATURE:
            raise RequestError(
                f"temperature {sampling.temperature}: vLLM's server raises all below {VLLM_MIN_TEMPERATURE} to that; "
                "0 decodes greedily"
            )

    async def _ask(self, flight: Flight, made: Sequence[int], stops: Sequence[int], room: int) -> Reply:
        body = self._body(flight.prompt.tolist(), flight.sampling, stops=stops, room=room)
        try:
            answer = await self._post(_GENERATE, lambda: body, flight)
        except UnavailableError:
            if self._protocol.refuses_while_paused and flight.may_abort:  # the update came before this request
                return Reply((), (), (), "abort", 0)
            raise
        return read_reply(answer, self._protocol)

    def _body(self, prompt: Sequence[int], sampling: Sampling, **limits: Any) -> dict[str, Any]:
        return generate_body(prompt, sampling, **limits, vocab_size=self._vocab_size, protocol=self._protocol)

    def _over(self, flight: Flight, reply: Reply, stopped: bool, room: int) -> FinishReason:
        return reply.finish_reason

    def _withdraw(self, flight: Flight) -> None:
        assert flight.task is not None
        flight.task.cancel()  # which closes its connection, upon which the server aborts the request

    async def _metrics(self) -> dict[str, float]:
        answer = await self._client.request("GET", "/metrics", timeout=self._health_timeout_s)
        return read_metrics(str(answer.body)) if answer.status == 200 else {}

    async def _look_at_metrics(self) -> None:
        while self._end is None:
            await asyncio.sleep(_METRICS_S)
            if self._flights:
                with contextlib.suppress(UnreachableError):
                    self._server_stats = await self._metrics()
