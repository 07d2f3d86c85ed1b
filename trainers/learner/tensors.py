"""Tensors of a checkpoint on disk: safetensors files of every rank, and ``tensors.json``, which says what is where.

torch.distributed.checkpoint plans which rank writes and reads what, so that another number of ranks, cut in another
way, can read what was written. Its own files hold pickles; these hold numbers and JSON, and reading them runs no code.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from trainers.engines.weights import Named
from trainers.learner.checksums import DamagedError, seal, sha256
from trainers.learner.fsdp import Ranks
from trainers.learner.system_errors import system_errors
from trainers.learner.weight_stream import WeightStream
from trainers.models.safetensors_file import SafetensorsFile

_INDEX = "tensors.json"
_FILE_BYTES = 2**28  #: of tensors in a file, about: so much is copied at a time


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write this rank's pieces, with their checksums; all ranks write together. OSError of any: all raise it."""
    with _without_wrapping():
        dcp.save(dict(tensors), storage_writer=_Writer(folder), process_group=ranks.group, no_dist=ranks.world == 1)


_MOMENTS = ("/exp_avg", "/exp_avg_sq", "/step")


def read_tensors(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Read into ``tensors``, in place, whatever number of ranks wrote them; all ranks read together.

    Raises ``ValueError``: a tensor is not there or has another shape, there are others besides (of a model with more
    layers, for example), or the index cannot be read.
    """
    reader = _Reader(folder)
    for differ, what in (
        (reader.names - tensors.keys(), "it also has {}, which this learner lacks"),
        (tensors.keys() - reader.names, "it lacks {}, which this learner has"),
    ):
        if differ:
            names = sorted(name for name in differ if not name.endswith(_MOMENTS)) or sorted(differ)
            some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise ValueError(
                f"{folder} is of another model: {what.format(some)}; construct the learner with the model that the "
                "checkpoint was written with"
            )
    with _without_wrapping():
        dcp.load(dict(tensors), storage_reader=reader, no_dist=ranks.world == 1)


def write_model(folder: Path, lm: Any, tokenizer: Any, stream: WeightStream, tensors: Iterable[Named]) -> None:
    """Write ``lm`` as a folder that transformers loads, one tensor of its ``stream`` at a time."""
    with system_errors(folder):
        lm.save_pretrained(folder, state_dict={})  # the configuration alone
        tokenizer.save_pretrained(folder)
        shapes = {spec.names[0]: (spec.dtype, spec.shape) for spec in stream.specs}
        with SafetensorsFile(folder / "model.safetensors", shapes) as file:
            for names, value in tensors:
                file.write(names[0], value)


class _InFolder:
    """Common base of torch's reader and writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan


class _Writer(_InFolder, StorageWriter):
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [SavePlan(plan.items, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        pieces: dict[str, Tensor] = {}
        waiting: list[tuple[MetadataIndex, Tensor]] = []
        files = size = 0

        def flush() -> None:
            nonlocal files, size
            if not pieces:
                return
            path = self._folder / f"rank_{plan.storage_data:05d}_{files:03d}.safetensors"
            with system_errors(path):
                save_file(pieces, path)
            checksum = sha256(path)
            for index, piece in waiting:
                stored = {"shape": list(piece.shape), "file": path.name, "sha256": checksum}
                results.append(WriteResult(index, piece.nbytes, stored))
            files, size = files + 1, 0
            pieces.clear()
            waiting.clear()

        for item in plan.items:
            piece = planner.resolve_data(item)
            assert isinstance(piece, Tensor)
            piece = piece.detach().cpu().contiguous()
            if piece.untyped_storage().nbytes() != piece.nbytes:
                piece = piece.clone()
            if size and size + piece.nbytes > _FILE_BYTES:
                flush()
            pieces[_key(item.index)] = piece
            waiting.append((item.index, piece))
            size += piece.nbytes
        flush()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        index: dict[str, Any] = {
            name: {"dtype": str(entry.properties.dtype).removeprefix("torch."), "shape": list(entry.size), "pieces": []}
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        checksums: dict[str, str] = {}
        for result in (item for rank_results in results for item in rank_results):
            stored = dict(result.storage_data)
            checksums[stored["file"]] = stored.pop("sha256")
            index[result.index.fqn]["pieces"].append({"offset": list(result.index.offset or ()), **stored})
        (self._folder / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        seal(self._folder, checksums)


class _Reader(_InFolder, StorageReader):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Here and not when torch reads it, which would hide the error.
        self._metadata = _index_of(folder / _INDEX)
        self._files: Mapping[MetadataIndex, str] = self._metadata.storage_data
        self.names = frozenset(self._metadata.state_dict_metadata)

    def read_metadata(self, *args: Any) -> Metadata:  # type: ignore[override]
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for name, items in by_file.items():
            with system_errors(self._folder / name), safe_open(self._folder / name, framework="pt") as file:
                for item in items:
                    where = tuple(
                        slice(begin, begin + length)
                        for begin, length in zip(item.storage_offsets, item.lengths, strict=True)
                    )
                    key = _key(item.storage_index)
                    piece = file.get_slice(key)[where] if where else file.get_tensor(key)  # a number has no slices
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(piece)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _index_of(path: Path) -> Metadata:
    """Read ``tensors.json``, or raise DamagedError; ``storage_data`` has the file of each piece."""
    tensors: dict[str, Any] = {}
    files: dict[MetadataIndex, str] = {}
    try:
        for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
            pieces = [
                ChunkStorageMetadata(torch.Size(piece["offset"]), torch.Size(piece["shape"]))
                for piece in entry["pieces"]
            ]
            if not isinstance(dtype := getattr(torch, entry["dtype"]), torch.dtype):
                raise TypeError(f"{entry['dtype']} is not a type of numbers")
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(entry["shape"]), pieces)
            for piece in entry["pieces"]:
                files[MetadataIndex(name, piece["offset"])] = Path(piece["file"]).name  # in this folder
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error!r}") from error
    return Metadata(tensors, storage_data=files)


def _key(index: MetadataIndex) -> str:
    """Return the name of a piece in its file: its tensor, and its offset in that."""
    return f"{index.fqn}[{','.join(map(str, index.offset or ()))}]"


@contextmanager
def _without_wrapping() -> Iterator[None]:
    """Raise a rank's own error, which torch wraps; suppress torch's note that a single process writes alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is .*single process")
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error
