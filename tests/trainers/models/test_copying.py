"""A model that copies from the start: the heads that do it, in several shapes."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from trainers.command_line import ConfigError, resolve
from trainers.models import tiny

SHAPES: list[dict[str, Any]] = [
    {"hidden": 128, "heads": 4, "kv_heads": 2},  # the default's
    {"hidden": 128, "heads": 2, "kv_heads": 1},
    {"hidden": 96, "heads": 2, "kv_heads": 2, "layers": 2},
    {"hidden": 192, "heads": 4, "kv_heads": 4, "layers": 4},
]


def continued(model: PreTrainedModel, length: int, seed: int = 0) -> float:
    """Return how often the likeliest token is the right one in the second half of a random text that comes twice."""
    words = np.random.default_rng(seed).integers(0, model.config.vocab_size, (4, length))
    tokens = torch.from_numpy(np.concatenate([words, words], 1))
    with torch.no_grad():
        likeliest = model(tokens).logits[:, length:-1].argmax(-1)
    return float((likeliest == tokens[:, length + 1 :]).float().mean())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_repeated_text_is_continued_without_training(shape: dict[str, Any]) -> None:
    for seed in (0, 1):
        for length in (20, 150):
            assert continued(tiny.build_model(2048, copying=True, seed=seed, **shape), length) > 0.85
        assert continued(tiny.build_model(2048, seed=seed, **shape), 150) < 0.05


def test_what_is_new_is_not_predicted() -> None:
    """The model has no favourite words: of new text it knows as much as one without the heads."""
    model = tiny.build_model(512, copying=True, max_context=512)
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 512, (4, 300)))
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(float(loss) - np.log(512)) < 0.5


def test_seed_decides_weights() -> None:
    first, same, other = (tiny.build_model(400, copying=True, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    "shape", [{"family": "llama"}, {"layers": 1}, {"heads": 1, "kv_heads": 1}, {"hidden": 32, "heads": 4}], ids=str
)
def test_shapes_that_cannot_copy_are_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a model that copies is a qwen2"):
        tiny.build_model(400, copying=True, **shape)
    with pytest.raises(ConfigError, match="model.copying: is true; such a model is a qwen2"):
        resolve(["model.copying=true", *(f"model.{key}={value}" for key, value in shape.items())])
