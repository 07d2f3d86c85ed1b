"""``textenvs prompts``: a search for a system prompt by an environment's reward."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from ..bounded_files import UnreadableFile, read_text
from ..env import TextEnv
from ..evaluate.plan import Job, fingerprint, jobs
from ..evaluate.policies import FAMILY_SCRIPT, SCRIPTS, Stopped
from ..evaluate.prompt_folder import Asked, PromptFolder
from ..evaluate.prompt_search import Search, Split, compare, disjoint_tasks, load_gepa
from ..evaluate.records import FolderError, Record, write_json, write_text
from ..evaluate.summary import table
from ..event_loop import settle
from ..messages import text_of
from ..privileged import Privilege
from ..text import plural, printable
from .common import CommandError, expected_errors, open_environment, parse_options, registered
from .interrupts import INTERRUPTED, interruptible
from .policies import check_policy_arguments, given_policy, policy_of

#: What is looked for in an opening, to see that the environment shows its system prompt.
_PROBE = "textenvs-prompts-probe"
_REFLECTION = ("reflection_model", "reflection_local")


def run(arguments: argparse.Namespace) -> int:
    check_policy_arguments(arguments)
    _check_reflection_arguments(arguments)
    with expected_errors(ImportError):
        load_gepa()
    command = _Command(arguments)
    with interruptible(lambda: f"textenvs prompts: {command.ended('interrupted')}"):
        try:
            return command.run()
        except KeyboardInterrupt as error:
            raise CommandError(command.ended("interrupted"), INTERRUPTED) from error
        except Stopped as error:
            raise CommandError(command.ended(str(error))) from error


def _check_reflection_arguments(arguments: argparse.Namespace) -> None:
    policy = arguments.policy
    if policy is not None and (policy in (*SCRIPTS, FAMILY_SCRIPT) or policy.startswith("attack:")):
        raise CommandError(f"--policy {policy} reads no system prompt; name a model, or a function of yours", 2)
    models = [name for name in _REFLECTION if getattr(arguments, name) is not None]
    if len(models) > 1:
        raise CommandError("give --reflection-model or --reflection-local, not both", 2)
    for name in ("reflection_base_url", "reflection_api_key_env"):
        if getattr(arguments, name) is not None and models != ["reflection_model"]:
            raise CommandError(f"--{name.replace('_', '-')} goes with --reflection-model", 2)
    own = ("reflection_temperature", "reflection_length")
    if policy is not None and not models and any(getattr(arguments, name) is not None for name in own):
        raise CommandError("a function that plays also reflects by default, and takes no temperature or length", 2)


class _Command:
    """One command, and how far it is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.options = parse_options(arguments.options)
        self.out = Path(arguments.out).expanduser()
        self.search: Search | None = None

    def ended(self, cause: str) -> str:
        """Why it ends, what is kept, and how to resume."""
        return f"{cause}\nwhat was played is kept in {self.arguments.out}; run the same command again to resume"

    def run(self) -> int:
        arguments = self.arguments
        self.start = self._start()
        with closing(open_environment(arguments.id, self.options)) as env:
            self._tasks(env)
        spec = registered(arguments.id)
        search = {
            "environment": {"id": arguments.id, "version": spec and spec.version, "options": self.options},
            "tasks": self.searched,
            "seed": arguments.seed,
            "search": {
                "start": self.start,
                "train": len(self.split.train),
                "validation": len(self.split.validation),
                "reflection_tasks": arguments.reflection_tasks,
                "privileged": arguments.privileged,
            },
        }
        settings = {
            "concurrency": arguments.concurrency,
            # A prompt that does not fit fails on all tasks of its first trial, which does not stop the search.
            "max_failures": max(arguments.max_failures, arguments.reflection_tasks + 1),
            "step_timeout_s": arguments.step_timeout,
            "episode_timeout_s": arguments.episode_timeout,
        }
        with ExitStack() as stack:
            self.loop = stack.enter_context(asyncio.Runner())
            policy = Asked(*policy_of(None, arguments.id, arguments))
            stack.callback(lambda: self.loop.run(policy.policy.aclose()))
            reflection = _reflection(arguments, policy)
            if getattr(arguments, _REFLECTION[0]) is not None or arguments.model is not None:
                stack.callback(lambda: self.loop.run(reflection.policy.aclose()))
            self.folder = PromptFolder(
                self.out,
                search,
                options=self._options_with,
                make_env=lambda options: open_environment(arguments.id, options),
                policy=policy,
                reflection=reflection,
                loop=self.loop,
                settings=settings,
            )
            with expected_errors(FolderError, OSError):
                stack.enter_context(self.folder.opened())
            with expected_errors(FolderError, OSError, mistakes=(ValueError, NotImplementedError)):
                return self._search(search)

    def _start(self) -> str:
        """Return the prompt that the search begins with, and check that the environment shows one."""
        arguments, env_id = self.arguments, self.arguments.id
        try:
            with closing(open_environment(env_id, {**self.options, "system_prompt": _PROBE})) as probed:
                opening, _ = probed.reset(seed=arguments.seed)
        except CommandError as error:
            if "no option 'system_prompt'" not in str(error):
                raise
            raise CommandError(f"{env_id} has no option system_prompt: no prompt to search for", 2) from error
        if not any(_PROBE in text_of(message) for message in opening):
            raise CommandError(
                f"{env_id} does not show its option system_prompt: its tasks open with a system message of their own", 2
            )
        if arguments.seed_prompt is not None:
            if "system_prompt" in self.options:
                raise CommandError("--seed-prompt and system_prompt=... are the same; give one of them", 2)
            with expected_errors(UnreadableFile):
                self.options["system_prompt"] = read_text(arguments.seed_prompt).strip()
        with closing(open_environment(env_id, self.options)) as env:
            return env.system_prompt or ""

    def _options_with(self, prompt: str) -> dict[str, Any]:
        return self.options if prompt == self.start else {**self.options, "system_prompt": prompt}

    def _tasks(self, env: TextEnv[Any]) -> None:
        arguments = self.arguments
        counts = (arguments.train_tasks, arguments.val_tasks, arguments.test_tasks)
        with expected_errors(mistakes=(ValueError,), where="--train-tasks, --val-tasks and --test-tasks: "):
            self.split: Split = disjoint_tasks(env.tasks, *counts, arguments.seed)
        if arguments.reflection_tasks > arguments.train_tasks:
            raise CommandError("--reflection-tasks is more than --train-tasks", 2)
        name, searched = env.tasks.name, (*self.split.train, *self.split.validation)
        self.searched = {"name": name, "count": len(searched), "fingerprint": fingerprint(env.tasks, searched)}
        test = self.split.test
        self.held_out = {"name": name, "count": len(test), "fingerprint": fingerprint(env.tasks, test)}

    def _search(self, manifest: Mapping[str, Any]) -> int:
        arguments, split = self.arguments, self.split
        searched = list(jobs((*split.train, *split.validation), 1, arguments.seed))
        held_out = list(jobs(split.test, 1, arguments.seed))
        train, validation = searched[: len(split.train)], searched[len(split.train) :]
        privileged = None if arguments.privileged is None else self._privileged
        if privileged is not None:
            privileged(train[0])  # mistakes are named here
        search = self.search = Search(
            self._play,
            self.folder.reflect,
            self.start,
            train,
            validation,
            budget=arguments.budget,
            minibatch=arguments.reflection_tasks,
            seed=arguments.seed,
            privileged=privileged,
            report=self._say,
        )
        search.check_budget()
        self._announce(validation[0])
        best = search.run()
        self._say(f"the search is over: {search.ended}")
        comparison = None
        if best.prompt != self.start:
            records = [
                self.folder.play_held_out(prompt, held_out, self.held_out) for prompt in (self.start, best.prompt)
            ]
            comparison = compare(*records)
        better = comparison is not None and comparison["difference"]["low"] is not None
        better = better and comparison["difference"]["low"] > 0  # type: ignore[index]
        prompt = best.prompt if better else self.start
        self._write(manifest, prompt, better, comparison)
        print(printable(self._report(best.prompt, better, comparison)))
        return 0

    def _privileged(self, job: Job) -> str | None:
        kind: Privilege = self.arguments.privileged

        async def ask() -> str | None:
            env = open_environment(self.arguments.id, self.options)
            try:
                await env.areset(seed=job.seed, options={"task_index": job.task_index})
                return await settle(env.privileged(kind, np.random.default_rng([job.seed, 2])))
            finally:
                await env.aclose()

        return self.loop.run(ask())

    def _play(self, prompt: str, batch: Sequence[Job]) -> list[Record]:
        """Play episodes of the search; after the first validation, say how long the rest takes at that speed."""
        began, before = time.monotonic(), self.folder.played
        records = self.folder.play(prompt, batch)
        search, seconds = self.search, (time.monotonic() - began) / len(batch)
        if search is not None and not search.spent and self.folder.played - before > len(batch) // 2:
            episodes = search.budget - len(batch) + 2 * len(self.split.test)
            self._say(
                f"{len(batch)} side by side take {seconds:.1f} s each, so at most about "
                f"{_duration(episodes * seconds)} more"
            )
        return records

    def _announce(self, first: Job) -> None:
        """Say what is going to happen, and for how long, by the time of one episode."""
        search, test = self.search, len(self.split.test)
        assert search is not None
        most = search.budget + 2 * test
        self._say(
            f"a search from the prompt of {plural(len(self.start), 'character')}: at most "
            f"{plural(search.budget, 'episode')}, on {plural(len(search.train), 'training task')} and "
            f"{plural(len(search.validation), 'validation task')}; then both prompts on {test} others. All is kept in "
            f"{self.arguments.out}"
        )
        began = time.monotonic()
        self.folder.play(self.start, [first])
        seconds = time.monotonic() - began
        if self.folder.played:
            self._say(
                f"an episode takes {seconds:.1f} s, so at most about {_duration(most * seconds)} and the replies of "
                "the reflection model; less where episodes are played side by side"
            )

    def _say(self, line: str) -> None:
        if not self.arguments.quiet:
            print(printable(line), file=sys.stderr, flush=True)

    def _write(
        self, manifest: Mapping[str, Any], prompt: str, better: bool, comparison: Mapping[str, Any] | None
    ) -> None:
        search = self.search
        assert search is not None
        proposals = [
            {**proposal.to_json(), "episodes": str(self.folder.folder_of(proposal.prompt).relative_to(self.out))}
            for proposal in search.proposals
        ]
        summary = {
            "better": better,
            "best": search.best.candidate,
            "held_out": comparison,
            "episodes": search.spent,
            "budget": search.budget,
            "ended": search.ended,
            "proposals": proposals,
        }
        write_json(self.out / "candidates.json", {**manifest, **summary})
        write_text(self.out / "prompt.txt", prompt)
        # As JSON it is one word of a command line, also where its text would be read as a number or as YAML.
        write_text(self.out / "prompt.json", json.dumps(prompt, ensure_ascii=False))

    def _report(self, prompt: str, better: bool, comparison: Mapping[str, Any] | None) -> str:
        search, arguments = self.search, self.arguments
        assert search is not None
        refused = len(search.proposals) - len(search.candidates)
        accepted = len(search.candidates) - 1
        lines = [
            f"{arguments.id}: {plural(search.spent, 'episode')}, {plural(accepted + refused, 'proposal')}, {accepted} "
            f"of them played on all {plural(len(search.validation), 'validation task')}"
        ]
        if comparison is None:
            return "\n".join(
                [
                    *lines,
                    "Nothing better was found on the validation tasks: the prompt stays as it was.",
                    "",
                    self._files(),
                ]
            )
        validation = {"start": search.candidates[0].validation, "found": search.best.validation}
        rows = [
            [name, _signed(validation.get(name)), _signed(value["value"]), _interval(value)]
            for name, value in comparison.items()
            if name in ("start", "found", "difference")
        ]
        tasks = f"{comparison['tasks']} held-out tasks"
        header = ["mean return", "validation", tasks, "95% interval"]
        solved = comparison["solved"]
        lines += [
            "",
            table(rows, header, right=(1, 2)),
            f"solved: {solved['start']:.1%} with the start, {solved['found']:.1%} with the found prompt",
            "",
        ]
        if better:
            lines.append("The found prompt is better:")
            lines.append(prompt)
        else:
            lines.append(
                "No better prompt is shown: the interval of the difference is not above 0, so the prompt stays as it "
                "was. More --test-tasks narrow the interval; a larger --budget continues this search."
            )
        return "\n".join([*lines, "", self._files(), *(self._commands() if better else ())])

    def _files(self) -> str:
        out = self.arguments.out
        return f"{out}: the prompt (prompt.txt, prompt.json), all proposals with their scores (candidates.json)"

    def _commands(self) -> list[str]:
        """Return how to evaluate and to train with the prompt."""
        arguments = self.arguments
        text = f"$(cat {shlex.quote(str(Path(arguments.out) / 'prompt.json'))})"
        words = [word for word in arguments.options if not word.startswith("system_prompt=")]
        policy = given_policy(arguments)[0]
        policy_words = [f"--{policy}", getattr(arguments, policy)]
        if arguments.base_url is not None:
            policy_words += ["--base-url", arguments.base_url]
        options, kwargs = shlex.join(words), shlex.join(f"env.kwargs.{word}" for word in words)
        evaluate = " ".join(filter(None, [arguments.id, options, f'"system_prompt={text}"', shlex.join(policy_words)]))
        train = " ".join(filter(None, [f"env.id={arguments.id}", kwargs, f'"env.kwargs.system_prompt={text}"']))
        return [
            f"evaluate it:    textenvs evaluate {evaluate}",
            f"train with it:  python -m trainers.ppo {train}",
        ]


def _reflection(arguments: argparse.Namespace, policy: Asked) -> Asked:
    """Return the model that writes prompts; by default the one that plays, with replies of its own length."""
    temperature = 1.0 if arguments.reflection_temperature is None else arguments.reflection_temperature
    length = arguments.reflection_length or 2048
    sampled = {"temperature": temperature, "max_response_length": length}
    option = next((name for name in _REFLECTION if getattr(arguments, name) is not None), None)
    if option is None and arguments.policy is not None:
        return policy
    if option is None and arguments.local is not None:
        local: Any = policy.policy
        return Asked(local.with_sampling(**sampled), {**policy.described, **sampled})
    other = argparse.Namespace(**{**vars(arguments), **sampled})
    if option is not None:
        model, local_folder = arguments.reflection_model, arguments.reflection_local
        other = argparse.Namespace(**{**vars(other), "policy": None, "model": model, "local": local_folder})
        other.chat, other.chat_template = [], []
    for name in ("base_url", "api_key_env"):
        if (value := getattr(arguments, f"reflection_{name}")) is not None:
            setattr(other, name, value)
    check_policy_arguments(other)
    return Asked(*policy_of(None, arguments.id, other))


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _interval(estimate: Mapping[str, Any]) -> str:
    return "" if estimate["low"] is None else f"{estimate['low']:+.3f} to {estimate['high']:+.3f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
