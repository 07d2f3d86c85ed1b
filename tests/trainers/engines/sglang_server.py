"""One real SGLang server for all tests of a session, and engines on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_server import RealServer, stopped_in_the_end
from transformers import PreTrainedModel

from trainers.config.engine import SGLangEngineSection, SGLangSection
from trainers.engines.sglang import SGLangEngine
from trainers.engines.sglang.command import server_command

PYTHON = Path(os.environ.get("TEXTENVS_SGLANG_PYTHON", Path(__file__).parents[3] / ".venv-sglang/bin/python"))


class Server(RealServer):
    """SGLang's server."""

    engine, section = SGLangEngine, SGLangEngineSection

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        section = SGLangEngineSection(max_context=self.context, max_slots=256, sglang=SGLangSection(python=str(PYTHON)))
        return server_command(section, self.folder / "model", self.port)

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
    model.save_pretrained(folder / "model")
    with stopped_in_the_end(Server(folder, context)) as server:
        yield server
