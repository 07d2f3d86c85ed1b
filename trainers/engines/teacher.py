"""A teacher that a server holds: the log-probabilities of given tokens, from vLLM or SGLang.

Both give the log-probability of each token of a prompt, at temperature 1 and over the whole vocabulary, and of the
model's most likely tokens at its place: vLLM as ``prompt_logprobs`` of ``/v1/completions``, SGLang as
``input_token_logprobs`` and ``input_top_logprobs`` of ``/generate``. Prompts are token ids,
so nothing is tokenised again; that the server's tokenizer is the policy's is asked of ``/tokenize``, which both have.
The weights are the server's own and never updated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from textenvs.text import excerpt
from trainers.engines.base import EngineError
from trainers.engines.server import Client, UnreachableError, error_text
from trainers.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("trainers")

_TRIES, _WAIT_S = 3, 2.0  # of a request that no answer came to, and between them
_AT_ONCE = 32  # requests; a server batches them
_PROBED = 256  # tokens of the vocabulary, by which tokenizers are compared
_TEXT = "Don't stop: 12345 + 6789.\n\n\tdef f(x):\n        return x  # d\u00e9j\u00e0 vu \u2014 \u4f60\u597d \U0001f642"


class _Scores(NamedTuple):
    """Scores of ``L`` tokens."""

    logprobs: NDArray[np.float32]  #: ``[L]``
    ids: NDArray[np.int32]  #: ``[L, k]``; the most likely tokens at each place; -1 where there are fewer
    top: NDArray[np.float32]  #: ``[L, k]``; their log-probabilities, 0 where there are fewer

    @classmethod
    def empty(cls, length: int, top_k: int, logprob: float = 0.0) -> _Scores:
        ids, top = np.full((length, top_k), -1, np.int32), np.zeros((length, top_k), np.float32)
        return cls(np.full(length, logprob, np.float32), ids, top)

    def at(self, places: NDArray[np.int64]) -> _Scores:
        return _Scores(self.logprobs[places], self.ids[places], self.top[places])


class ServedTeacher:
    """A model at ``address`` that scores tokens; its methods block, and are for a thread without an event loop.

    It also names the ``top_k`` most likely tokens of each distribution.
    With the key of ``VLLM_API_KEY`` or ``SGLANG_API_KEY``, where the server has one. ImportError: aiohttp is missing.
    """

    def __init__(self, address: str, top_k: int = 0) -> None:
        self.address = address
        self.top_k = top_k
        self._kind: Literal["vllm", "sglang"] | None = None
        self._model = ""
        self._limit: int | None = None  # of a prompt's tokens and the one that it must generate

    def meet(self, max_context: int, tokenizer: PreTrainedTokenizerBase) -> None:
        """Ask the server what it is, and try it with a few tokens, and with texts for the policy's ``tokenizer``.

        EngineError: it cannot score, does not answer, has another tokenizer, or takes less than ``max_context`` tokens
        and one that it must generate. A server that tokenizes nothing is logged as not compared.
        """
        asyncio.run(self._score([np.array([0, 1, 2], np.int32)]))
        if self._limit is not None and self._limit < max_context + 1:
            option = "--context-length" if self._kind == "sglang" else "--max-model-len"
            raise EngineError(
                f"the teacher at {self.address} takes {self._limit} tokens, and engine.max_context={max_context} needs "
                f"{max_context + 1}, because a server generates one behind those that it scores; start it with a "
                f"larger {option}, or lower engine.max_context"
            )
        asyncio.run(self._compare(tokenizer))

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the action tokens, in the order of time: float32 ``[n_e]`` a trajectory.

        NaN in a context that is longer than the server takes: one with a privileged text may be.
        EngineError: no answer after several tries, or one that cannot be read.
        """
        return self.top_logprobs(trajectories)[0]

    def top_logprobs(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[list[NDArray[np.float32]], NDArray[np.int32], NDArray[np.float32]]:
        """Return :meth:`logprobs`, and the model's most likely tokens in all ``N`` places, with log-probabilities.

        They are int32 and float32 ``[N, top_k]``: -1 and 0 where there are fewer, or the context is too long.
        """
        prompts = []
        for item in trajectories:
            for part in item.segments():
                last = np.flatnonzero(item.action_mask[part])
                prompts.append(item.token_ids[part][: int(last[-1]) + 1 if last.size else 0])
        scored = iter(asyncio.run(self._score(prompts)))
        results = [_Scores.empty(0, self.top_k)]
        for item in trajectories:
            scores = _Scores.empty(len(item.token_ids), self.top_k)
            for part in item.segments():
                for whole, own in zip(scores, next(scored), strict=True):
                    whole[part.start : part.start + len(own)] = own
            results.append(scores.at(item.actions))
        _, ids, top = (np.concatenate(values) for values in zip(*results, strict=True))
        return [scores.logprobs for scores in results[1:]], ids, top

    async def _score(self, prompts: Sequence[NDArray[np.int32]]) -> list[_Scores]:
        """Return the scores of each token of each prompt, 0 for the first, which nothing predicts.

        Log-probabilities are NaN for a prompt that is too long for the server.
        """
        places = asyncio.Semaphore(_AT_ONCE)
        async with self._client() as client:
            if self._kind is None:
                self._kind, self._model, self._limit = await self._described(client)

            async def score(prompt: NDArray[np.int32]) -> _Scores:
                if not len(prompt):
                    return _Scores.empty(0, self.top_k)
                if self._limit is not None and len(prompt) >= self._limit:
                    return _Scores.empty(len(prompt), self.top_k, np.nan)
                async with places:
                    return await self._ask(client, prompt.tolist())

            return await asyncio.gather(*map(score, prompts))

    async def _compare(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare the server's ids of some texts with the policy's. EngineError: they differ."""
        async with self._client() as client:
            for text in probes(tokenizer):
                body = {"model": self._model, "prompt": text, "add_special_tokens": False}
                answer = await self._tried(client, "POST", "/tokenize", body)
                tokens = answer.body.get("tokens") if isinstance(answer.body, dict) else None
                if answer.status != 200 or not isinstance(tokens, list):
                    log.warning(
                        "the tokenizer of the teacher at %s is not compared with the policy's, whose tokens it must "
                        "have: /tokenize answers %d (%s)",
                        *(self.address, answer.status, error_text(answer.body)),
                    )
                    return
                own = tokenizer.encode(text, add_special_tokens=False)
                if tokens != own:
                    at = next((i for i, pair in enumerate(zip(tokens, own, strict=False)) if pair[0] != pair[1]), None)
                    at = min(len(tokens), len(own)) if at is None else at
                    raise EngineError(
                        f"the teacher at {self.address} has another tokenizer than the policy: of "
                        f"{excerpt(text)!r}, token {at} is {tokens[at : at + 1]} there and {own[at : at + 1]} here; a "
                        "teacher scores the policy's own tokens, so its model needs the same"
                    )

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        key = os.environ.get("VLLM_API_KEY") or os.environ.get("SGLANG_API_KEY")
        client = Client(self.address, key, extra="vllm")
        try:
            yield client
        finally:
            await client.close()

    async def _described(self, client: Client) -> tuple[Literal["vllm", "sglang"], str, int | None]:
        """Return the kind of the server, its model's name, and the most tokens of a request, where it says so."""
        answer = await self._tried(client, "GET", "/get_model_info")
        if answer.status == 200 and isinstance(answer.body, dict) and "model_path" in answer.body:
            return "sglang", str(answer.body["model_path"]), await self._limit_of_sglang(client)
        answer = await self._tried(client, "GET", "/v1/models")
        try:
            model = answer.body["data"][0]
            return "vllm", str(model["id"]), _count(model.get("max_model_len"))
        except (AttributeError, IndexError, KeyError, TypeError):
            raise EngineError(
                f"the teacher at {self.address} is neither vLLM nor SGLang: /v1/models answers {answer.status} "
                f"({error_text(answer.body)})"
            ) from None

    async def _limit_of_sglang(self, client: Client) -> int | None:
        for path in ("/server_info", "/get_server_info"):  # older servers have the second
            answer = await self._tried(client, "GET", path)
            if answer.status == 200 and isinstance(answer.body, dict):
                # A prompt is below either.
                names = ("max_req_input_len", "context_length")
                return min(filter(None, (_count(answer.body.get(name)) for name in names)), default=None)
        return None

    async def _tried(self, client: Client, method: str, path: str, body: Any = None) -> Any:
        for number in range(_TRIES):
            try:
                return await client.request(method, path, body)
            except UnreachableError as error:
                if number + 1 == _TRIES:
                    raise EngineError(f"the teacher does not answer: {error}") from error
                await asyncio.sleep(_WAIT_S)
        raise AssertionError("unreachable")

    async def _ask(self, client: Client, prompt: list[int]) -> _Scores:
        if self._kind == "sglang":
            sampling = {"max_new_tokens": 1, "temperature": 1.0}
            path, body = "/generate", {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
            body |= {"logprob_start_len": 0, "top_logprobs_num": self.top_k}
        else:
            path, body = "/v1/completions", {"model": self._model, "prompt": prompt, "max_tokens": 1}
            body |= {"temperature": 1.0, "prompt_logprobs": max(self.top_k, 1)}
        answer = await self._tried(client, "POST", path, body)
        if answer.status != 200:
            also = f" and their {self.top_k} most likely ones" if self.top_k else ""
            raise EngineError(
                f"the teacher at {self.address} refuses {len(prompt)} tokens{also}: {path} answers {answer.status} "
                f"({error_text(answer.body)})"
            )
        try:
            return (_of_sglang if self._kind == "sglang" else _of_vllm)(answer.body, prompt, self.top_k)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise EngineError(
                f"the teacher at {self.address} gave no log-probability for each token: {excerpt(str(answer.body))}"
            ) from None


def probes(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return texts of which other tokenizers make other ids: of all kinds, of the whole vocabulary, added tokens."""
    ids = range(0, len(tokenizer), max(1, len(tokenizer) // _PROBED))
    added = sorted(tokenizer.get_added_vocab(), key=tokenizer.get_added_vocab().__getitem__)
    return [_TEXT, " ".join(map(str, tokenizer.batch_decode([[token] for token in ids]))), " a".join(added)]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _of_vllm(body: Any, prompt: Sequence[int], top_k: int) -> _Scores:
    """Read an answer of vLLM, whose top tokens have the prompt's own token among them, or as one more."""
    entries = body["choices"][0]["prompt_logprobs"][1:]
    own = [entry[str(token)]["logprob"] for entry, token in zip(entries, prompt[1:], strict=True)]
    return _scores(
        own, [[(score["logprob"], int(token)) for token, score in entry.items()] for entry in entries], top_k
    )


def _of_sglang(body: Any, prompt: Sequence[int], top_k: int) -> _Scores:
    info = body["meta_info"]
    entries = info["input_token_logprobs"]
    if [entry[1] for entry in entries] != list(prompt):
        raise ValueError("other tokens")
    top = info["input_top_logprobs"][1:] if top_k else [()] * (len(prompt) - 1)
    return _scores([entry[0] for entry in entries[1:]], [[row[:2] for row in rows] for rows in top], top_k)


def _scores(own: Sequence[Any], top: Sequence[Sequence[tuple[float, int]]], top_k: int) -> _Scores:
    """Return the scores of a prompt, from those of all its tokens but the first; ``top`` are in no order.

    ``ValueError``: there is no number for each token, or one is not finite, so it is nothing to learn from.
    """
    made = _Scores.empty(len(own) + 1, top_k)
    made.logprobs[1:] = [float(score) for score in own]
    if not np.isfinite(made.logprobs).all():
        raise ValueError("a log-probability that is not finite")
    for ids, logprobs, tokens in zip(made.ids[1:], made.top[1:], top, strict=True):
        finite = sorted(((score, token) for score, token in tokens if math.isfinite(score)), reverse=True)[:top_k]
        ids[: len(finite)], logprobs[: len(finite)] = [token for _, token in finite], [score for score, _ in finite]
    return made
