"""Other answers in the place of the expert's last reply: two at once, numbers that only begin alike, harmless forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..env import TextEnv
from ..messages import text_of
from ..text import excerpt
from .search import learned_forms
from .subject import Subject, Verdict, solved

_TASKS = 12
_TURNS = 60  # of the expert
#: Share of the expert's reward from which an answer counts as right.
_RIGHT = 0.99
#: Share of the tasks from which an answer that is judged wrongly is an error: below, it may be right by chance.
_SHARE = 0.25
_SHORT = 80  # characters of an answer that can stand in a sentence
_LISTED = 8  # wrong answers of a list
_NUMBER = re.compile(r"-?\d+")

#: Values other than an integer, by how they are written.
OTHER_NUMBERS = (
    *("{}e5", "{}_000", "{},000", "{}.000.000", "0x{}", "-{}", "{}/7", "{}\u0663", "{}\uff13", "{}\xb2", "1{}"),
    *("nan", "inf"),
)
#: The same answer, by how it is written.
HARMLESS = {
    "spaces around it": " {} ",
    "a final period": "{}.",
    "bold": "**{}**",
    "a box": "\\boxed{{}}",
    "dollar signs": "${}$",
}
_NUMBERS = "another number"
#: Kinds of errors, and their causes.
CAUSES = {
    "two answers": "an answer with another one counts as right, so a policy may hedge: exactly one must stand there",
    "a list of answers": "a list of answers counts as right where one of them is: exactly one answer must stand there",
    "the best of several": "of several answers the best counts, in either order: judge the last, or refuse them",
    _NUMBERS: "another number is judged as the right one: read the whole text as a number, or refuse it",
    "spaces": "the right answer between spaces and line ends is refused: strip what is read",
}


@dataclass(frozen=True)
class LastTurn:
    """An episode before the expert's last reply."""

    env: TextEnv[Any]
    reply: str
    reward: float

    def is_right(self, reply: str) -> bool:
        """Return whether another reply earns what the expert's does."""
        with_reply = self.env.fork()
        try:
            _, reward, *_ = with_reply.step(reply)
        except Exception:  # the check of odd replies reports it
            return False
        return reward >= _RIGHT * self.reward


@dataclass
class _Count:
    tried: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, wrong: bool, reply: str, key: str) -> None:
        self.tried += 1
        if wrong:
            self.wrong.append(f"{excerpt(reply, 160)!r}, where the expert says {excerpt(key, 80)!r}")

    @property
    def failed(self) -> bool:
        return len(self.wrong) > _SHARE * self.tried


def last_turns(env: TextEnv[Any], indices: Sequence[int], seed: int) -> Iterator[tuple[TextEnv[Any], Any, float]]:
    """Yield episodes before the expert's last reply, that reply, and its reward, where that reply is an answer.

    It is one if it has the ground truth, or is the only one; after others, it may be a mere farewell.
    """
    for index in indices:
        rng = np.random.default_rng([seed, index % 2**32, 4])
        playing = env.fork()
        playing.reset(seed=seed, options={"task_index": index})
        for _ in range(_TURNS):
            reply = playing.demonstration(rng)
            before = playing.fork()
            _, reward, *_ = playing.step(reply)
            if playing.state.done:
                text = reply if isinstance(reply, str) else text_of(reply)
                if not before.state.assistant_turns or _has_truth(text, playing.task.ground_truth):
                    yield before, reply, reward
                break


def _has_truth(reply: str, truth: Any) -> bool:
    return isinstance(truth, (str, int, float)) and bool(str(truth).strip()) and str(truth).lower() in reply.lower()


def answers(subject: Subject) -> Iterator[Verdict]:
    """Check that answers which contradict each other are wrong, and that the right one is right in harmless forms."""
    if not subject.expert:
        yield Verdict("answers", "skipped", "no scripted expert")
        return
    indices, _ = subject.tasks(min(_TASKS, subject.episodes), seed=40)
    keys = [
        LastTurn(before, reply, reward)
        for before, reply, reward in last_turns(subject.env, indices, subject.seed)
        if isinstance(reply, str) and reward > 0
    ]
    template, texts = _split([key.reply for key in keys])
    counts = {kind: _Count() for kind in CAUSES if kind != _NUMBERS}
    numbers = {written: _Count() for written in OTHER_NUMBERS}
    forms = {form: _Count() for form in HARMLESS}
    for number, key in enumerate(keys):
        counts["spaces"].add(not key.is_right(f"\n {key.reply} \n"), f"\n {key.reply} \n", key.reply)
        text = texts[number]
        if len(text) > _SHORT or "\n" in text:
            continue
        wrong_ones = list(dict.fromkeys(other for other in texts if other != text and len(other) <= _SHORT))
        # An answer to another task is wrong, but not in every environment.
        wrong_ones = [other for other in wrong_ones[:_LISTED] if not key.is_right(_put(template, other))]
        _contradict(counts, key, template, text, wrong_ones, number)
        if _NUMBER.fullmatch(text) and int(text):
            for written, count in numbers.items():
                other = text[1:] if written == "-{}" and text[0] == "-" else written.replace("{}", text)
                count.add(key.is_right(_put(template, other)), _put(template, other), key.reply)
        for form, written in HARMLESS.items():
            reply = _put(template, written.replace("{}", text))
            forms[form].add(not key.is_right(reply), reply, key.reply)
    # Of the ways of writing, the worst counts: most of them are refused everywhere.
    counts[_NUMBERS] = max(numbers.values(), key=lambda count: len(count.wrong))
    yield _judge(counts)
    yield _harmless(forms)
    yield _own_answers(subject)


def _contradict(
    counts: dict[str, _Count], key: LastTurn, template: str, text: str, wrong_ones: Sequence[str], number: int
) -> None:
    if not wrong_ones:
        return
    other = wrong_ones[number % len(wrong_ones)]
    two = _put(template, f"{text}. No, it is {other}.")
    counts["two answers"].add(key.is_right(two), two, key.reply)
    listed = [*wrong_ones, text]
    order = np.random.default_rng(number).permutation(len(listed))
    several = _put(template, " or ".join(listed[int(place)] for place in order))
    counts["a list of answers"].add(key.is_right(several), several, key.reply)
    replies = [key.reply, _put(template, other)]
    both = ["\n".join(replies), "\n".join(replies[::-1])]
    counts["the best of several"].add(all(map(key.is_right, both)), both[0], key.reply)


def _split(replies: Sequence[str]) -> tuple[str, list[str]]:
    """Return a template of the replies, and what stands in its place in each; the whole reply where none fits all."""
    for template in (*learned_forms(replies), "{}"):
        start, _, end = (
            template.replace("{{}}", "{{{}}}").partition("{}") if "{{}}" in template else template.partition("{}")
        )
        pattern = re.compile(re.escape(start) + "(.+?)" + re.escape(end) + r"\s*\Z", re.DOTALL)
        matches = [pattern.search(reply) for reply in replies]
        if all(matches):
            return template, [match[1].strip() for match in matches if match]
    return "{}", [reply.strip() for reply in replies]


def _put(template: str, text: str) -> str:
    return template.replace("{}", text)


def _judge(counts: dict[str, _Count]) -> Verdict:
    tried = ", ".join(f"{kind} {count.tried}" for kind, count in counts.items())
    if not any(count.tried for count in counts.values()):
        cause = "the expert's last reply is no text that earns something, so no answer could be put in its place"
        return Verdict("answers", "skipped", cause)
    for kind, count in counts.items():
        if count.failed:
            evidence = f"{kind}: {len(count.wrong)} of {count.tried}; {count.wrong[0]}"
            return Verdict("answers", "fail", CAUSES[kind], evidence)
    return Verdict("answers", "pass", "no hedge and no other number counts as the answer", f"tried: {tried}")


def _harmless(forms: dict[str, _Count]) -> Verdict:
    check = "harmless forms"
    if not any(count.tried for count in forms.values()):
        return Verdict(check, "skipped", "the expert's last reply has no short answer that could be written otherwise")
    refused = [form for form, count in forms.items() if 2 * len(count.wrong) > count.tried]
    tried = f"{max(count.tried for count in forms.values())} tasks"
    if len(refused) == len(forms):
        cause = "a right answer is refused in every other form: say in the prompt that it must stand alone, or strip it"
        return Verdict(check, "warning", cause, f"{', '.join(refused)}; {forms[refused[0]].wrong[0]}")
    accepted = [form for form in forms if form not in refused]
    return Verdict(check, "pass", f"taken: {', '.join(accepted)}", f"refused: {', '.join(refused) or 'none'}; {tried}")


def _own_answers(subject: Subject) -> Verdict:
    """Warn where the expert, which knows the answer, is often not right."""
    check, share = "the expert's own answers", solved(subject.expert)
    if share is None:
        return Verdict(check, "skipped", "no episode can end as solved")
    if share < 1 - _SHARE:
        cause = "answers of the expert, which knows the right ones, are refused: the scorer or the answer key is wrong"
        return Verdict(check, "warning", f"{cause}, or the expert; mend what it is", f"solved {share:.1%}")
    return Verdict(check, "pass", "they are right", f"solved {share:.1%}")
