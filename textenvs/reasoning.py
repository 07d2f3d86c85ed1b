"""Private reasoning: the marks that models put around it, and the visible text of a reply.

Only *leading* reasoning is private: one block or several in a row at the beginning of a reply, or all before an end
mark whose begin mark a chat template wrote into the prompt. A mark further down is text like any other.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias


class Marks(NamedTuple):
    """The marks before and after a block of reasoning, in any case of letters."""

    begin: str
    end: str
    in_prompt: bool = True  # some chat templates end the prompt with `begin`, so that replies may have `end` alone


#: The marks of the models that people train.
REASONING_MARKS: tuple[Marks, ...] = (
    Marks("<think>", "</think>"),  # DeepSeek, Qwen, GLM, Nemotron, OLMo, SmolLM, Granite 3.3, Phi reasoning and others
    Marks("[THINK]", "[/THINK]"),  # Magistral, Mistral
    Marks("<seed:think>", "</seed:think>"),  # Seed-OSS
    Marks("<mm:think>", "</mm:think>"),  # MiniMax M3
    Marks("<longcat_think>", "</longcat_think>"),  # LongCat
    Marks("<think:opensource>", "</think:opensource>"),  # Hunyuan
    Marks("<ifm|think>", "</ifm|think>"),  # K2 Horizon
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    Marks("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    Marks("<|channel>thought", "<channel|>"),  # Gemma 4
    Marks("◁think▷", "◁/think▷"),  # Kimi
    Marks("<thought>", "</thought>"),  # EXAONE Deep
    Marks("<|begin_of_thought|>", "<|end_of_thought|>", False),  # Sky-T1, OpenThinker
    Marks("<|channel|>analysis<|message|>", "<|end|>", False),  # gpt-oss
    Marks("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>", False),
    Marks("<|think|>", "<|end|>", False),  # Solar Open
    Marks("<|im_start|>think", "<|im_start|>answer", False),  # s1
    Marks("<unused94>thought", "<unused95>"),  # MedGemma
    Marks("[unused16]", "[unused17]"),  # openPangu
    Marks("<thinking>", "</thinking>", False),  # asked for by many system prompts, as are the next
    Marks("<reasoning>", "</reasoning>", False),
    Marks("<thoughts>", "</thoughts>", False),
    Marks("<analysis>", "</analysis>", False),
    Marks("<scratchpad>", "</scratchpad>", False),
    Marks("<reflection>", "</reflection>", False),
)

_Words: TypeAlias = tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]

_SPACE = r"[\s\u200b\ufeff]*+"

# Marks that are plain words, each begin mark with white space before it. Any reply may begin with such a word, so each
# counts only as it is spelled here, and only where its end follows.
_WORD_MARKS: _Words = (
    # gpt-oss, decoded without its special tokens
    (re.compile(_SPACE + r"(?:assistant)?analysis"), re.compile(r"assistant(?:final|commentary)")),
    # Granite 3.2
    (re.compile(_SPACE + r"Here(?:['’]s| is) my thought process:"), re.compile(r"Here(?:['’]s| is) my response:")),
)

#: Keys of a message that has its reasoning apart, as services and chat templates name them; the first present is read.
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")

# What some of these models put around the words after their reasoning; it is no part of them.
_ANSWERS: tuple[tuple[str, str], ...] = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
    ("<|begin_of_solution|>", "<|end_of_solution|>"),
    ("<|start|>assistant<|channel|>final<|message|>", "<|return|>"),
    ("<|channel|>final<|message|>", "<|return|>"),
    ("<|begin|>assistant<|content|>", "<|end|>"),
)


class Split(NamedTuple):
    """A reply's leading reasoning, without its marks, and what it says; white space around both is left out."""

    reasoning: str
    text: str


#: Stretches of a text, each from a place to another, in order.
Spans: TypeAlias = Sequence[tuple[int, int]]


def no_calls(text: str) -> Spans:
    return ()


def split_reasoning(text: str, marks: Sequence[Marks] | None = None, calls: Callable[[str], Spans] = no_calls) -> Split:
    """Take a reply apart, in time linear in it.

    ``marks`` are by default :data:`REASONING_MARKS` and the plain words that gpt-oss (its special tokens left out) and
    Granite 3.2 put around their reasoning; those count only where the end follows.

    A block ends at the end mark that belongs to its begin mark, blocks within blocks counted; where none does, at the
    first end mark. One that is not closed is private to the last character: a reply cut off while thinking has said
    nothing. ``calls`` gives the stretches of tool calls in a text, in which no mark counts.
    """
    words = _WORD_MARKS if marks is None else ()
    marks = REASONING_MARKS if marks is None else tuple(marks)
    if not any(character in text for character in _firsts(marks)) and _match_words(words, text, 0) is None:
        return Split("", text.strip())
    occurrences = _Occurrences(text, marks, words, calls)
    private, place = _leading(occurrences, 0)
    if not private and (end := occurrences.unopened()) is not None:
        rest, place = _leading(occurrences, end[1])
        private = [text[: end[0]], *rest]
    return Split("\n\n".join(block.strip() for block in private), _without_answer_marks(text[place:].strip()))


def _leading(occurrences: _Occurrences, place: int) -> tuple[list[str], int]:
    """Return the blocks that begin at ``place``, and the place behind them."""
    private: list[str] = []
    while (block := occurrences.block(place)) is not None:
        inner, end, place = block
        private.append(occurrences.text[inner:end])
    return private, place


def _without_answer_marks(text: str) -> str:
    for begin, end in _ANSWERS:
        if text.startswith(begin):
            return text.removeprefix(begin).removesuffix(end).removesuffix("<|end|>").strip()
    return text


class _Occurrences:
    """The marks in a text, looked for when they are needed."""

    def __init__(self, text: str, marks: tuple[Marks, ...], words: _Words, calls: Callable[[str], Spans]) -> None:
        self.text, self.marks, self._words, self._find_calls = text, marks, words, calls
        self._pairs: dict[Marks, _Pairs] = {}

    def block(self, place: int) -> tuple[int, int, int] | None:
        """Return begin and end of the inside of the block at ``place``, behind white space, and the block's end."""
        begin = _begins(self.marks).match(self.text, place)
        if begin is None or begin.lastindex is None:
            return self._words_block(place)
        pairs = self._of(self.marks[begin.lastindex - 1])
        end = pairs.end_of(begin.start(begin.lastindex))
        return (begin.end(), *((len(self.text), len(self.text)) if end is None else end))

    def unopened(self) -> tuple[int, int] | None:
        """Return the first end mark without a begin mark, where a template may have written that."""
        lower = self.text.lower()
        ends = (self._of(pair).unopened for pair in self.marks if pair.in_prompt and pair.end.lower() in lower)
        return min((end for end in ends if end is not None), default=None)

    def _words_block(self, place: int) -> tuple[int, int, int] | None:
        """Return the block at ``place`` between marks that are plain words, as :meth:`block` does."""
        if (begin := _match_words(self._words, self.text, place)) is None:
            return None
        inside, end = begin
        for match in end.finditer(self.text, inside):
            if not _in_calls(match.start(), self._calls):
                return inside, *match.span()
        return None

    def _of(self, marks: Marks) -> _Pairs:
        if marks not in self._pairs:
            self._pairs[marks] = _Pairs(self.text, marks, self._calls)
        return self._pairs[marks]

    @functools.cached_property
    def _calls(self) -> Spans:
        return self._find_calls(self.text)


class _Pairs:
    """Pairs of begin and end marks, which belong together as brackets do."""

    def __init__(self, text: str, marks: Marks, calls: Spans) -> None:
        self._ends: list[tuple[int, int]] = []
        self._end_of: dict[int, tuple[int, int]] = {}
        self.unopened: tuple[int, int] | None = None
        opened: list[int] = []
        for match in _either(marks).finditer(text):
            if _in_calls(match.start(), calls):
                continue
            if match[1] is not None:
                opened.append(match.start())
                continue
            self._ends.append(match.span())
            if opened:
                self._end_of[opened.pop()] = match.span()
            elif self.unopened is None:
                self.unopened = match.span()

    def end_of(self, begin: int) -> tuple[int, int] | None:
        if begin in self._end_of:
            return self._end_of[begin]
        following = bisect_left(self._ends, (begin, begin))
        return self._ends[following] if following < len(self._ends) else None


def _in_calls(place: int, calls: Spans) -> bool:
    """Return whether a place is within one of the calls."""
    call = bisect_left(calls, (place + 1,)) - 1
    return call >= 0 and place < calls[call][1]


def _match_words(words: _Words, text: str, place: int) -> tuple[int, re.Pattern[str]] | None:
    """Match a begin mark of plain words: where the block's inside begins, and what ends it."""
    for begin, end in words:
        if match := begin.match(text, place):
            return match.end(), end
    return None


@functools.lru_cache(maxsize=64)
def _begins(marks: tuple[Marks, ...]) -> re.Pattern[str]:
    """Return a pattern of white space and a begin mark, with a group for each mark, in order."""
    begins = "|".join(f"({re.escape(pair.begin)})" for pair in marks)
    return re.compile(f"{_SPACE}(?:{begins})", re.IGNORECASE)


@functools.lru_cache(maxsize=64)
def _either(marks: Marks) -> re.Pattern[str]:
    return re.compile(f"({re.escape(marks.begin)})|{re.escape(marks.end)}", re.IGNORECASE)


@functools.lru_cache(maxsize=64)
def _firsts(marks: tuple[Marks, ...]) -> frozenset[str]:
    """Return the characters that marks and answers begin with."""
    texts = [mark for pair in marks for mark in (pair.begin, pair.end)] + [begin for begin, _ in _ANSWERS]
    return frozenset(case for text in texts for case in (text[0].lower(), text[0].upper()))
