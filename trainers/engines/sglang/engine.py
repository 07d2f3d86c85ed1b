"""SGLang as an engine: its requests and answers, and its weights."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import pickle
import random
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import ne
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import torch
from pydantic import BaseModel, Field, ValidationError, model_validator

from textenvs.text import excerpt
from trainers.config.engine import SGLangEngineSection
from trainers.engines.base import EngineError, FinishReason, RequestError, Sampling
from trainers.engines.process_group import Group
from trainers.engines.remote import Flight, RemoteEngine, Reply
from trainers.engines.server import UnreachableError, error_text
from trainers.engines.sglang.command import server_command
from trainers.engines.sglang.versions import RELEASES, Protocol
from trainers.engines.shared_memory import place_of
from trainers.engines.transport import Bucket
from trainers.engines.versions import UnsupportedVersionError
from trainers.engines.weight_update import WeightUpdater
from trainers.engines.weights import Sums

_FLUSH_AGAIN_S = 0.2

log = logging.getLogger("trainers")


class SGLangUpdater(WeightUpdater):
    """See :class:`trainers.engines.weight_update.WeightUpdater`."""

    server = "SGLang"
    protocol: Protocol  #: of the server's version; set before the first update

    @property
    def answers_early(self) -> bool:  # type: ignore[override]
        """True on GPUs: a rank answers while another's copies may still be queued."""
        return self.ranks > 1 and self.device == "cuda"

    _without_cache = False
    checksum_kind = "sha256"

    def _differs(self, name: str, expected: Sums, actual: Sums) -> bool:
        """Compare checksums; on GPUs SGLang's are different, but must change exactly where the sent weights do."""
        if self.device == "cpu" and self._dtype is not None:
            return super()._differs(name, expected, actual)
        if name not in self._expected or name not in self._actual:
            return False
        sent, stored = map(ne, expected[name], self._expected[name]), map(ne, actual[name], self._actual[name])
        return list(sent) != list(stored)

    def _without(self, path: str) -> str:
        return f"the oldest supported version is {RELEASES.oldest}"

    async def _pause(self, *, abort: bool) -> None:
        # "retract" gives up the KV of what runs, which is then computed again with the new weights; "in_place" would
        # continue from KV of the old ones. What is aborted without ``abort`` is asked for again, from where it ended.
        retract = not abort and self.protocol.flushes_while_waiting
        await self.control("/pause_generation", {"mode": "retract" if retract else "abort"})

    async def _resume(self) -> None:
        await self.control("/continue_generation", {})

    async def _sleep(self, *, release: bool) -> None:
        await self._pause(abort=False)
        self._without_cache = release
        if release:
            try:
                await self.control("/release_memory_occupation", {"tags": ["kv_cache", "weights", "cuda_graph"]})
            except BaseException:
                with contextlib.suppress(EngineError):
                    await self._resume()
                raise

    async def _wake_weights(self) -> None:
        await self.control("/resume_memory_occupation", {"tags": ["weights"]})

    async def _wake(self) -> None:
        if self._without_cache:
            await self.control("/resume_memory_occupation", {"tags": ["kv_cache", "cuda_graph"]})
            self._without_cache = False
        await self._resume()

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        if self.transport == "disk" or not self.protocol.has_sessions:  # an update from disk is one of its own
            yield
            return
        try:
            await self.control("/begin_weight_update", {})
        except UnreachableError:
            raise
        except EngineError:  # a crashed client may have left one open
            await self.control("/end_weight_update", {})
            await self.control("/begin_weight_update", {})
        try:
            yield
        except BaseException:
            with contextlib.suppress(EngineError):  # the first error is raised
                await self.control("/end_weight_update", {})
            raise
        await self.control("/end_weight_update", {})

    async def _flush(self) -> None:
        """Flush the cache; the server refuses while it is busy, so retry."""
        if self.asleep and self.device == "cuda" and not self.verify:
            await self._checksums()  # its ranks then have read the buckets, which are freed before it wakes
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._health_timeout_s
        while True:
            try:
                await self.control("/flush_cache", {})
                return
            except UnreachableError:
                raise
            except EngineError:
                if clock() > deadline:
                    raise
            await asyncio.sleep(_FLUSH_AGAIN_S)

    async def _checksums(self) -> Sums:
        return read(Checksums, await self.control("/weights_checker", {"action": "checksum"})).by_name()

    async def join_group(self, group: Group) -> None:
        await self.control(
            "/init_weights_update_group",
            {
                "master_address": group["address"],
                "master_port": group["port"],
                "rank_offset": 1,
                "world_size": group["size"],
                "group_name": group["name"],
                "backend": group["backend"],
            },
        )

    async def leave_group(self, group: Group) -> None:
        await self.control("/destroy_weights_update_group", {"group_name": group["name"]})

    async def receive(self, bucket: Mapping[str, Any], group: Group) -> None:
        self._may_begin()
        await self._update("distributed", {**bucket, "group_name": group["name"]})

    async def _take(self, bucket: Bucket) -> None:
        pickled = await asyncio.to_thread(payload, bucket)
        await self._update("tensor", {"serialized_named_tensors": [pickled] * self.ranks})

    async def _take_shared(self, references: Sequence[str]) -> None:
        await self._update("tensor", {"serialized_named_tensors": list(references)})

    async def _load(self, folder: Path) -> None:
        await self._update("disk", {"model_path": str(folder)})

    async def _update(self, way: str, body: Mapping[str, Any]) -> None:
        common = {"flush_cache": False, "weight_version": self._label}
        await self.control(f"/update_weights_from_{way}", {**body, **common})


def payload(bucket: Bucket) -> str:
    """Encode a bucket for ``/update_weights_from_tensor``: base64 of a pickle of named CPU tensors."""
    # A pickled tensor takes its whole storage along; a slice must not take what it was cut from.
    alone = [
        (name, value if value.untyped_storage().nbytes() == value.nbytes else value.clone()) for name, value in bucket
    ]
    return base64.b64encode(pickle.dumps(alone)).decode("ascii")


_Shape = TypeVar("_Shape", bound=BaseModel)

_NEVER = -1e30  # as a bias: divided by the lowest temperature it is still a float32
_ONLY_THE_BEST = 1e-6  # as top_p: the likeliest of fewer than a million tokens has more


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Reason(BaseModel):
    type: Literal["stop", "length", "abort"]
    message: str | None = None


class _Meta(BaseModel):
    finish_reason: _Reason
    #: ``[log-probability, token id, text or null]``, one a token.
    output_token_logprobs: list[tuple[Annotated[float, Field(allow_inf_nan=False)], int, Any]] = []
    weight_versions: list[_Span] = []
    completion_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV was reused

    @model_validator(mode="after")
    def _is_whole(self) -> _Meta:
        count = len(self.output_token_logprobs)
        # An abort may come between a token and its log-probability.
        if count != self.completion_tokens and self.finish_reason.type != "abort":
            raise ValueError(f"{count} output_token_logprobs for {self.completion_tokens} completion_tokens")
        ends = [0, *(span.end for span in self.weight_versions)]
        if [span.start for span in self.weight_versions] != ends[:-1] or ends[-1] < count:
            raise ValueError(f"weight_versions do not cover the {count} tokens")
        return self


class _Answer(BaseModel):
    meta_info: _Meta


class ServerInfo(BaseModel):
    """The answer to ``GET /server_info``."""

    version: str
    device: str
    dtype: str = "auto"
    tp_size: int = 1
    dp_size: int = 1
    max_req_input_len: int | None = None  # prompts are shorter
    enable_deterministic_inference: bool = False

    def check(self, max_context: int) -> None:
        """Refuse, with EngineError, a server whose context is too short, or that has data-parallel replicas."""
        if self.max_req_input_len is not None and max_context > self.max_req_input_len:
            raise EngineError(
                f"it takes prompts below {self.max_req_input_len} tokens, and max_context is {max_context}; start it "
                f"with --context-length {max_context + 8} or more, and room for as many tokens of KV, or lower "
                "max_context"
            )
        if self.dp_size != 1:
            raise EngineError(
                f"it has {self.dp_size} data-parallel replicas, which SGLang does not give new weights; start so many "
                "servers instead"
            )


class _Rank(BaseModel):
    checksums: dict[str, str]


class Checksums(BaseModel):
    """The answer of ``POST /weights_checker`` to ``{"action": "checksum"}``: one set per tensor-parallel rank."""

    ranks: list[_Rank] = Field(min_length=1)

    def by_name(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(rank.checksums.get(name, "") for rank in self.ranks) for name in self.ranks[0].checksums}


def generate_body(
    token_ids: Sequence[int],
    sampling: Sampling,
    *,
    stops: Sequence[int],
    room: int,
    vocab_size: int,
    seed: int | None,
    unused: Sequence[int] = (),
) -> dict[str, Any]:
    """Build the body of ``POST /generate`` for at most ``room`` tokens up to one of ``stops``, without ``rid``.

    A bias keeps ``unused`` ids from being sampled; SGLang adds it before it computes log-probabilities.
    """
    top_p, top_k = sampling.top_p, sampling.top_k if 0 < sampling.top_k < vocab_size else -1
    if top_k == 1 and sampling.temperature > 0:
        # SGLang takes a batch of nothing but top_k = 1 for greedy decoding, whose log-probs are without temperature.
        top_p, top_k = _ONLY_THE_BEST, -1
    parameters: dict[str, Any] = {
        "max_new_tokens": room,
        "temperature": sampling.temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": sampling.min_p,
        "stop_token_ids": list(stops),
        "ignore_eos": sampling.ignore_stop,
        "skip_special_tokens": False,
    }
    if seed is not None:
        parameters["sampling_seed"] = seed
    if unused:
        parameters["logit_bias"] = {str(token): _NEVER for token in unused}
    return {"input_ids": list(token_ids), "sampling_params": parameters, "return_logprob": True}


def server_seed(seed: int) -> int:
    """Map any integer to a seed that SGLang takes: 63 bits, different for different seeds (but for a collision)."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "big") >> 1


def read_reply(answer: Any, vocab_size: int) -> Reply:
    """Parse the answer to ``POST /generate``. Raises ``EngineError``: it is invalid or contradictory."""
    meta = read(_Answer, answer).meta_info
    tokens, logprobs = (
        [entry[1] for entry in meta.output_token_logprobs],
        [entry[0] for entry in meta.output_token_logprobs],
    )
    if not all(0 <= token < vocab_size for token in tokens):
        raise EngineError(f"the SGLang server's answer has tokens outside a vocabulary of {vocab_size}")
    labels = [span.version for span in meta.weight_versions for _ in range(span.start, span.end)][: len(tokens)]
    reason = meta.finish_reason
    return Reply(tokens, logprobs, labels, reason.type, meta.cached_tokens, reason.message)


def read(shape: type[_Shape], answer: Any) -> _Shape:
    """Validate an answer. Raises ``EngineError``: it has another shape; the message quotes both."""
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise EngineError(
            f"the SGLang server's answer does not fit: {where or 'it'}: {first['msg']}: "
            f"{excerpt(json.dumps(answer, default=str))}"
        ) from None


def places_of(info: ServerInfo, url: str, gpu: int | None, *, started: bool) -> list[str] | None:
    """Return the places of the workers' memory, which SGLang does not tell; ``None`` if they cannot be known.

    ``gpu`` is the first one of a server that this process ``started``.
    """
    if info.device != "cuda":
        is_local = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
        return [place_of("cpu")] * info.tp_size if is_local else None
    if not started:
        return None
    count = max(torch.cuda.device_count(), 1)
    return [place_of(f"cuda:{((gpu or 0) + rank) % count}") for rank in range(info.tp_size)]


_ABORT_AGAIN_S = 0.1
_INFO_S = 30.0


class SGLangEngine(RemoteEngine):
    """Serves with SGLang; see :class:`trainers.engines.remote.RemoteEngine`.

    Where SGLang differs from the protocol:

    * ``Sampling.seed`` is honoured by servers in deterministic mode alone (:attr:`honours_seeds`); others draw from one
      stream of their own. In that mode SGLang cannot do ``min_p`` (it would die), so a request with it is refused.
    * ``top_p`` looks at the whole distribution, not at what ``top_k`` left (:attr:`joint_cuts`): where both are given,
      some more tokens can be sampled. Log-probs are the protocol's in any case.
    * ``stats`` counts tokens when their request ends, not while it runs.
    """

    joint_cuts = True  #: see the class's text
    counts_in_flight = False  #: whether ``stats()["generated_tokens"]`` has the tokens of requests that still run

    kind = "SGLang"
    health_path = "/model_info"
    server_command = staticmethod(server_command)
    updater_class = SGLangUpdater
    _updater: SGLangUpdater
    _section: SGLangEngineSection
    _info: ServerInfo | None = None

    @property
    def honours_seeds(self) -> bool | None:
        """True if the server seeds each request; ``None`` before it was reached."""
        return None if self._info is None else self._info.enable_deterministic_inference

    async def probe(self) -> int:
        """See :func:`trainers.engines.base.probe`. SGLang's health check counts tokens of running requests."""
        await self.ready()
        answer = await self._client.request("GET", "/health")
        if answer.status != 200:
            raise EngineError(f"{self._name}: /health answers {answer.status}: {error_text(answer.body)}")
        return 0

    async def _meet(self, answer: Any) -> None:
        info = read(ServerInfo, (await self._client.request("GET", "/server_info", timeout=_INFO_S)).body)
        try:
            self._updater.protocol = RELEASES.choose(info.version)
        except UnsupportedVersionError as error:
            raise EngineError(str(error)) from None
        info.check(self.max_context)
        label, dtype = str(answer["weight_version"]), getattr(torch, info.dtype, None)  # "auto" says nothing
        places = places_of(info, self._client.base_url, self._gpu, started=self._server is not None)
        self._updater.connect(
            device=info.device,
            ranks=info.tp_size,
            dtype=dtype,
            label=label,
            version=self.version,
            places=places,
        )
        self._info, self._random = info, random.Random(self._seed)
        if not info.enable_deterministic_inference:
            log.info("%s does not honour seeds: it is not in deterministic mode", self._name)

    def _check_sampling(self, sampling: Sampling) -> None:
        if self.honours_seeds and sampling.min_p > 0:
            raise RequestError("min_p: SGLang in deterministic mode cannot do it; leave it 0 or start without seeds")

    async def _ask(self, flight: Flight, made: Sequence[int], stops: Sequence[int], room: int) -> Reply:
        sampling = flight.sampling
        if self.honours_seeds and flight.seed is None:
            flight.seed = server_seed(self._random.getrandbits(63) if sampling.seed is None else sampling.seed)
        body = generate_body(
            [*flight.prompt.tolist(), *made],
            sampling,
            stops=stops,
            room=room,
            vocab_size=self._vocab_size,
            seed=flight.seed,
            unused=self._unused_token_ids,
        )

        def named() -> dict[str, Any]:
            # Of a fixed length, and no name twice: aborts go by prefix.
            flight.rid = uuid.uuid4().hex
            return {"rid": flight.rid, **body}

        reply = read_reply(await self._post("/generate", named, flight), self._vocab_size)
        if len(reply.token_ids) > room:
            raise EngineError(f"the SGLang server returned {len(reply.token_ids)} tokens where {room} were asked for")
        return reply

    def _over(self, flight: Flight, reply: Reply, stopped: bool, room: int) -> FinishReason | None:
        if flight.cancelled:
            return "abort"
        if reply.finish_reason == "abort":
            if flight.interrupted and not (flight.may_abort or self._updater.protocol.flushes_while_waiting):
                flight.interrupted = False
                return "stop" if stopped else "length" if room <= 0 else None
            if not flight.may_abort:
                raise EngineError(f"the SGLang server aborted the request: {reply.message}")
            return "abort"
        if stopped:
            return "stop"
        if room <= 0:
            return "length"
        # The model's own end-of-text token, which is none of ours; or the server keeps shorter contexts than it said.
        if not reply.token_ids:
            raise EngineError(f"the SGLang server ended the request without a token ({reply.finish_reason})")
        return None

    def _withdraw(self, flight: Flight) -> None:
        self._spawn(self._abort(flight))

    async def _abort(self, flight: Flight) -> None:
        """Repeat the abort until the request's answer arrives: an abort that overtakes its request has no effect."""
        while flight in self._flights and flight.task is not None:
            with contextlib.suppress(UnreachableError):
                body, timeout = {"rid": flight.rid}, self._health_timeout_s
                await self._client.request("POST", "/abort_request", body, timeout=timeout)
            await asyncio.wait([flight.task], timeout=_ABORT_AGAIN_S)
            if self._end is not None and not self._closed:
                return
