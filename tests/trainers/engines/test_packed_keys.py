"""Chunks of prompts whose keys are packed for PyTorch's kernel, which a stand-in replaces: it runs on CUDA only."""

import numpy as np
import pytest
import torch
from engine_kits import enliven, lively_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen2Config

from trainers.engines import decoder as decoders
from trainers.engines.decoder import SIZE, Decoder
from trainers.engines.module_decoder import ModuleDecoder
from trainers.engines.packed_keys import PackedKeys
from trainers.models import varlen
from trainers.models.varlen import is_supported

CONTEXT, ROWS, VOCAB = 80, 4, 64


def kernel(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    """Attend as FlashAttention documents: query ``i`` sees keys ``i + keys - queries`` and ``left`` before it."""
    for starts, tokens in ((cu_seq_q, q), (cu_seq_k, k)):
        assert starts.dtype == torch.int32
        assert starts.is_contiguous()
        assert int(starts[-1]) == len(tokens)
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert enable_gqa == (q.shape[1] != k.shape[1])
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(cu_seq_k.diff().max()))
    left, right = window_size
    out = torch.empty_like(q)
    for begin_q, end_q, begin_k, end_k in zip(cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:], strict=True):
        queries, keys, values = q[begin_q:end_q], k[begin_k:end_k], v[begin_k:end_k]
        at = torch.arange(len(queries))[:, None] + len(keys) - len(queries)
        key = torch.arange(len(keys))
        seen = torch.ones(len(queries), len(keys), dtype=torch.bool)
        seen &= (key <= at + right) if right >= 0 else seen
        seen &= (key >= at - left) if left >= 0 else seen
        keys, values = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * (q.shape[2] ** -0.5 if scale is None else scale)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[begin_q:end_q] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


@pytest.fixture(scope="module")
def pairs():
    """Build two decoders, one that gathers groups and one that packs, of a fused and of a sliding model."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"intermediate_size": 32, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT}
    sliding = Qwen2Config(**shape, **sizes, use_sliding_window=True, sliding_window=16, max_window_layers=1)
    models = [
        (Decoder, lively_model(vocab=VOCAB)),
        (ModuleDecoder, enliven(AutoModelForCausalLM.from_config(sliding))),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "varlen_attn", kernel)
        patch.setattr(varlen, "_GROUPED_HEADS", varlen.option_of(kernel, "enable_gqa", True))
        made = []
        for kind, model in models:
            pair = []
            for packs in (False, True):
                patch.setattr(decoders, "is_supported", lambda *_, packs=packs: packs)
                pair.append(kind(model, ROWS * CONTEXT // SIZE, CONTEXT, threads=1))
            made.append(pair)
        yield made


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("which", [0, 1], ids=["fused", "sliding"])
def test_packed_chunks_give_the_present_logits(pairs, which, data):
    draw, (present, packed) = data.draw, pairs[which]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    ids = rng.integers(0, VOCAB, (ROWS, CONTEXT)).astype(np.int32)
    table = rng.permutation(ROWS * CONTEXT // SIZE).reshape(ROWS, -1)
    computed = np.zeros(ROWS, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders, "MOST_KEYS", draw(st.sampled_from((1, 30, 65536))))
        for _ in range(draw(st.integers(1, 4))):
            sizes = draw(st.lists(st.sampled_from((0, 1, 1, 2, 5, 17)), min_size=ROWS, max_size=ROWS))
            rows = np.flatnonzero(np.array(sizes))
            if len(rows):
                counts = np.array(sizes)[rows]
                expected, logits = (d.logits(rows, computed[rows], counts, ids, table) for d in (present, packed))
                torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
                computed[rows] += counts


def test_plan_moves_everything_at_once():
    copies = []

    def put(array):
        copies.append(array)
        return torch.from_numpy(array)

    table = np.array([[3, 0], [1, 2]])
    planned = PackedKeys.plan(table, 4, np.array([3, 2]), np.array([3, 6]), put)
    assert len(copies) == 1
    assert planned.cells.tolist() == [12, 13, 14, 4, 5, 6, 7, 8, 9]
    assert [starts.tolist() for starts in planned.starts] == [[0, 3, 5], [0, 3, 9]]
    assert planned.longest == (3, 6)


@pytest.mark.parametrize(
    ("device", "dtype", "dim", "capability", "answer"),
    [
        ("cuda", torch.bfloat16, 64, (9, 0), True),
        ("cuda", torch.float16, 256, (8, 0), True),
        ("cuda", torch.float16, 64, (7, 5), False),  # before Ampere
        ("cuda", torch.float32, 64, (9, 0), False),
        ("cuda", torch.bfloat16, 20, (9, 0), False),
        ("cuda", torch.bfloat16, 264, (9, 0), False),
        ("cpu", torch.bfloat16, 64, (9, 0), False),
    ],
)
def test_selection_by_device_dtype_and_head(monkeypatch, device, dtype, dim, capability, answer):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert is_supported(torch.device(device), dtype, dim) is answer
