"""vLLM's engine and the socket that it is reached by."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs, SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM

from trainers.engines.vllm.frames import Frame
from trainers.engines.vllm.server.connection import Connection
from trainers.engines.vllm.server.shared import BACKEND, EXTENSION
from trainers.engines.vllm.server.statistics import Statistics
from trainers.engines.vllm.server.weights import EngineControls
from trainers.engines.vllm.whole import Weights

CHECK_S = 0.5  #: how often to see whether vLLM's engine process is alive, while nobody asks it anything


async def serve(config: dict[str, Any]) -> str:
    """Start vLLM and serve clients, one after another.

    Args:
        config: ``socket``, where to listen; ``version``, which the weights count as; ``engine``, vLLM's arguments.

    Returns:
        Why the engine cannot go on.
    """
    made: list[Statistics] = []

    def statistics_of(*args: Any) -> Statistics:
        made.append(Statistics(*args))
        return made[0]

    arguments = AsyncEngineArgs(
        **config["engine"],
        worker_extension_cls=EXTENSION,
        weight_transfer_config={"backend": BACKEND},  # type: ignore[arg-type]
    )
    engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[statistics_of])
    await engine.collective_rpc("die_with_the_server")
    await engine.update_weight_version(str(config["version"]))
    # Some models that vLLM loads it cannot compute (on a CPU, heads of 8 dimensions): that ends the engine, so now.
    async for _ in engine.generate(tokens_input([0]), SamplingParams(max_tokens=1, detokenize=False), "first"):
        pass
    weights, died = Weights(EngineControls(engine)), asyncio.get_running_loop().create_future()
    (statistics,) = made
    (described,) = await engine.collective_rpc("describe_to_the_trainer")
    welcome = Frame({"op": "welcome", **described})
    numbers, turn = itertools.count(), asyncio.Lock()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled when the engine has ended; there is nobody to tell.
        with contextlib.suppress(asyncio.CancelledError):
            async with turn:
                client = Connection(engine, weights, statistics, died, f"c{next(numbers)}")
                await client.serve(reader, writer, welcome)

    # Clients look for the socket to see whether the server is ready: it appears whole.
    path = Path(config["socket"])
    await asyncio.start_unix_server(accept, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    while not died.done():
        if engine.errored:
            died.set_result(f"vLLM's engine process is gone: {engine.dead_error}")
        await asyncio.wait({died}, timeout=CHECK_S)
    await asyncio.sleep(0.1)  # what was said last gets out
    return str(died.result())
