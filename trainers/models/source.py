"""Sources of a learner's models: their shapes first, then their numbers, tensor by tensor.

A model is made without any memory (on torch's device ``meta``), gets its adapters and is cut into shards; then every
rank reads the pieces that it owns. No rank ever holds a whole model that it does not keep whole.

That needs files whose tensors have the names that the model's have. transformers renames or joins tensors of some
families while it loads them (the experts of a mixture): those are loaded whole by every rank, and copied from there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from trainers.models.hub import check_model_files, read_weight_map
from trainers.models.shards import Box, box_of, local_part

Source = str | Path | PreTrainedModel

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_WORDS = 16  #: of the model that a head is tried on


class ModelSource:
    """A causal language model to be made from a folder or name that transformers loads, or as a copy of an object.

    No code of a folder is run, and no pickle of it is read. Raises ``ValueError``: see
    :func:`~trainers.models.hub.check_model_files`, or a buffer of an object was rounded; OSError: there is no such
    folder, or it has no configuration.
    """

    def __init__(self, source: Source) -> None:
        self._object = source if isinstance(source, PreTrainedModel) else None
        self._place = None if isinstance(source, PreTrainedModel) else source
        #: Whether the files of a folder have the names that the model's tensors have; known once they are read.
        self.plain = False
        if self._object is not None:
            _refuse_rounded_buffers(self._object)
            self.config: Any = self._object.config
        else:
            assert self._place is not None
            check_model_files(self._place)
            self.config = AutoConfig.from_pretrained(self._place, trust_remote_code=False)

    @cached_property
    def generation_config(self) -> GenerationConfig:
        """Settings of transformers' ``generate``: an object's own, generation_config.json, or what config.json says."""
        if self._object is not None and self._object.generation_config is not None:
            return self._object.generation_config
        if self._place is not None and Path(self._place, "generation_config.json").is_file():
            stored: GenerationConfig = GenerationConfig.from_pretrained(self._place, trust_remote_code=False)
            return stored
        made: GenerationConfig = GenerationConfig.from_model_config(self.config)
        return made

    def check_files(self) -> None:
        """Look at the headers of a folder's files, without reading any numbers.

        Raises ``ValueError``: there are none, one is missing, or has another length than its header says.
        """
        if self._place is not None:
            files = _files(Path(self._place))
            if not files:
                raise ValueError(f"{self} has neither {_ONE_FILE} nor {_INDEX}")
            for path in sorted(set(files.values())):
                try:
                    with safe_open(path, framework="pt"):
                        pass
                except (OSError, SafetensorError) as error:
                    raise ValueError(f"{path} cannot be read: {error}") from error

    def skeleton(self) -> Any:
        """Build the model in float32 (the optimizer's precision) without its numbers: parameters are on ``meta``.

        Buffers that no file holds, such as rotary frequencies, are there, on the CPU.
        """
        with torch.device("meta"):
            model = self._of(copy.deepcopy(self.config))
        model.generation_config = copy.deepcopy(self.generation_config)
        _compute_buffers(model, self._object)
        return model.requires_grad_(True).eval()

    def check_head(self) -> None:
        """Raise ``ValueError`` where this family does more to its logits than a linear head: it scales or caps them.

        The learner computes a linear map of the backbone's outputs. That is tried on a model of the family without
        layers and with few words, whose head is made to return large numbers: they must come out unchanged.
        """
        small = copy.deepcopy(self.config)
        text = small.get_text_config()
        text.num_hidden_layers, text.vocab_size = 0, _WORDS
        for name in ("layer_types", "mlp_layer_types"):
            if getattr(text, name, None) is not None:
                setattr(text, name, [])
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(text, name, None)
        with torch.random.fork_rng(devices=[]):
            model = self._of(small)
        wide = torch.linspace(-50.0, 50.0, _WORDS)
        seen: list[Tensor] = []

        def speak(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            seen.extend((args[0], output))
            return wide.expand_as(output)

        head, input_ids = model.get_output_embeddings(), torch.arange(4)[None]
        with torch.no_grad():
            hidden = model.eval().base_model(input_ids=input_ids, use_cache=False).last_hidden_state
            head.register_forward_hook(speak)
            logits = model(input_ids=input_ids, use_cache=False).logits
            linear = nn.functional.linear(hidden, head.weight, getattr(head, "bias", None))
        as_it_is = len(seen) == 2 and torch.equal(seen[0], hidden) and torch.allclose(seen[1], linear, atol=1e-5)
        if not (as_it_is and torch.equal(logits, wide.expand_as(logits))):
            raise ValueError(
                f"{type(model).__name__} does more to its logits than a linear head (scaled or soft-capped?): the "
                "learner would train another model than engines sample from"
            )

    def _of(self, config: Any) -> Any:
        """Build a model of this family in float32, with random numbers."""
        if self._object is not None:
            return type(self._object)._from_config(config, dtype=torch.float32)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)

    @torch.no_grad()
    def fill(self, targets: Iterable[tuple[str, Tensor]]) -> None:
        """Read numbers into tensors, in place: of a sharded one, this rank's piece.

        ``targets`` have the names of the causal language model's ``state_dict``; tied ones are the same object. Raises
        ``ValueError``: the source has no such tensor, or one of another shape.
        """
        names: dict[int, list[str]] = {}
        values: dict[int, Tensor] = {}
        for name, target in targets:
            names.setdefault(id(target), []).append(name)
            values[id(target)] = target
        read = self._reader(list(names.values()))
        for key, target in values.items():
            local = local_part(target)
            if local.numel():
                local.copy_(read(names[key], target.shape, box_of(target)))

    def __str__(self) -> str:
        return type(self._object).__name__ if self._object is not None else str(self._place)

    def _reader(self, names_of_each: list[list[str]]) -> Callable[[list[str], torch.Size, Box], Tensor]:
        """Return a reader of a tensor's piece by one of its names, given the shape that the whole tensor must have."""
        files = {} if self._place is None else _files(Path(self._place))
        if all(any(name in files for name in names) for names in names_of_each):
            self.plain = True

            def read(names: list[str], shape: torch.Size, where: Box) -> Tensor:
                name = next(name for name in names if name in files)
                # Opened for each: what a file has in memory while it is open grows with every piece that is read.
                with safe_open(files[name], framework="pt") as file:
                    view = file.get_slice(name)
                    self._check_shape(name, view.get_shape(), shape)
                    piece: Tensor = view[where] if where else file.get_tensor(name)
                    return piece

            return read
        state = (self._object or self._whole()).state_dict()

        def take(names: list[str], shape: torch.Size, where: Box) -> Tensor:
            self._check_shape(names[0], state[names[0]].shape, shape)
            return state[names[0]][where]

        return take

    def _check_shape(self, name: str, actual: Sequence[int], expected: Sequence[int]) -> None:
        if tuple(actual) != tuple(expected):
            raise ValueError(f"{self}: {name} is {tuple(actual)}, and the model's is {tuple(expected)}")

    def _whole(self) -> PreTrainedModel:
        assert self._place is not None
        pair: Any = AutoModelForCausalLM.from_pretrained(
            self._place, dtype=torch.float32, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
        if missing := sorted(pair[1]["missing_keys"]):  # transformers would initialise these randomly
            raise ValueError(f"{self} has no {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}")
        model: PreTrainedModel = pair[0]
        return model


def materialize(model: nn.Module, device: torch.device, parameters: torch.device) -> None:
    """Give what is on ``meta`` memory, in place: buffers on ``device``, parameters likewise or kept elsewhere."""
    made: dict[int, nn.Parameter] = {}  # tied ones stay tied
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=parameters)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device)


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder; none where it is no folder with safetensors.

    ``model.safetensors`` takes precedence over an index, as in transformers.
    """
    if (only := folder / _ONE_FILE).is_file():
        with safe_open(only, framework="pt") as file:
            return dict.fromkeys(file.keys(), only)
    if not (index := folder / _INDEX).is_file():
        return {}
    return {name: folder / file for name, file in read_weight_map(index).items()}


def _compute_buffers(model: Any, source: PreTrainedModel | None) -> None:
    """Give buffers that no file holds their values, on the CPU: those of an object, or what transformers computes."""
    for path, module in model.named_modules():
        if not (names := module._non_persistent_buffers_set):
            continue
        own = None if source is None else source.get_submodule(path)._buffers
        for name in names:
            if (buffer := module._buffers[name]) is not None:
                stored = None if own is None else own[name]
                module._buffers[name] = (
                    torch.empty_like(buffer, device="cpu") if stored is None else stored.detach().to("cpu", copy=True)
                )
        if own is None:
            model._init_weights(module)  # what transformers itself calls after loading; parameters are on meta


def _refuse_rounded_buffers(model: PreTrainedModel) -> None:
    """Raise ``ValueError`` where ``model.to(dtype)`` rounded what no file holds, such as rotary frequencies.

    A folder saved from such a model would have others when it is loaded, which makes them from the configuration.
    """
    stored = model.state_dict().keys()
    for name, value in model.named_buffers():
        if name not in stored and value.is_floating_point() and value.dtype != torch.float32:
            raise ValueError(
                f"the model's buffer {name} was rounded to {str(value.dtype).removeprefix('torch.')}, and no saved "
                "folder holds it: load the model with from_pretrained(dtype=...), which leaves buffers as they are, "
                "instead of model.to(dtype)"
            )
