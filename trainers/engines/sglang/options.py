"""How an engine reaches or starts its SGLang server, how it brings weights there, and how patient it is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainers.engines.server import HealthOptions


@dataclass(frozen=True)
class SGLangOptions(HealthOptions):
    """Options of the SGLang engine.

    Args:
        base_url: Of a server that runs already, for example ``http://127.0.0.1:30000``; ``None`` starts one.
        api_key: Of that server.
        python: The Python of an environment with SGLang, to start a server with; ``None`` is this one.
        server_args: More command-line arguments of a server that is started; they win over the engine's own.
        tensor_parallel: Ranks of a server that is started, which share each matrix.
        seeds: Start the server in deterministic mode, in which it honours seeds, at the price of some speed on GPUs and
            of ``min_p``.
        transport: How weights travel: ``tensor`` by value over HTTP, ``disk`` through a folder that both sides see,
            ``distributed`` through a process group (gloo, or NCCL where the server is on CUDA).
        bucket_bytes: Of one message of ``tensor`` and ``distributed`` at most, as raw weights.
        master_address: Of this machine, as the server reaches it; for ``distributed``.
        update_folder: Where ``disk`` writes; ``None`` is a temporary folder of this machine.
        verify: After an update, compare the server's checksums with what was sent.
        update_timeout_s: Seconds for one step of an update.

    Raises:
        ValueError: A number is not positive, or there is no Python with SGLang to start a server with.
    """

    base_url: str | None = None
    api_key: str | None = None
    python: str | None = None
    server_args: tuple[str, ...] = ()
    tensor_parallel: int = 1
    seeds: bool = True
    transport: Literal["tensor", "disk", "distributed"] = "tensor"
    bucket_bytes: int = 256 * 2**20
    master_address: str = "127.0.0.1"
    update_folder: Path | None = None
    verify: bool = True
    update_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base_url is not None:
            if not self.base_url.startswith(("http://", "https://")):
                raise ValueError(f"base_url must begin with http:// or https://, not {self.base_url!r}")
            if self.python is not None or self.server_args:
                raise ValueError("base_url names a server that runs already: python and server_args start one")
        elif self.python is None:
            if importlib.util.find_spec("sglang") is None:
                raise ValueError(
                    "SGLang is not installed here: give the Python of an environment that has it (`make venv-sglang` "
                    "makes .venv-sglang/bin/python, for the CPU; with CUDA, pip install 'textenvs[sglang]' into an "
                    "environment of its own), or the base_url of a server that runs already"
                )
        elif shutil.which(self.python) is None:
            raise ValueError(f"there is no Python at {self.python}; `make venv-sglang` makes .venv-sglang/bin/python")

    def command(self, arguments: Mapping[str, str], threads: int | None = None) -> tuple[list[str], dict[str, str]]:
        """How to start a server.

        Args:
            arguments: The server's, by option; ``--device`` among them.
            threads: CPU threads of its matrix products; ``None`` leaves torch's own choice.

        Returns:
            The command line, and what its environment has beside this process's own.
        """
        environment = {
            "PYTHONPATH": "",  # this process's packages are not the server's
            "PYTHONSAFEPATH": "1",  # nor are the files beside the launcher
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the positions that SGLang keeps to itself
        }
        words = [word for pair in arguments.items() for word in pair]
        # Without sleeping, the scheduler polls for requests and keeps a core busy while a policy is trained.
        words += ["--skip-tokenizer-init", "--skip-server-warmup", "--log-level", "warning", "--sleep-on-idle"]
        if self.tensor_parallel > 1:
            words += ["--tp-size", str(self.tensor_parallel)]
        if self.seeds:
            words.append("--enable-deterministic-inference")
        if arguments["--device"] == "cpu":
            cores = sorted(os.sched_getaffinity(0))
            environment |= {
                "SGLANG_USE_CPU_ENGINE": "1",
                "TORCHDYNAMO_DISABLE": "1",  # compiling takes a C++ compiler, and longer than small models save by it
            }
            if (ranks := self.tensor_parallel) > 1:  # SGLang wants to be told which cores each rank computes on
                shares = [cores[rank::ranks] or cores[:1] for rank in range(ranks)]
                environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
            if threads is not None:
                environment["OMP_NUM_THREADS"] = str(threads)
            tokens = int(arguments["--max-running-requests"]) * int(arguments["--context-length"])
            words += ["--attention-backend", "torch_native", "--mem-fraction-static", "0.8"]
            words += ["--max-total-tokens", str(tokens)]  # else SGLang takes all that share of the free memory
        launcher = str(Path(__file__).with_name("launcher.py"))
        return [self.python or sys.executable, launcher, *words, *self.server_args], environment
