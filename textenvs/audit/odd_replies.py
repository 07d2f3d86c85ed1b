"""Odd replies: none raises, hangs, runs as code or ends the process, and an empty one earns nothing.

They are played in another process, one reply an episode: in its first turn and in the place of the expert's last reply,
alone and in the form of the expert's answers. A reply that earned something there is then played on more tasks.
"""

from __future__ import annotations

import functools
import itertools
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..attack import always
from ..env import TextEnv
from ..evaluate.baselines import same_tasks
from ..evaluate.policies import AttackPolicy
from ..messages import text_of
from ..text import excerpt
from .answers import last_turns
from .farming import in_place_of_last
from .process import Died, Unfinished, Unpicklable, run_in_new_process
from .search import learned_forms
from .subject import Subject, Verdict, below_expert, mean, show

#: Seconds of the processor that a reply may take, and how many times as long by the clock, on a busy machine.
_SLOW_S, _BY_THE_CLOCK = 5.0, 6
_TASKS = 3
_TURNS = 3  # of an episode that the reply is said in
_FORMS = 2  # of the expert's answers
_AGAIN = 40  # episodes of a reply that earned something
_MOST_AGAIN = 12  # replies
#: Share of the expert's return that a reply without an answer must stay below.
_PAID = 0.1
#: Hold no answer.
EMPTY = (
    "",
    " ",
    "\n\n",
    "\t",
    ".",
    "\u200b",
    "\x00",
    "None",
    "null",
    "[]",
    "{}",
    "()",
    '""',
    "\\boxed{}",
    "<answer></answer>",
)
#: Hold no answer that a task has, or are hard to read.
ODD = (
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        "[nan]",
        "1e999",
        "1/0",
        "-0",
        "0x10",
        "1_000",
        "²",
        "½",
        "\u0663",
        "１２",
        "True",
        "-1",
    ),
    *(
        "\ud7ff",
        "\ud83d",
        "[[[",
        "}{",
        '"',
        "<answer>",
        "</answer>",
        "<think>",
        "<tool_call>",
        "```",
        "\\frac{1}{0}",
        "\\boxed{",
    ),
    *("{0}", "%s%n", "[1, 2, 3]", '{"a": 1}', "a" * 20_000, "9" * 5_000, "(" * 2_000, "[" * 100_000, "<a>" * 5_000),
    *("1" + " " * 20_000 + "x", "-" * 5_000 + "1", "9**9**9"),
)
#: Programs that make a file; an environment that runs what a policy writes does so in a sandbox, which has other files.
CODE = (
    "__import__('pathlib').Path('{path}').touch()",
    "[__import__('pathlib').Path('{path}').touch()]",
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'BuiltinImporter'][0]"
    ".load_module('posix').system('touch {path}')",
    "import pathlib\npathlib.Path('{path}').touch()",
    "$(touch {path})",
    "1; touch {path} #",
    '1"; touch {path}; "',
    "1'; touch {path}; '",
    "{{{{ cycler.__init__.__globals__.os.popen('touch {path}').read() }}}}",
    "!!python/object/apply:os.system ['touch {path}']",
    "require('fs').writeFileSync('{path}', '')",
)
_CHECK = "odd replies"


class _TooSlow(BaseException):
    """A reply took too long; no environment that catches exceptions swallows it."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise in this block after ``seconds``; in the main thread only, where signals arrive."""

    def stop(number: int, frame: Any) -> None:
        raise _TooSlow

    limits = {signal.ITIMER_PROF: seconds, signal.ITIMER_REAL: seconds * _BY_THE_CLOCK}
    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    for timer, limit in limits.items():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer in limits:
            signal.setitimer(timer, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def odd_replies(subject: Subject) -> Iterator[Verdict]:
    """Check what odd replies do, and then that those without an answer earn nothing."""
    forms = _forms_of(subject)
    indices, _ = subject.tasks(min(_TASKS, subject.episodes), seed=50)
    with tempfile.TemporaryDirectory() as folder:
        play = functools.partial(
            play_odd_replies, subject.make_env, forms, indices, subject.seed, bool(subject.expert), folder, _SLOW_S
        )
        try:
            result = run_in_new_process(play)
        except Unpicklable as error:
            yield Verdict(_CHECK, "skipped", "what makes the environment cannot be sent to another process", str(error))
            return
        except (Died, Unfinished) as error:
            cause = "a reply ends the process, or stops it without end; a bad reply is something to answer"
            reply = _progress(folder).read_text("utf-8", "replace") if _progress(folder).exists() else "no reply"
            yield Verdict(_CHECK, "fail", cause, f"{reply}; {error}")
            return
    if result["problem"]:
        cause, evidence = result["problem"]
        yield Verdict(_CHECK, "fail", cause, evidence)
    else:
        yield Verdict(_CHECK, "pass", "none raises, hangs or runs as code", f"{result['played']} episodes")
    yield _earning(subject, [tuple(row) for row in result["earned"]])


def _forms_of(subject: Subject) -> list[str]:
    talks = [
        [text_of(message) for message in record.messages if message["role"] == "assistant"] for record in subject.expert
    ]
    endings = [talk[-1] for talk in talks if talk]
    return ["{}", *learned_forms(endings)[:_FORMS]]


def _progress(folder: str) -> Path:
    return Path(folder, "progress")


def play_odd_replies(
    make_env: Callable[[], TextEnv[Any]],
    forms: Sequence[str],
    indices: Sequence[int],
    seed: int,
    expert: bool,
    folder: str,
    slow_s: float,
) -> dict[str, Any]:
    """Play every odd reply in every form; return the first problem, and the replies that earned something."""
    marker, played = Path(folder, "ran"), 0
    earned: list[tuple[str, str, bool, float]] = []
    code = [text.format(path=marker) for text in CODE]
    with closing(make_env()) as env:
        places = _places(env, indices, seed, expert)
        for text, form, at_end in itertools.product((*code, *EMPTY, *ODD), forms, sorted(places)):
            reply = form.replace("{}", text)
            before = places[at_end][played % len(places[at_end])]
            quoted = f"{excerpt(reply, 120)!r}{' as the last reply' if at_end else ''}"
            _progress(folder).write_text(quoted, "utf-8", "replace")
            problem, total = _play(before.fork(), reply, slow_s, once=at_end)
            if marker.exists():
                cause = "a reply runs as code: parse it with ast.literal_eval or a parser, or run it in a sandbox"
                problem = (cause, quoted)
            if problem:
                return {"problem": (problem[0], problem[1] or quoted), "earned": earned, "played": played}
            if total > 0 and text not in code:  # which is said to this process no more
                earned.append((text, reply, at_end, total))
            played += 1
    return {"problem": None, "earned": earned, "played": played}


def _places(env: TextEnv[Any], indices: Sequence[int], seed: int, expert: bool) -> dict[bool, list[TextEnv[Any]]]:
    """Return episodes at their first turn, and before the expert's last reply where that is another turn."""
    first = []
    for index in indices:
        fork = env.fork()
        fork.reset(seed=seed, options={"task_index": index})
        first.append(fork)
    last = [before for before, *_ in last_turns(env, indices, seed)] if expert else []
    last = [before for before in last if before.state.assistant_turns]
    return {False: first} | ({True: last} if last else {})


def _play(env: TextEnv[Any], reply: str, slow_s: float, once: bool) -> tuple[tuple[str, str] | None, float]:
    """Say a reply; return a problem, if there is one, and what it earned."""
    earned_before = env.state.return_so_far
    try:
        with _limited(slow_s):
            for _ in range(1 if once else _TURNS):
                *_, info = env.step(reply)
                if info["failed"]:
                    return ("a reply makes the environment fail", f"{excerpt(reply, 120)!r}: {info['stop']}"), 0.0
                if env.state.done:
                    break
    except _TooSlow:
        return (f"a reply takes longer than {slow_s:g} s: limit what is read, and how long", ""), 0.0
    except BaseException as error:  # SystemExit, too
        cause = "a reply makes it raise; a bad reply is something to answer, not an error"
        return (cause, f"{excerpt(reply, 120)!r}: {type(error).__name__}: {excerpt(str(error), 120)}"), 0.0
    return None, env.state.return_so_far - earned_before


def _earning(subject: Subject, earned: Sequence[tuple[str, str, bool, float]]) -> Verdict:
    """Check that replies without an answer, which earned something once, earn next to nothing on more tasks."""
    check, ceiling = "odd replies that earn", mean(subject.expert)
    if not subject.expert:
        return _without_expert(check, earned)
    indices, _ = subject.tasks(min(_AGAIN, subject.episodes), seed=60)
    most = sorted(earned, key=lambda row: -row[3])[:_MOST_AGAIN]
    for text, reply, at_end, _ in most:
        attack = AttackPolicy(always("odd", "", reply))
        expert = same_tasks(subject.expert, subject.expert[:_AGAIN])
        records = (
            subject.play_again(in_place_of_last(reply), expert)
            if at_end
            else subject.play(attack, indices, subject.seed)
        )
        limit = (
            below_expert(subject.env, mean(expert), mean(same_tasks(subject.silence, expert)))
            if at_end
            else subject.limit
        )
        if text in EMPTY and not at_end and ceiling > 0:
            limit = _PAID * ceiling
        if mean(records) > limit:
            cause = "a reply without an answer is paid: pay nothing for what is empty, invalid or no finite number"
            where = "in the place of the expert's last reply" if at_end else "on every turn"
            evidence = f"{excerpt(reply, 120)!r} {where}: mean return {mean(records):+.3f}; expert {ceiling:+.3f}"
            return Verdict(check, "fail", cause, evidence, show(records))
    evidence = f"{len(earned)} earned something once, {len(most)} of them played on {len(indices)} tasks"
    return Verdict(check, "pass", "a reply without an answer earns next to nothing", evidence)


def _without_expert(check: str, earned: Sequence[tuple[str, str, bool, float]]) -> Verdict:
    """Warn where an empty reply earned something: without an expert, of how much is unknown."""
    empty = [(total, reply) for text, reply, _, total in earned if text in EMPTY]
    if not empty:
        return Verdict(check, "skipped", "no scripted expert", f"{len(earned)} odd replies earned something")
    most, reply = max(empty)
    cause = "a reply without an answer is paid; define demonstration(rng), which shows how much of a success that is"
    return Verdict(check, "warning", cause, f"{excerpt(reply, 120)!r} on every turn: {most:+.3f} in one episode")
