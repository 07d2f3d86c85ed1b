"""How an SGLang server is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainers.engines.server import ServerOptions


@dataclass(frozen=True)
class SGLangOptions(ServerOptions):
    """Options of the SGLang engine; the others are those of every server.

    Args:
        server_args: More command-line arguments of a server that is started; they win over the engine's own.
        seeds: Start the server in deterministic mode, in which it honours seeds, at the price of some speed on GPUs and
            of ``min_p``.
    """

    server_args: tuple[str, ...] = ()
    seeds: bool = True

    package: ClassVar[str] = "sglang"

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
