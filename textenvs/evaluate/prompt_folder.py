"""The folder of a search for a prompt: all that costs something, stored as it is had.

Each prompt's episodes are an evaluation's folder of its own (:mod:`.records`), and so are the requests to the
reflection model, each an episode of one reply. A search that is run again in its folder takes from there what it asks
for again, and plays and asks only for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..env import TextEnv
from ..messages import Message, text_of, user, visible_text
from ..task import Task
from ..text import digest
from ..turn import Turn
from .plan import Job
from .policies import Policy, Stopped
from .prompt_search import FitsPolicy
from .records import SUMMARY, Folder, FolderError, Record, write_json
from .runner import run
from .summary import summarize

_ATTEMPTS = 2  # at an episode that fails


@dataclass(frozen=True)
class Asked:
    """A policy, and its settings as a manifest has them."""

    policy: Policy
    described: Mapping[str, Any]


class _Request(TextEnv[Any]):
    """A request to the reflection model: one reply, whatever it is."""

    def __init__(self, text: str) -> None:
        super().__init__([Task("request", "reflection", (user(text),), ground_truth=None)])

    def respond(self, reply: Message) -> Turn:
        return Turn(messages=[], terms={}, terminated=True, stop="answered")


class PromptFolder:
    """The folder, held by one process at a time within :meth:`opened`.

    Args:
        path: The folder; it is made where it is missing.
        search: All that the search depends on, as JSON values, but its budget: what ``environment`` (``id``,
            ``version``, ``options``) is played on which ``tasks``, by ``seed``.
        options: Returns the environment's options with a prompt.
        make_env: Makes the environment with such options.
        policy: The policy whose prompt is searched.
        reflection: The model that writes prompts.
        loop: The event loop of both: their clients are bound to it.
        settings: Of :func:`.runner.run`: ``concurrency``, ``max_failures`` and the time limits.
    """

    def __init__(
        self,
        path: str | Path,
        search: Mapping[str, Any],
        *,
        options: Callable[[str], dict[str, Any]],
        make_env: Callable[[Mapping[str, Any]], TextEnv[Any]],
        policy: Asked,
        reflection: Asked,
        loop: asyncio.Runner,
        settings: Mapping[str, Any],
    ) -> None:
        self.path = Path(path).expanduser()
        self.search = search
        self.played = 0  # episodes that were not in the folder
        self._options, self._make_env = options, make_env
        self._policy, self._reflection = policy, reflection
        self._loop, self._settings = loop, settings
        self._replies: Folder | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the folder within the block; raise ``FolderError`` where it is another search's, or in use."""
        configuration = {**self.search, "samples": 1, "policy": dict(self._reflection.described)}
        configuration["player"] = dict(self._policy.described)
        with Folder(self.path / "reflections", configuration) as self._replies:
            yield

    def folder_of(self, prompt: str, kind: str = "prompts") -> Path:
        """Return the folder of a prompt's episodes: of the search, or those ``held-out``."""
        return self.path / kind / digest(prompt).hex()[:12]

    def play(self, prompt: str, jobs: Sequence[Job]) -> list[Record]:
        """Return the records of episodes of the search, in order."""
        return self._play(self.folder_of(prompt), self.search, prompt, jobs)

    def play_held_out(self, prompt: str, jobs: Sequence[Job], tasks: Mapping[str, Any]) -> list[Record]:
        """Play a prompt on held-out tasks, and write the summary as an evaluation has it."""
        folder = self.folder_of(prompt, "held-out")
        search = {**self.search, "tasks": dict(tasks)}
        records = self._play(folder, search, prompt, jobs)
        write_json(folder / SUMMARY, {**self._configuration(search, prompt), **summarize(records)})
        return records

    def reflect(self, number: int, request: str) -> str:
        """Return the reflection model's reply to the request of this number.

        Raises:
            FolderError: An earlier run of the search had another request here.
            Stopped: The model did not reply.
        """
        replies = self._replies
        assert replies is not None, "the folder is not opened"
        if (number, 0) not in replies.records:
            job = Job(number, 0, 0, (int(self.search["seed"]) + number) % 2**31)
            records: list[Record] = []
            playing = run(
                [job], lambda: _Request(request), self._reflection.policy, on_record=records.append, **self._settings
            )
            self._loop.run(playing)
            if records[0].failed:
                raise Stopped(f"the reflection model failed: {records[0].stop}: {records[0].failure}")
            replies.add(records[0])
        asked, *_, reply = replies.records[number, 0].messages
        if text_of(asked) != request:
            raise FolderError(
                f"{replies.path}: request {number} of an earlier run was another one (a newer version of gepa, or of "
                "the environment?); name another folder with --out"
            )
        return visible_text(reply)

    def _configuration(self, search: Mapping[str, Any], prompt: str) -> dict[str, Any]:
        environment = {**search["environment"], "options": self._options(prompt)}
        own = {"environment": environment, "tasks": search["tasks"], "seed": search["seed"]}
        return {**own, "samples": 1, "policy": dict(self._policy.described)}

    def _play(self, path: Path, search: Mapping[str, Any], prompt: str, jobs: Sequence[Job]) -> list[Record]:
        options = self._options(prompt)
        with Folder(path, self._configuration(search, prompt)) as folder:
            for attempt in range(1, _ATTEMPTS + 1):
                missing = [job for job in dict.fromkeys(jobs) if job.place not in folder.records]

                def keep(record: Record, last: bool = attempt == _ATTEMPTS) -> None:
                    if last or not record.failed:
                        folder.add(record)
                        self.played += 1

                playing = run(
                    missing,
                    lambda: self._make_env(options),
                    FitsPolicy(self._policy.policy),
                    on_record=keep,
                    **self._settings,
                )
                self._loop.run(playing)
            return [folder.records[job.place] for job in jobs]
