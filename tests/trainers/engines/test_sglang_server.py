"""Tests of a real SGLang server beside the conformance suite: its transports, and its checksums."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_kits import lively_model
from real_server import check_teacher
from sglang_server import Server
from test_conformance import forward, picked

from trainers.engines.base import EngineDeadError, Sampling
from trainers.engines.transport import LocalSource

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("sglang"), pytest.mark.timeout(600)]


@pytest.mark.parametrize("transport", ["process_group", "disk", "http"])
async def test_weights_arrive_by_every_transport(sglang: Server, transport: Any, tmp_path: Path) -> None:
    """Buckets far smaller than the model, twice, and each verified by the server's checksums, then by its replies.

    The third way, ``http``, is the one of the conformance suite.
    """
    engine = await sglang.make(lively_model(), transport=transport, update_folder=str(tmp_path))
    engine._updater.bucket_bytes = 20_000
    try:
        for version, seed in ((3, 1), (4, 2)):
            model = lively_model(seed=seed)
            await engine.update_weights(model.state_dict(), version)
            made = await engine.generate([5, 6, 7], Sampling(max_new_tokens=8, seed=1))
            assert set(made.weight_version) == {version}
            full = forward(model, [5, 6, 7], made.token_ids)
            np.testing.assert_allclose(made.logprobs, picked(full, made.token_ids), atol=1e-4)
    finally:
        await engine.close()


async def test_teacher_scores_given_tokens(sglang: Server, caplog: pytest.LogCaptureFixture) -> None:
    model = lively_model()
    engine = await sglang.make(model)
    try:
        await asyncio.to_thread(check_teacher, sglang.url, model, sglang.context)
    finally:
        await engine.close()
    assert "is not compared with the policy's" in caplog.text  # the server has no tokenizer


async def test_tensor_ignored_by_the_server_is_noticed(sglang: Server) -> None:
    """SGLang reports success for an unknown name; only the unchanged checksum shows the error."""
    engine = await sglang.make(lively_model())
    send, lost = engine._updater._send, "model.layers.1.mlp.down_proj.weight"

    def misspelled(name: str) -> str:
        return name.replace(".1.mlp.down", ".9.mlp.down")

    async def misspell(source: Any, kind: Any) -> Any:
        specs = [spec._replace(names=tuple(map(misspelled, spec.names))) for spec in source.specs]
        sums = await send(LocalSource(specs, source.read), kind)
        return {lost if name == misspelled(lost) else name: checksum for name, checksum in sums.items()}

    engine._updater._send = misspell  # type: ignore[method-assign]
    try:
        with pytest.raises(EngineDeadError, match=r"mixture.*down_proj\.weight"):
            await engine.update_weights(lively_model(seed=1).state_dict(), 1)
    finally:
        await engine.close()
