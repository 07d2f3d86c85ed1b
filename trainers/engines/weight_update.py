"""New weights for a running server: pause, send, verify, resume; all of them or none.

Tokens sampled from partly updated weights would belong to no policy. So a server that took a part and failed gets all
weights once more; if that fails too, it stays paused, and the engine ends.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import torch

from trainers.config.engine import ServedEngineSection
from trainers.engines.base import EngineError, SourceLostError
from trainers.engines.links import SHARED
from trainers.engines.server import Client, error_text
from trainers.engines.shared_memory import place_of
from trainers.engines.transport import (
    AdapterSource,
    Bucket,
    LocalSource,
    Receiver,
    Wants,
    Weights,
    WeightSource,
    source_of,
)
from trainers.engines.transport_choice import Choice, Facts, choose
from trainers.engines.weights import HEAD, ChecksumRule, Parameters, Sums, listed
from trainers.models.safetensors_file import SafetensorsFile

log = logging.getLogger("trainers")

UPDATE_TIMEOUT_S = 600.0  #: for one step of an update

Kind = Literal["weights", "base", "adapter"]


class MixedWeightsError(EngineError):
    """The server has some of the new weights and cannot get the rest."""


class WeightUpdater(Receiver):
    """Sends one server its weights, by the section's transport.

    ``folder`` is the model's, for the files beside weights on a disk. ``timeout_s`` is for one step of an update.
    """

    server = "server"  #: in messages
    checksum_kind: Literal["bits", "sha256"]

    def __init__(
        self,
        client: Client,
        section: ServedEngineSection,
        parameters: Parameters,
        folder: Path,
        *,
        timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> None:
        super().__init__()
        self.begun = False  #: whether the server may have taken something since the update began
        self.ranks = 1
        self.device = "cpu"
        self.asleep = False
        self._weights: Literal["whole", "released", "blank"] = "whole"  # blank: there is memory for them again
        self.transport = section.weight_transport
        self.verify = section.server.verify  #: whether the server's checksums are compared
        self.bucket_bytes = section.server.bucket_mib * 2**20  #: of weights that travel at once, at most
        update_folder = section.server.update_folder
        self._update_folder = None if update_folder is None else Path(update_folder).expanduser()
        self._address, self._health_timeout_s = section.server.master_address, section.server.health_timeout_s
        self._client, self._parameters, self._folder = client, parameters, folder
        self._timeout_s = timeout_s
        self._places: Sequence[str] | None = None  # of the workers' memory, by rank; None if unknown
        self._backend = "gloo"
        self._choice: Choice | None = None  # of the last update
        self._started = not section.base_urls  # by this run
        self._tested = False  # whether the next two are known
        self._unreached: str | None = None
        self._unseen: str | None = None
        self._dtype: torch.dtype | None = None
        self._kind: Kind = "weights"  # kind of the weights being sent
        self._on_disk: Path | None = None  # the last folder, which SGLang names until the next update
        # Checksums of the last update: what they must be, and the server's.
        self._expected: Sums = {}
        self._actual: Sums = {}
        # The server's names for weights. Ours begin with what no earlier run on that server has used.
        self._prefix = uuid.uuid4().hex[:8]
        self._versions: dict[str, int] = {}
        self._label = ""  # of the weights that are being sent

    def connect(
        self,
        *,
        device: str,
        ranks: int,
        dtype: torch.dtype | None,
        label: str,
        version: int,
        places: Sequence[str] | None,
    ) -> None:
        """Take note of the server: its ``label`` for its present weights is our ``version``; ``dtype`` if it says.

        ``places`` are those of its workers' memory, by rank, if known: see ``place_of`` in :mod:`.shared_memory`.
        """
        if places is not None and len(places) != ranks:
            raise EngineError(f"the {self.server} server has {ranks} workers, and {len(places)} describe themselves")
        self.device, self.ranks, self._dtype, self._places = device, ranks, dtype, places
        self._versions[label] = version

    @property
    def wants(self) -> Wants:
        whole = self._kind == "weights"
        rule = ChecksumRule(self.checksum_kind, self.ranks, self._parameters.kv_heads)
        return Wants(
            workers=self.ranks,
            backend=self._backend,
            places=tuple(self._places or ()) if self._backend == SHARED else (),
            dtype=self._dtype if whole else None,
            rule=rule if whole and self.verify else None,
            bucket_bytes=self.bucket_bytes,
            timeout_s=self._timeout_s,
            address=self._address,
            local_address=_own_address(self._client.base_url),
        )

    def version_of(self, label: str) -> int:
        """Return the version of a server's label. EngineError: no update of this engine has given this label."""
        if label not in self._versions:
            raise EngineError(f"the {self.server} server computed with weights {label!r}, which another client gave it")
        return self._versions[label]

    def check(self, weights: Weights) -> None:
        """Refuse weights that are not exactly this model's; of tensors that are here, their values too."""
        if isinstance(weights, AdapterSource):
            raise ValueError(f"the {self.server} server takes whole weights, and not adapters")
        self._parameters.check(weights.specs if isinstance(weights, WeightSource) else weights)

    async def apply(self, weights: Weights, version: int, *, abort: bool) -> None:
        """Give the server weights that :meth:`check` accepted; ``abort`` ends running requests.

        EngineError: the server refused, and still serves the old weights. MixedWeightsError: see there.
        """
        source = source_of(weights, {HEAD} if self._parameters.tied else ())
        self._label = f"{self._prefix}:{version}"
        self._versions[self._label] = version
        self.begun = False
        try:
            if self._weights == "whole":
                await self._pause(abort=abort)  # also while asleep: it drops the KV of the old weights
            if self._weights == "released":  # keys and values stay away until it wakes
                await self._wake_weights()
                self._weights = "blank"
            await self._send_twice(source)
            self._weights = "whole"
        except BaseException:
            if not (self.begun or self.asleep):  # the old weights are whole
                await self._resume()
            raise
        if not self.asleep:
            await self._resume()

    async def sleep(self, *, release: bool) -> None:
        """Stop computing; ``release`` the memory of weights, keys and values. EngineError: it did not, and computes."""
        if not self.asleep:
            await self._sleep(release=release)
            self.asleep, self._weights = True, "released" if release else "whole"

    async def wake(self) -> None:
        """Undo :meth:`sleep`. EngineError: no weights came since their memory was given back."""
        if self._weights != "whole":
            raise EngineError(f"the {self.server} server has no weights: it gave their memory back, and no update came")
        if self.asleep:
            self.sender.free()
            await self._wake()
            self.asleep = False

    async def close(self) -> None:
        await self.abandon()
        self._forget(self._on_disk)

    async def control(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the server to do something; returns the body of its answer. Raises ``EngineError``: it did not."""
        answer = await self._client.request("POST", path, body, timeout=self._timeout_s, alone=True)
        if answer.status == 404:
            raise EngineError(f"the {self.server} server has no {path}: {self._without(path)}")
        body = answer.body if isinstance(answer.body, Mapping) else {}
        if answer.status != 200 or body.get("success") is False:
            raise EngineError(f"the {self.server} server refuses {path} ({answer.status}): {error_text(answer.body)}")
        return answer.body

    # Specific to each server

    @abstractmethod
    def _without(self, path: str) -> str:
        """Return advice about a server that lacks an endpoint."""

    @abstractmethod
    async def _pause(self, *, abort: bool) -> None:
        """Stop computing; running requests end with ``abort``, else their KV is computed again later."""

    @abstractmethod
    async def _resume(self) -> None:
        """Undo :meth:`_pause`."""

    @abstractmethod
    async def _sleep(self, *, release: bool) -> None:
        """See :meth:`sleep`."""

    @abstractmethod
    async def _wake_weights(self) -> None:
        """Take the memory of the weights again, with arbitrary values."""

    @abstractmethod
    async def _wake(self) -> None:
        """Take the memory of keys and values again, if it was given back, and compute."""

    @abstractmethod
    def _session(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager around all buckets of one update."""

    @abstractmethod
    async def _flush(self) -> None:
        """Drop the KV of the old weights."""

    @abstractmethod
    async def _checksums(self) -> Sums:
        """Return the server's own checksums."""

    @abstractmethod
    async def _take(self, bucket: Bucket) -> None:
        """Give the workers tensors by value."""

    @abstractmethod
    async def _take_shared(self, references: Sequence[str]) -> None:
        """Have the workers read shared memory; each gets references of its own, by rank."""

    @abstractmethod
    async def _load(self, folder: Path) -> None:
        """Have the workers read ``model.safetensors`` of this folder, which stays until the next one was read."""

    async def _connect_workers(self, address: str, port: int) -> str | None:
        """Have the workers connect; return why they cannot, ``None`` if they can, or the server has no such test."""
        return None

    async def _reads(self, file: Path, content: str) -> bool | None:
        """Return whether all workers read this ``content`` in a file; ``None`` if the server has no such test."""
        return None

    def _differs(self, name: str, expected: Sums, actual: Sums) -> bool:
        """Return whether a parameter that both sides name has another checksum than the sent weights."""
        return bool(actual[name] != expected[name])

    # Common to all servers

    def _wrong(self, expected: Sums, actual: Sums) -> list[str]:
        """Return the parameters that are not as they were sent.

        Those that the server fuses under names of its own (experts) cannot be compared; the first update says so.
        """
        unnamed = sorted(expected.keys() - actual.keys())
        if hits := [name for name in unnamed if name in self._actual]:
            return hits
        if unnamed and not self._expected:
            text = "the %s server has no checksum of %s: these weights are sent, and not compared"
            log.warning(text, self.server, listed(unnamed))
        return sorted(name for name in expected.keys() & actual.keys() if self._differs(name, expected, actual))

    async def _send_twice(self, source: Any) -> None:
        try:
            await self._send_and_verify(source)
        except EngineError as error:
            if not self.begun or isinstance(error, SourceLostError):
                raise
            log.warning("an update of the %s server failed halfway (%s); once more", self.server, error)
            try:
                await self._send_and_verify(source)
            except EngineError as again:
                raise MixedWeightsError(f"{again}; before that: {error}") from again

    async def _send_and_verify(self, source: Any) -> None:
        async with self._session():
            expected = await self._send_all(source)
        await self._flush()
        if expected:
            await self._verify(expected)

    async def _send_all(self, source: Any) -> Sums:
        """Send all parts of an update; return the checksums that the server must have, if they can be compared."""
        return await self._send(source, "weights")

    async def _send(self, source: WeightSource, kind: Kind) -> Sums:
        self._kind = kind
        choice = choose(self.transport, facts := await self._facts(source))
        if choice != self._choice:
            self._choice = choice
            expected = not choice.excluded or (choice.transport == "process_group" and not facts.shares)
            log.log(logging.INFO if expected else logging.WARNING, "%s", choice.line(self._name))
        self._backend = SHARED if choice.transport == "ipc" else self._group_backend(source)
        if choice.transport in ("ipc", "process_group"):
            return await source.broadcast(self)
        if choice.transport == "http":
            return await source.deliver(self.wants, self._by_value)
        return await self._by_disk(source)

    async def _facts(self, source: WeightSource) -> Facts:
        """Find out what the choice of a transport depends on; a server of this run's own is not tested."""
        shares = self._places is not None and source.shares(self._places)
        no_room = self._lacks_room(source) if shares else None
        direct = self.transport == "auto" and shares and no_room is None
        if not (direct or self._started or self._tested or self.transport in ("ipc", "http")):
            if self.transport != "disk" and isinstance(source, LocalSource):  # else the learner is elsewhere
                self._unreached = await self._test_connection()
            if self.transport == "disk" or self._unreached is not None:
                self._unseen = await self._test_folder()
            self._tested = True
        return Facts(self._name, source.places, self._places, shares, no_room, self._unreached, self._unseen)

    def _group_backend(self, source: WeightSource) -> str:
        if self.device != "cuda" or not torch.cuda.is_available():
            return "gloo"
        # NCCL cannot have two ranks on one GPU. Rank 0 moves weights to its GPU.
        if self._places is None:
            return "gloo" if self._at_home else "nccl"
        return "gloo" if {*self._places} & {*source.places, place_of("cuda")} else "nccl"

    @property
    def _name(self) -> str:
        return f"the {self.server} server at {self._client.base_url}"

    @property
    def _at_home(self) -> bool:
        return _own_address(self._client.base_url) == "127.0.0.1"

    async def _test_connection(self) -> str | None:
        """Return why the workers cannot connect to this process; ``None`` if they can, or cannot say."""
        address = self._address or _own_address(self._client.base_url)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server(("", 0), family=family) as listening:
            problem = await self._connect_workers(address, listening.getsockname()[1])
        return problem and f"its workers cannot connect to the learner at {address} ({problem})"

    async def _test_folder(self) -> str | None:
        """Return why there is no folder that the server reads; ``None`` if it reads files that are written here."""
        parent = self._update_folder
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", prefix="seen-by-server-", dir=parent) as file:
                content = uuid.uuid4().hex
                file.write(content)
                file.flush()
                sees = await self._reads(Path(file.name), content)
        except OSError as error:
            return f"no file can be written for it to {parent or tempfile.gettempdir()}: {error}"
        if sees is None:  # a folder that the user names is one that both sides see
            sees = parent is not None or self._at_home
        if sees:
            return None
        if parent is None:
            return "it does not see this machine's temporary files, and update_folder names no other folder"
        return f"it does not see update_folder={parent}"

    def _lacks_room(self, source: WeightSource) -> str | None:
        """Return why a CPU's shared memory is too small for two buckets; ``None`` if it is not."""
        if self.device == "cuda" or self._backend == SHARED or not Path("/dev/shm").exists():
            return None
        largest = max((spec.nbytes for spec in source.specs), default=0)
        needed, free = 2 * max(min(self.bucket_bytes, source.nbytes), largest), shutil.disk_usage("/dev/shm").free
        if needed <= free:
            return None
        return (
            f"/dev/shm has {free / 2**20:.0f} MiB, and two buckets are {needed / 2**20:.0f} MiB (a container gets more "
            "by --shm-size)"
        )

    def _may_begin(self) -> None:
        """Record that the model may have taken new weights; the parts of a LoRA run are only stored."""
        self.begun |= self._kind == "weights"

    async def read(self, references: Sequence[str]) -> None:
        self._may_begin()
        await self._take_shared(references)

    async def _by_value(self, bucket: Bucket) -> None:
        self._may_begin()
        await self._take(bucket)

    async def _by_disk(self, source: WeightSource) -> Sums:
        """Send weights through a file. SourceLostError: it cannot be written (a full disk); no server is at fault."""
        parent, wants = self._update_folder, self.wants
        folder: Path | None = None
        try:
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="weights-", dir=parent))
            for file in self._folder.iterdir():
                if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and "index" not in file.name:
                    shutil.copy(file, folder)
            shapes = {spec.names[0]: (wants.dtype or spec.dtype, spec.shape) for spec in source.specs}
            with SafetensorsFile(folder / "model.safetensors", shapes) as written:

                async def write(bucket: Bucket) -> None:
                    for name, value in bucket:
                        await asyncio.to_thread(written.write, name, value)

                sums = await source.deliver(wants, write)
            self._may_begin()
            await self._load(folder)
        except OSError as error:
            self._forget(folder)
            raise SourceLostError(
                f"the weights could not be written to {folder or parent} for the {self.server} server: {error}; make "
                "room there, or give another update_folder"
            ) from error
        except BaseException:
            self._forget(folder)
            raise
        self._forget(self._on_disk)
        self._on_disk = folder
        return sums

    def _forget(self, folder: Path | None) -> None:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    async def _verify(self, expected: Sums) -> None:
        """Compare the server's checksums, of each parameter and rank, with those of the sent weights."""
        actual = dict(await self._checksums())
        if not expected.keys() & actual.keys():
            raise EngineError(f"the {self.server} server names no parameter as its model does; see the option `verify`")
        if wrong := self._wrong(expected, actual):
            raise EngineError(
                f"the {self.server} server does not have the weights it was sent: "
                f"the checksums of {listed(wrong)} differ"
            )
        self._expected, self._actual = expected, actual


def _own_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.hostname in (None, "127.0.0.1", "localhost"):
        return "127.0.0.1"
    family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:  # connecting sends no packet
        probe.connect(address)
        return str(probe.getsockname()[0])
