"""A served vLLM's HTTP endpoints: what is asked, and what is made of the answers. Of vLLM 0.32.

Tokens come from ``/inference/v1/generate``; weights, pauses and sleep are vLLM's endpoints for reinforcement learning,
which exist with ``VLLM_SERVER_DEV_MODE=1``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from textenvs.text import excerpt
from trainers.engines.base import EngineDeadError, EngineError, FinishReason, RequestError
from trainers.engines.http import Client, UnreachableError, error_text
from trainers.engines.vllm.engine import Reply

EXTENSION = "trainers.engines.vllm.server.extension.WorkerExtension"
_PIECE = 32 * 2**20  # bytes of weights in one message
_WRAPPED = re.compile(r"^Call to \w+ method failed: Worker failed with error '(.*)', please check the stack.*$", re.S)
#: Prometheus' names of what ``stats`` has.
_METRICS = {
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:iteration_tokens_total_count": "steps",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_use",
}


class Controls:
    """See :class:`trainers.engines.vllm.whole.Controls`; and requests, sleep, and what the server says of itself.

    Args:
        client: Of the server.
        timeout: Seconds for one step of an update.
        upload: Whether files of weights are sent; else the server finds them where they were written.
    """

    dead: type[Exception] = EngineDeadError

    def __init__(self, client: Client, *, timeout: float, upload: bool) -> None:
        self._client, self._timeout, self._upload = client, timeout, upload
        # The server's names for weights begin with what no earlier run on that server has used.
        self._prefix = uuid.uuid4().hex[:8]
        self._uploads = itertools.count()
        self._base: tuple[str, str] | None = None  # a file that the server keeps below adapters, and its name there
        self.draining = False  #: whether an update waits for what runs

    # Requests

    async def generate(self, prompt: NDArray[np.int32], parameters: Mapping[str, Any]) -> Reply:
        """One request.

        Args:
            prompt: int32 ``[n]``.
            parameters: Of vLLM's ``SamplingParams``.

        Raises:
            RequestError: It was refused.
            UnreachableError: No answer came.
            EngineError: The answer is an error, or cannot be read.
        """
        given = {name: value for name, value in parameters.items() if value is not None}
        body = {"token_ids": prompt.tolist(), "sampling_params": given}
        answer = await self._client.request("POST", "/inference/v1/generate", body)
        if answer.status in (400, 422):
            raise RequestError(f"vLLM refuses the request: {error_text(answer.body)}")
        if answer.status == 401:
            raise EngineError("vLLM wants a key, and this is not the one it has; set VLLM_API_KEY")
        if answer.status != 200:
            raise EngineError(f"vLLM answered {answer.status}: {error_text(answer.body)}")
        return read_reply(answer.body, self._prefix)

    # Weights

    async def deliver(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a payload's file ahead, while the server computes on, where it cannot see that itself.

        Returns:
            The message for :meth:`load`.
        """
        if not self._upload or "path" not in message:
            return message
        await self._start()
        sent = {"checksums": message["checksums"]}
        if (base := message.get("base")) is None:
            self._base = None
        else:
            if self._base is None or self._base[0] != base["path"]:
                self._base = base["path"], await self._send(base["path"], base=True)
            sent["base"] = {"upload": self._base[1], "checksums": base["checksums"], "scale": base["scale"]}
        sent["upload"] = await self._send(message["path"])
        await self._post("/finish_weight_update", {})
        return sent

    async def _send(self, path: str, *, base: bool = False) -> str:
        """Send a file; the name that the server has it by."""
        name = f"{self._prefix}-{next(self._uploads)}"  # not the version: an attempt may break off and be made again
        kind = {"base": {"upload": name}} if base else {}
        with Path(path).open("rb") as file:
            while piece := await asyncio.to_thread(lambda: base64.b64encode(file.read(_PIECE)).decode()):
                await self._post("/update_weights", {"update_info": {"upload": name, "piece": piece, **kind}})
        return name

    async def pause(self, mode: str) -> None:
        """Stop computing and forget all KV; in mode ``wait``, when all that runs has ended."""
        self.draining = mode == "wait"
        try:
            await self._post(f"/pause?mode={mode}&clear_cache=true", patient=self.draining)
        finally:
            self.draining = False

    async def load(self, payload: Mapping[str, Any], version: int | None) -> None:
        """Have the worker take these weights."""
        await self._start()
        await self._post("/update_weights", {"update_info": dict(payload)})
        await self._post("/finish_weight_update", {} if version is None else {"weight_version": self._label(version)})

    async def resume(self) -> None:
        """Go on."""
        await self._post("/resume")

    async def begin(self) -> None:
        """Meet the weights' backend; and undo what a client may have left that ended in the middle."""
        if (await self._get("/is_sleeping")).get("is_sleeping"):
            await self._post("/wake_up")
        await self._post("/init_weight_transfer_engine", {"init_info": {}})

    async def _start(self) -> None:
        try:
            await self._post("/start_weight_update")
        except UnreachableError:
            raise
        except EngineError as error:
            if "already active" not in str(error):
                raise
            await self._post("/finish_weight_update", {})  # of a client that ended in the middle
            await self._post("/start_weight_update")

    def _label(self, version: int) -> str:
        return f"{self._prefix}:{version}"

    # Sleep

    async def sleep(self, level: int) -> None:
        """Stop computing, and give memory back at level 1; requests are kept."""
        try:
            await self._post(f"/sleep?level={level}&mode=keep")
        except EngineError:
            with contextlib.suppress(EngineError):  # vLLM pauses before it finds out that it cannot sleep
                await self.resume()
            raise

    async def wake(self) -> None:
        """Go on."""
        await self._post("/wake_up")

    # What it is

    async def healthy(self, timeout: float) -> bool:
        """Whether it has an engine that lives.

        Raises:
            UnreachableError: It does not say.
        """
        return (await self._client.request("GET", "/health", timeout=timeout)).status == 200

    async def describe(self) -> dict[str, Any]:
        """What its worker says; see :class:`trainers.engines.vllm.server.extension.WorkerExtension`.

        Raises:
            EngineError: It was started without what is needed; says with what.
        """
        answer = await self._client.request(
            "POST", "/collective_rpc", {"method": "describe_to_the_trainer"}, timeout=self._timeout
        )
        if answer.status == 404:
            raise EngineError("it has no endpoints for weights; start it with VLLM_SERVER_DEV_MODE=1")
        if answer.status != 200:
            problem = self._problem(answer.body)
            if "describe_to_the_trainer" in problem:
                raise EngineError(f"its worker knows nothing of us; start it with --worker-extension-cls {EXTENSION}")
            raise EngineError(f"/collective_rpc answers {answer.status}: {problem}")
        said = answer.body.get("results") if isinstance(answer.body, Mapping) else None
        world = (await self._get("/get_world_size")).get("world_size")
        if not isinstance(said, list) or len(said) != 1 or world != 1:
            raise EngineError(f"it has {world} workers, and checksums know one; start so many servers instead")
        if not said[0]["sampler"]:
            raise EngineError("its sampler is not ours; start it with VLLM_USE_V2_MODEL_RUNNER=0")
        if not said[0]["transfer"]:
            raise EngineError('start it with --weight-transfer-config \'{"backend": "textenvs"}\'')
        if not said[0]["reads_prompts"]:
            raise EngineError(
                "on a CPU it dies of a seeded prompt that it reads in parts; start it with --no-enable-chunked-prefill "
                f"--max-num-batched-tokens {max(4096, said[0]['max_context'])}"
            )
        return dict(said[0])

    async def stats(self, timeout: float) -> dict[str, float]:
        """Its counters and gauges, by the names that ``Engine.stats`` has; sums over the engines of the server."""
        answer = await self._client.request("GET", "/metrics", timeout=timeout)
        return read_metrics(str(answer.body)) if answer.status == 200 else {}

    # HTTP

    async def _get(self, path: str) -> Mapping[str, Any]:
        answer = await self._client.request("GET", path, timeout=self._timeout)
        if answer.status != 200 or not isinstance(answer.body, Mapping):
            raise EngineError(f"{path} answers {answer.status}: {error_text(answer.body)}")
        return answer.body

    async def _post(self, path: str, body: Mapping[str, Any] | None = None, *, patient: bool = False) -> None:
        # Alone: vLLM's server closes a connection after each answer that is an error.
        timeout = None if patient else self._timeout
        answer = await self._client.request("POST", path, body, timeout=timeout, alone=True)
        if answer.status != 200:
            raise EngineError(f"{path} answers {answer.status}: {self._problem(answer.body)}")

    @staticmethod
    def _problem(body: Any) -> str:
        """What went wrong in the worker, without what vLLM says around it."""
        text = error_text(body)
        return found[1] if (found := _WRAPPED.match(text)) else text


def read_reply(body: Any, prefix: str) -> Reply:
    """What a request brought.

    Args:
        body: The answer of ``/inference/v1/generate``.
        prefix: Of the names of our weights.

    Raises:
        EngineError: It is no such answer, or its tokens are of weights that somebody else brought.
    """
    try:
        (choice,) = body["choices"]
        tokens = np.asarray(choice["token_ids"], np.int32)
        content = choice["logprobs"]["content"] or []
        logprobs = np.asarray([each["logprob"] for each in content], np.float32)
        versions = np.full(len(tokens), -1, np.int32)
        labels: set[str] = set()
        for span in choice["weight_versions"] or ():
            owner, _, version = span["version"].partition(":")
            labels |= {span["version"]} if owner != prefix else set()
            versions[span["start"] : span["end"]] = int(version) if owner == prefix else 0
        reason, details = choice["finish_reason"], body["usage"]["prompt_tokens_details"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise EngineError(f"vLLM's answer cannot be read: {excerpt(str(body))}") from None
    if labels:
        raise EngineError(f"vLLM computed with weights {', '.join(sorted(labels))}, which somebody else gave it")
    if details is None:
        raise EngineError("vLLM does not say what it found in its cache; start it with --enable-prompt-tokens-details")
    if len(logprobs) != len(tokens) or (versions < 0).any() or reason not in get_args(FinishReason):
        raise EngineError(f"vLLM's answer does not go together: {excerpt(str(body))}")
    return Reply(tokens, logprobs, versions, reason, int(details["cached_tokens"] or 0))


def read_metrics(text: str) -> dict[str, float]:
    """The numbers that ``Engine.stats`` has, of Prometheus' text format."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if brace and name in _METRICS:
            with contextlib.suppress(ValueError):
                key = _METRICS[name]
                sums[key] = sums.get(key, 0.0) + float(rest.rpartition("} ")[2])
    return sums
