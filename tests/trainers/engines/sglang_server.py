"""One real SGLang server for all tests of a session, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_server import PATIENT, RealServer, stopped_in_the_end
from transformers import PreTrainedModel

from trainers.engines.sglang import SGLangEngine, SGLangOptions

PYTHON = Path(os.environ.get("TEXTENVS_SGLANG_PYTHON", Path(__file__).parents[3] / ".venv-sglang/bin/python"))


class Server(RealServer):
    """SGLang's server."""

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return SGLangOptions(python=str(PYTHON)).command(self.folder, self.port, self.context)

    def options(self, **extra: object) -> SGLangOptions:
        return SGLangOptions(base_url=self.url, **PATIENT | extra)

    async def make(
        self, model: PreTrainedModel, max_slots: int = 64, unused: Sequence[int] = (), **extra: object
    ) -> SGLangEngine:
        with self.running():
            engine = SGLangEngine(
                self.folder,
                self.options(**extra),
                max_context=self.context,
                weights=model.state_dict(),
                version=0,
                unused_token_ids=unused,
            )
            await engine.ready()
            return engine

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)


@contextmanager
def serving(folder: Path, model: PreTrainedModel, context: int) -> Iterator[Server]:
    if not PYTHON.exists():
        pytest.fail(
            f"there is no {PYTHON}: `make venv-sglang` makes it, TEXTENVS_SGLANG_PYTHON names another, and "
            '`-m "not engines"` leaves these tests out'
        )
    model.save_pretrained(folder)
    with stopped_in_the_end(Server(folder, context)) as server:
        yield server
