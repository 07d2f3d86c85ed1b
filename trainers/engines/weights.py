"""What every engine refuses before it takes new weights: they are exactly its model's, and finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class TensorSpec(NamedTuple):
    """A tensor that will come: all its names (several where it is tied), its type on the wire, its shape."""

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


#: All names of a tensor, and the tensor.
Named = tuple[tuple[str, ...], Tensor]


def check_weights(weights: Any, shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> None:
    """Refuse weights that do not fit.

    Args:
        weights: What was given, in the model's own naming.
        shapes: Of every parameter by name.
        tied: Names that stand for the same tensor as another, with the other's name. They may be left out.

    Raises:
        ValueError: It is no mapping of names to tensors, a name is missing or unknown, a shape differs, a value is not
            finite, or two tensors that are tied differ.
    """
    if not isinstance(weights, Mapping):
        raise ValueError(f"weights must be a mapping of parameter names to tensors, not {type(weights).__name__}")
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}, not a tensor; the old weights stay")
    check_names({name: value.shape for name, value in weights.items()}, shapes, tied)
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} holds values that are not finite; did training diverge? The old weights stay")
    for name, other in tied.items():
        if name in weights:
            one, two = weights[name], weights[other]
            if one.data_ptr() != two.data_ptr() and not torch.equal(one, two):
                raise ValueError(f"{name} differs from {other}, which it is tied to; the old weights stay")


def check_names(found: Mapping[str, torch.Size], shapes: Mapping[str, torch.Size], tied: Mapping[str, str]) -> None:
    """Refuse names and shapes that do not fit; see :func:`check_weights`."""
    missing, unknown = sorted(set(shapes) - set(tied) - set(found)), sorted(set(found) - set(shapes))
    if missing or unknown:
        raise ValueError(
            f"weights do not fit the model: {some('missing', missing)}{some('unknown', unknown)}"
            "give the state_dict of the same architecture, in its own naming; the old weights stay"
        )
    for name, shape in found.items():
        if shape != shapes[name]:
            raise ValueError(f"{name} has shape {tuple(shape)}, not {tuple(shapes[name])}; the old weights stay")


def tied_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Which names of a ``state_dict`` stand for the same tensor as an earlier one."""
    first: dict[tuple[int, torch.Size], str] = {}
    return {
        name: known
        for name, value in state.items()
        if (known := first.setdefault((value.data_ptr(), value.shape), name)) != name
    }


def some(what: str, names: Sequence[str]) -> str:
    """A list that stays short: ``"missing a, b, c and 4 more; "``, or nothing."""
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}; "
