"""A reward model of transformers: conversations in, one number each, independent of batch composition.

The shapes of a computation are a function of the conversation alone, because in another shape the last bits change:
tokens are padded on the right to a multiple of ``bucket``, and ``rows`` conversations of one such length are computed
at a time, filled up with copies. A causal model never reads padding, which is verified when it is loaded. Other models
get an attention mask, and at least one token of padding.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, Self

from textenvs.messages import Messages

from ...config.reward_model import ClassifierSection
from ...models.hub import check_model_files
from ..service import BackendError, OutageError, ScoringRequest, Traits
from .conversation import (
    ConversationTokens,
    conversation_problems,
    load_tokenizer,
    score_prepared,
    score_range,
    scored_part,
    transformed,
)

# While it loads, transformers changes torch's initialisation for the whole process; two threads at once would each put
# back what the other had changed, and models made later would be wrong (their tied weights are two).
_LOADING = threading.Lock()


class Classifier:
    """A reward model in this thread, on ``device`` (``auto``: the first GPU); ``ValueError`` without head or label."""

    def __init__(self, options: ClassifierSection, device: str = "auto") -> None:
        import torch

        self.options = options
        self._torch = torch
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = _load(options).to(device).eval()
        self._device = self._model.device
        # The padding token for models that find the last token themselves.
        self._fill = getattr(self._model.config, "pad_token_id", None)
        if self._fill is None:
            self._fill = self._model.config.pad_token_id = 0
        positions = int(getattr(self._model.config, "max_position_embeddings", 0) or 2**31)
        self._label = _label(options, self._model.config)
        self._causal = self._reads_left_only()
        longest = (positions if self._causal else positions - 1) - _reserved(self._model)
        if options.max_length is not None and options.max_length > longest:
            raise ValueError(_too_long(options, longest))
        self._widest = positions
        self._tokens = ConversationTokens(load_tokenizer(options.tokenizer or str(_folder(options))), options, longest)

    def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """Return the scores in order; a string is the reason for a missing score."""
        scores: list[float | str] = [""] * len(conversations)
        widths: dict[int, list[tuple[int, list[int]]]] = {}  # places and tokens
        for place, messages in enumerate(conversations):
            try:
                tokens = self._tokens.encode(messages)
            except BackendError as error:
                scores[place] = str(error)
            else:
                widths.setdefault(self._width(len(tokens)), []).append((place, tokens))
        for width, encoded in sorted(widths.items()):
            rows = self.options.rows or len(encoded)
            for start in range(0, len(encoded), rows):
                chunk = encoded[start : start + rows]
                values = self._compute([tokens for _, tokens in chunk], width, rows)
                for (place, _), value in zip(chunk, values, strict=True):
                    scores[place] = value
        return scores

    def sleep(self) -> None:
        """Move the weights to CPU memory and release the GPU's; scoring is impossible until :meth:`wake`."""
        self._model.to("cpu")
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def wake(self) -> None:
        self._model.to(self._device)

    def _width(self, length: int) -> int:
        bucket = self.options.bucket
        needed = length if self._causal else length + 1
        return min(-(-needed // bucket) * bucket, self._widest)

    def _compute(self, encoded: Sequence[Sequence[int]], width: int, rows: int) -> list[float]:
        torch = self._torch
        filled = [*encoded, *[encoded[-1]] * (rows - len(encoded))]
        ids = torch.full((rows, width), self._fill)
        lengths = torch.tensor([len(tokens) for tokens in filled])
        for row, tokens in enumerate(filled):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        with torch.inference_mode():
            logits = self._logits(ids.to(self._device), lengths.to(self._device))
        return [transformed(row, self._label, self.options.transform) for row in logits[: len(encoded)].tolist()]

    def _logits(self, ids: Any, lengths: Any) -> Any:
        """Return logits ``[rows, labels]`` at the last token of each row."""
        torch = self._torch
        rows = torch.arange(len(ids), device=ids.device)
        if self._causal:
            hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            return self._model.score(hidden[rows, lengths - 1])
        mask = (torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]).long()
        logits = self._model(input_ids=ids, attention_mask=mask).logits
        return logits if logits.dim() == 2 else logits[rows, lengths - 1]

    def _reads_left_only(self) -> bool:
        """Return whether backbone and head give the model's logits and padding is unread, tested on a probe."""
        torch, model = self._torch, self._model
        if not isinstance(getattr(model, "score", None), torch.nn.Linear):
            return False
        count = min(9, model.config.vocab_size)
        probe = torch.arange(count, device=self._device).flip(0)[None]
        probe[probe == self._fill] = count - 1  # the probe must not contain the padding token
        with torch.inference_mode():
            own = model(input_ids=probe).logits
            own = own if own.dim() == 2 else own[:, -1]
            hidden = model.base_model(input_ids=probe).last_hidden_state
            longer = torch.cat([probe, probe.flip(1)], 1)
            padded = model.base_model(input_ids=longer).last_hidden_state[:, :count]
            computed = model.score(hidden[:, -1])
        close = 1e-3 if own.dtype == torch.float32 else 0.1
        same = ((own, computed), (hidden, padded))
        return all(torch.allclose(one.float(), other.float(), rtol=close, atol=close) for one, other in same)


def classifier_problems(options: ClassifierSection) -> Iterator[tuple[str, str]]:
    """Yield the problems of a reward model that its small files show: the option to change, and the reason."""
    import torch
    from transformers import AutoConfig

    factory, arguments = _factory(options)
    folder = _folder(options)
    try:
        check_model_files(folder)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **arguments)
    except Exception as error:  # whatever a broken file makes transformers raise
        yield "path", f"{options.path}: its config.json cannot be used: {_first_line(error)}"
        return
    if type(config) not in factory._model_mapping:
        yield "path", f"{options.path} is of type {config.model_type}, which transformers has no {factory.__name__} for"
        return
    try:
        _label(options, config)
    except ValueError as error:
        yield "transform" if options.label is None and config.num_labels == 1 else "label", str(error)
    try:
        with _LOADING, torch.device("meta"):  # its shape alone
            model = factory.from_config(config, trust_remote_code=False)
    except Exception as error:  # numbers that do not go together
        yield "path", f"{options.path}: its config.json cannot be used: {_first_line(error)}"
        return
    body = f"{model.base_model_prefix}."
    head = [name for name, _ in model.named_parameters() if not name.startswith(body)]
    try:
        stored = _stored_names(folder)
    except Exception as error:  # safetensors has its own error for broken files
        yield "path", f"{options.path}: its weights cannot be read: {_first_line(error)}"
    else:
        if stored and (lacking := [n for n in head if not any(parameter.endswith(n) for parameter in stored)]):
            yield "path", _no_head(options, lacking)
    positions = int(getattr(config, "max_position_embeddings", 0) or 2**31) - _reserved(model)
    if options.max_length is not None and options.max_length > positions:
        yield "max_length", _too_long(options, positions)
    vocabulary = int(getattr(config, "vocab_size", 0) or 2**31)
    yield from conversation_problems(options.tokenizer, options.template, vocabulary, model=options.path)


def _folder(options: ClassifierSection) -> Path:
    if options.path is None:
        raise ValueError("a classifier needs path, the folder of its model")
    return Path(options.path).expanduser()


def _stored_names(folder: Path) -> list[str]:
    from safetensors import safe_open

    names: list[str] = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            names += tensors.keys()
    return names


def _factory(options: ClassifierSection) -> tuple[Any, Mapping[str, Any]]:
    import transformers

    if options.head == "value":
        return transformers.AutoModelForTokenClassification, {"num_labels": 1}
    return transformers.AutoModelForSequenceClassification, {}


def _load(options: ClassifierSection) -> Any:
    factory, arguments = _factory(options)
    folder = _folder(options)
    try:
        check_model_files(folder)
        with _LOADING:
            model, info = factory.from_pretrained(
                folder,
                dtype=options.dtype,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **arguments,
            )
    except Exception as error:  # OSError, ValueError, RuntimeError, safetensors' own, and others of broken files
        raise ValueError(f"the reward model {options.path} cannot be loaded: {error}") from error
    # Missing weights are initialised at random, with a warning: such a head gives random rewards.
    if missing := sorted(info["missing_keys"]):
        raise ValueError(_no_head(options, missing))
    return model


def _no_head(options: ClassifierSection, missing: Sequence[str]) -> str:
    return (
        f"{options.path} is no reward model with head={options.head}: its files lack {', '.join(missing[:3])}, which "
        "would be random numbers"
    )


def _too_long(options: ClassifierSection, longest: int) -> str:
    return f"max_length is {options.max_length}, but {options.path} reads {longest} tokens at most"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _reserved(model: Any) -> int:
    """Return the reserved rows of a position table: RoBERTa's positions begin behind the row for padding."""
    import torch

    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    ends = [table.padding_idx for table in tables if isinstance(table, torch.nn.Embedding)]
    return max((end + 1 for end in ends if end is not None), default=0)


def _label(options: ClassifierSection, config: Any) -> int:
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    label = options.label
    if label is None:
        if len(names) > 1:
            raise ValueError(f"{options.path} has {len(names)} labels ({', '.join(names[:8])}); choose one: label=NAME")
        if options.transform == "softmax":
            raise ValueError(f"{options.path} has one label, whose share of all is always 1; use transform=sigmoid")
        return 0
    if isinstance(label, int) and 0 <= label < len(names):
        return label
    if str(label) in names:
        return names.index(str(label))
    raise ValueError(f"{options.path} has no label {label!r}; it has {', '.join(names[:8])}")


log = logging.getLogger("trainers")

_LOOK_AGAIN_S = 0.5  # while waiting for a worker that may be lost
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class WorkerLostError(Exception):
    """The worker died, and its batch is lost."""


class Worker(Protocol):
    """A :class:`Classifier` in some process, one batch at a time; WorkerLostError: it is ``lost`` and must restart."""

    lost: bool

    async def start(self) -> None:
        """Load the model. ``ValueError``: there is none, or it does not fit its options."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the classifier and raise its errors. After cancellation it is lost, or busy."""

    async def close(self) -> None:
        """End it. Safe to call twice."""


class LocalWorker:
    """The classifier in one thread of this process; a batch that times out is still computed to its end."""

    def __init__(self, options: ClassifierSection, device: str = "auto") -> None:
        self.lost = False
        self._options, self._device = options, device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="textenvs-reward")
        self._model: Any = None

    async def start(self) -> None:
        self._model = await self._in_thread(Classifier, self._options, self._device)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await self._in_thread(getattr(self._model, method), *arguments)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


class ClassifierPool:
    """A backend of the reward service, built by :meth:`start`.

    A lost worker is restarted at once, then after doubled pauses. A batch is tried twice; then its requests
    fail, so that the service can isolate the one that breaks workers.
    """

    def __init__(self, options: ClassifierSection, count: int, make: Callable[[int], Worker]) -> None:
        self.losses = 0  # workers lost so far
        self._options, self._make = options, make
        self.traits = Traits(count, *score_range(options.transform))  # a batch for each worker at a time
        self._idle: asyncio.Queue[tuple[int, Worker]] = asyncio.Queue()
        self._ready: dict[int, Worker] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._awake.set()
        self._asleep: list[tuple[int, Worker]] = []
        self._closed = False

    @classmethod
    async def start(
        cls, options: ClassifierSection, count: int = 1, make: Callable[[int], Worker] | None = None
    ) -> Self:
        """Start ``count`` workers, made by ``make`` (:class:`LocalWorker`) from their number, and wait for all of them.

        ``ValueError``: there is no such model, or it does not fit its options. WorkerLostError: one died meanwhile.
        """
        pool = cls(options, count, make or (lambda _: LocalWorker(options)))
        made = [pool._make(number) for number in range(count)]
        try:
            await asyncio.gather(*(worker.start() for worker in made))
        except BaseException:
            await asyncio.gather(*(worker.close() for worker in made), return_exceptions=True)
            raise
        for number, worker in enumerate(made):
            pool._put(number, worker)
        return pool

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """See :class:`~trainers.rewards.RewardBackend`; an ``OutageError`` when two workers are lost over a batch."""
        return await score_prepared(requests, scored_part, self._scored)

    async def sleep(self) -> None:
        """Have the workers release GPU memory after their batches. Scores wait until :meth:`wake`."""
        self._awake.clear()
        while len(self._asleep) < len(self._ready):
            try:
                number, worker = await asyncio.wait_for(self._idle.get(), _LOOK_AGAIN_S)
            except TimeoutError:
                continue  # the awaited worker may be lost
            try:
                await worker.call("sleep")
            except WorkerLostError:
                self._back(number, worker)
            else:
                self._asleep.append((number, worker))

    async def wake(self) -> None:
        """Undo :meth:`sleep`; a worker that was lost meanwhile is started again."""
        while self._asleep:  # a starting worker may be added meanwhile
            number, worker = self._asleep.pop(0)
            with contextlib.suppress(WorkerLostError):
                await worker.call("wake")
            self._back(number, worker)
        self._awake.set()

    async def healthy(self) -> bool:
        return bool(self._ready)

    async def close(self) -> None:
        """End all workers; safe to call twice."""
        self._closed = True
        self._awake.set()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._ready.values()))
        self._ready.clear()

    async def _scored(self, conversations: list[Messages]) -> list[float | BackendError]:
        lost: WorkerLostError | None = None
        for _ in range(2):
            await self._awake.wait()
            if self._closed:
                raise BackendError("the pool of workers is closed", final=True)
            number, worker = await self._idle.get()
            try:
                scores = await worker.call("score", conversations)
            except WorkerLostError as error:
                lost = error
            else:
                return [BackendError(result, final=True) if isinstance(result, str) else result for result in scores]
            finally:
                self._back(number, worker)
        raise OutageError(f"two workers in a row were lost over one batch: {lost}") from lost

    def _put(self, number: int, worker: Worker) -> None:
        self._ready[number] = worker
        self._idle.put_nowait((number, worker))

    def _back(self, number: int, worker: Worker) -> None:
        if not worker.lost:
            self._idle.put_nowait((number, worker))
            return
        self.losses += 1
        self._ready.pop(number, None)
        if not self._closed:
            log.warning("worker %d of a reward model is lost, and started again; its batch goes to another", number)
            task = asyncio.ensure_future(self._restart(number, worker))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _restart(self, number: int, worker: Worker) -> None:
        pause = _FIRST_PAUSE_S
        await worker.close()
        while True:
            await self._awake.wait()  # while the pool sleeps, other code uses its GPUs
            worker = self._make(number)
            try:
                await worker.start()
                self._ready[number] = worker
                while not self._awake.is_set():  # the pool went to sleep meanwhile
                    await worker.call("sleep")
                    if not self._awake.is_set():
                        self._asleep.append((number, worker))
                        return
                    await worker.call("wake")
            except BaseException as error:
                self._ready.pop(number, None)
                await worker.close()
                if not isinstance(error, Exception):
                    raise
                log.warning("worker %d of a reward model does not start: %s; next try in %g s", number, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._put(number, worker)
                return
