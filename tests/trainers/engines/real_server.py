"""A real server for all tests of a session; the kits of the engines define its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from chat_styles import tokenizer_of
from trajectories import trajectory_of, turns_of
from transformers import PreTrainedModel

from trainers.config.engine import SGLangEngineSection, VLLMEngineSection
from trainers.engines.remote import RemoteEngine
from trainers.engines.server import ServerProcess, free_port
from trainers.engines.teacher import ServedTeacher

#: Timeouts that a busy machine does not exceed; a killed server is noticed at once in any case.
PATIENT: dict[str, Any] = {"start_timeout_s": 500.0, "health_timeout_s": 60.0}


class RealServer(ABC):
    """A server that is started when it is first needed, and again when it was killed; ``folder/model`` is its model."""

    engine: ClassVar[type[RemoteEngine]]
    section: ClassVar[type[VLLMEngineSection | SGLangEngineSection]]

    def __init__(self, folder: Path, context: int) -> None:
        self.folder, self.context = folder, context
        self.port = free_port()
        self.process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return its command line, and additions to its environment."""

    def ensure(self) -> ServerProcess:
        if self.process is None or self.process.ended is not None:
            self.process = ServerProcess(*self.command())
        return self.process

    async def make(
        self,
        model: PreTrainedModel,
        max_slots: int = 64,
        unused: Sequence[int] = (),
        transport: str = "auto",
        **options: Any,
    ) -> Any:
        """Return an engine on this server, with the model's weights; ``options`` are of the server's section."""
        keys = {"max_context": self.context, "weight_transport": transport}
        server = {"base_url": self.url, **PATIENT, **options}
        section = self.section.model_validate(keys | {self.section.model_fields["name"].default: server})
        with self.running():
            engine = self.engine(
                self.folder / "model", section, weights=model.state_dict(), version=0, unused_token_ids=unused
            )
            await engine.ready()
            return engine

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ensure that it runs; errors inside are raised with the end of its log."""
        process = self.ensure()
        try:
            yield
        except Exception as error:
            error.add_note(process.tail())
            raise


def check_teacher(url: str, model: PreTrainedModel, context: int) -> None:
    """Check what a teacher at a server says of tokens; its folder has no tokenizer to compare."""
    teacher, episodes = ServedTeacher(url, 4), [trajectory_of(turns_of((4, 2), (3, 5), tail=2)), trajectory_of([])]
    teacher.meet(context - 1, tokenizer_of("chatml"))
    scores, ids, top = teacher.top_logprobs(episodes)
    (item, _), where = episodes, episodes[0].actions
    with torch.no_grad():
        logits = model(torch.from_numpy(item.token_ids[None].astype(np.int64))).logits[0].float()
    log_p = logits.log_softmax(-1)[where - 1]
    np.testing.assert_allclose(scores[0], log_p[np.arange(len(where)), item.token_ids[where]].numpy(), atol=1e-4)
    np.testing.assert_allclose(top, log_p.topk(4).values.numpy(), atol=1e-4)
    np.testing.assert_allclose(log_p.gather(1, torch.from_numpy(ids).long()).numpy(), top, atol=1e-4)
    assert not len(scores[1])


_Server = TypeVar("_Server", bound=RealServer)


@contextmanager
def stopped_in_the_end(server: _Server) -> Iterator[_Server]:
    try:
        yield server
    finally:
        if server.process is not None:
            server.process.stop()
