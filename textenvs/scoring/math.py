r"""Mathematical comparison of an answer with the right one: ``0.5``, ``\frac12`` and ``1/2`` are the same.

Expressions are read and compared by `Math-Verify <https://github.com/huggingface/Math-Verify>`_ (extra ``math``), on
SymPy, which some expressions keep busy without end. So a comparison runs in a process of its own (:mod:`.math_worker`)
that is killed when its time is over.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..sandbox import CORES, Pool, Worker, WorkerDied
from ..text import quoted
from .answers import plain
from .final_answer import boxed
from .relations import claims_of, interval_of, is_name
from .restated import asks_to_simplify, expressions_in, has_variables, is_rational, restates
from .units import split_unit

Reason = Literal["equal", "different", "restated", "no_answer", "unreadable", "timeout"]

#: Longer answers are not read.
MAX_CHARS = 20_000
# Sides of relations that an answer may have beside names: each is a comparison of its own.
_SIDES = 8
_WORDS = re.compile(r"[a-z'-]{3,}")  # of an answer that is no expression
# x \\in (2, 5), and 2 \\text{ or } 5.
_MEMBER = re.compile(r"([^=<>{}()]{1,20}?)(?:\\in(?![a-zA-Z])|\u2208)")
_CONNECTED = re.compile(
    r"(?:,\s{0,3})?(?:\\(?:text|mathrm|mbox)\s*+\{[\s,]*+(?:and|or)\s*+\}|(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z}]))"
    r"\s*+(?=[-\\\w(+])"
)
# Parts of a list that is cut short, likewise.
_ITEMS = 16
_ELLIPSIS = re.compile(
    r"(?:\\(?:[lc]dots|dots[cbmio]?|dotso|hdots)(?![a-zA-Z])|\\text\{\s*(?:\.{2,}+|\u2026)\s*\}|\.{2,}+|[\u2026\u22ef])++"
)
_RECURRING = re.compile(rf"(?P<digits>\.\d{{1,40}})\s*{_ELLIPSIS.pattern}\s*$")  # of 0.333...
_EXPONENT = re.compile(r"(\d)[eE]([+-]?\d+)(?![\d.a-zA-Z])")  # of 1.6e-19, which readers of LaTeX take for 1.6 e - 19
_NUMBERS = re.compile(r"[-+\d.,eE\s(){}\[\]\\]*")  # of a ground truth that is nothing but numbers
_REPEATING = re.compile(
    r"(?<![\d.,}])(\d{1,30})?\.(\d{0,30})\\(?:overline|bar|dot)\s*(?:\{(\d{1,30})\}|(\d))(?!\s*[\d.])"
)
_ITEM_END = re.compile(r"[,;+*]|\\(?:cdot|times|cup|cap|[lr]angle)(?![a-zA-Z])|(?<=[^\s,;+*({\[=])-")
# Percent in any spelling, as the one that Math-Verify reads. Space without it is found as well, or else each of its
# characters would be looked at from all those before it.
_SPACE = r"(?:\\[,;:! ]|[\s~])"
_PERCENT = re.compile(
    rf"{_SPACE}*+"
    r"(?:\\?[%％﹪]|\\(?:text|mathrm|mbox)\s*\{\s*(?:\\?%|(?i:per ?cent|pct))\.?\s*\}|\b(?i:per ?cent|pct)\b)"
    rf"|(?P<space>{_SPACE}++)"
)


@dataclass(frozen=True)
class MathVerdict:
    """The verdict on an ``answer``, as it stands in the reply (``None`` where it has none).

    ``"restated"`` is equal, but not evaluated: see :mod:`~textenvs.scoring.restated`.
    """

    reason: Reason
    answer: str | None = None

    @property
    def correct(self) -> bool:
        return self.reason == "equal"


def judge_math(reply: str, ground_truth: str, *, timeout_s: float = 5.0, problem: str | None = None) -> MathVerdict:
    r"""Compare the answer in the last ``\boxed{...}`` of ``reply`` with ``ground_truth``.

    * In a relation, as in ``x = 8/2 = 4``, every side must be a name (see
      :func:`~textenvs.scoring.relations.is_name`) or equal the last one, unless the ground truth is a relation, too:
      ``x = 4`` is 4; ``5 = 4`` and ``2x = 4`` are not.
    * Inequalities that bound a name (``2 < x < 5``) and intervals (``(2, 5)``) are the same, either way round.
    * Percent is part of a value: ``4\%`` is ``0.04`` and not ``4``. Where the ground truth has it, an answer may leave
      it out. Other units are left out on both sides (:func:`~textenvs.scoring.units.split_unit`).
    * Decimals are compared relative to their size: six digits for small numbers, six decimals for numbers about 1.
    * A list that is cut short (``1, 3, \ldots, 2n-1``) equals one with the same parts in the same places.

    Args:
        reply: The assistant's reply.
        ground_truth: The right answer, LaTeX or plain; a ValueError where it cannot be read.
        timeout_s: Seconds after which the comparison is stopped.
        problem: What the policy was shown. With it, an answer that only states the problem again, or that leaves an
            operation between numbers to be done (``\frac{6x}{3}``), is not right, unless the ground truth has the same
            form.
    """
    require_math_verify()
    deadline = time.monotonic() + timeout_s
    answer = boxed(reply)
    if not answer:
        return MathVerdict("no_answer")
    if answer == ground_truth.strip():
        return MathVerdict("equal", answer)  # the same text needs no reading
    if _WORDS.fullmatch(plain(ground_truth)) and plain(answer) == plain(ground_truth):
        return MathVerdict("equal", answer)
    if len(answer) > MAX_CHARS:
        return MathVerdict("unreadable", answer)
    stated, truth = _in_one_notation(answer, ground_truth)
    value, directions = split_unit(_in_one_list(stated))
    gold, allowed = split_unit(_in_one_list(truth))
    if _NUMBERS.fullmatch(gold):
        gold = _EXPONENT.sub(r"\1\\times 10^{\2}", gold)
    gold, value = (_REPEATING.sub(_as_fraction, text) for text in (gold, value))
    if not re.search(r"(?<![a-zA-Z\\])[eE](?![a-zA-Z])", gold):
        value = _EXPONENT.sub(r"\1\\times 10^{\2}", value)
    result = _compared(gold, value, deadline)
    if result == "bad gold":
        raise ValueError(
            f"the ground truth {quoted(ground_truth)} cannot be read as mathematics, so nothing can be compared"
        )
    if result == "equal" and not directions <= allowed:
        result = "different"
    if result == "equal" and problem is not None:
        if restates(value, gold, problem):
            result = "restated"
        elif not is_rational(gold):
            parts = expressions_in(problem) if has_variables(gold) else []
            verdict = _ask(gold, value, deadline, parts, asks_to_simplify(problem))
            result = verdict if verdict in ("restated", "timeout") else result
    return MathVerdict(result, answer)  # type: ignore[arg-type]


def _as_fraction(number: re.Match[str]) -> str:
    r"""``0.1\overline{6}``, which readers of LaTeX take for a product or refuse, as ``\frac{15}{90}``."""
    whole, fixed, period = number[1] or "", number[2], number[3] or number[4]
    top = int(whole + fixed + period) - int(f"0{whole}{fixed}")
    return rf"\frac{{{top}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


def _in_one_notation(answer: str, ground_truth: str) -> tuple[str, str]:
    """Return both texts with inequalities as intervals; unchanged where they bound different names."""
    bounds, gold_bounds = (interval_of(split_unit(text)[0]) for text in (answer, ground_truth))
    if bounds is not None and gold_bounds is not None and bounds[0] != gold_bounds[0]:
        return answer, ground_truth
    return answer if bounds is None else bounds[1], ground_truth if gold_bounds is None else gold_bounds[1]


def _in_one_list(text: str) -> str:
    r"""Return a text without the name of its value, and with commas for "and" and "or"."""
    text = text.strip()
    member = _MEMBER.match(text)
    if member is not None and is_name(member[1]):
        text = text[member.end() :].strip()
    return _CONNECTED.sub(", ", text)


def _compared(gold: str, answer: str, deadline: float) -> str:
    gold_parts, answer_parts = (_ELLIPSIS.split(_RECURRING.sub(r"\g<digits>", text)) for text in (gold, answer))
    if len(gold_parts) > 1 or len(answer_parts) > 1:
        return _compared_whole(gold_parts, answer_parts, deadline)
    result = _ask(gold, answer, deadline)
    if result == "equal" and claims_of(answer).relations > claims_of(gold).relations:
        result = _consistent(answer, gold, deadline)
    return result


def _compared_whole(gold: list[str], answer: list[str], deadline: float) -> str:
    """Compare lists, sums or products that are cut short: readers of LaTeX take one item of them for the whole."""
    if len(gold) != len(answer):
        return "different"
    pairs: list[tuple[str, str]] = []
    for gold_text, answer_text in zip(gold, answer, strict=True):
        signs = [_ITEM_END.findall(text) for text in (gold_text, answer_text)]
        items = [[_bare(item) for item in _ITEM_END.split(text)] for text in (gold_text, answer_text)]
        if signs[0] != signs[1]:
            return "different"
        pairs += zip(*items, strict=True)
    if len(pairs) > _ITEMS:
        return "different"
    for gold_item, answer_item in pairs:
        if gold_item == answer_item:
            continue
        if not gold_item or not answer_item:
            return "different"
        if (result := _ask(gold_item, answer_item, deadline)) != "equal":
            return "timeout" if result == "timeout" else "different"
    return "equal"


def _bare(item: str) -> str:
    """Return an item without the brackets of its list, whose other end is elsewhere."""
    item = re.sub(r"\\(?:left|right)(?![a-zA-Z])", "", item).strip().strip("$ ")
    for opening, closing in ("{}", "()", "[]"):
        excess = item.count(opening) - item.count(closing)
        if excess > 0 and (start := re.match(rf"(?:\s*\\?{re.escape(opening)}){{1,{min(excess, 8)}}}", item)):
            item = item[start.end() :].strip()
        for _ in range(min(-excess, 8)):
            item = item.removesuffix(closing).rstrip("\\ ") if item.endswith(closing) else item
    return item


def _consistent(answer: str, gold: str, deadline: float) -> str:
    claims = claims_of(answer)
    pairs = [(chain[-1], side) for chain in claims.chains for side in chain[:-1] if not is_name(side)]
    if claims.hidden or len(pairs) > _SIDES:
        return "different"
    if len(claims.chains) == 1 or not claims.wrapped:
        # The last sides alone: they may be percentages.
        pairs.append((gold, ", ".join(chain[-1] for chain in claims.chains)))
    for gold_item, answer_item in pairs:
        if (result := _ask(gold_item, answer_item, deadline)) != "equal":
            return "timeout" if result == "timeout" else "different"
    return "equal"


async def judge_math_async(
    reply: str, ground_truth: str, *, timeout_s: float = 5.0, problem: str | None = None
) -> MathVerdict:
    return await _pool.in_thread(lambda: judge_math(reply, ground_truth, timeout_s=timeout_s, problem=problem))


def require_math_verify() -> None:
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("comparing mathematical answers needs Math-Verify: pip install 'textenvs[math]'")


# ------------------------------------------------------------------ the processes


def _start() -> Worker:
    # -P: the folder of that program is not a place to import from; it has a module called `math`.
    command = [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    return Worker(process, max_bytes=1 << 20)


_pool = Pool(_start, CORES, "textenvs-math")


def _ask(gold: str, target: str, deadline: float, problem: Sequence[str] | None = None, simplest: bool = False) -> str:
    if (remaining := deadline - time.monotonic()) <= 0:
        return "timeout"
    texts = (_PERCENT.sub(lambda percent: percent["space"] or r"\%", text) for text in (gold, target, *(problem or ())))
    boxes = [f"\\boxed{{{text}}}" for text in texts]
    try:
        # The process also ends itself, in case this one is killed.
        return str(
            _pool.ask([*boxes[:2], remaining + 1.0, None if problem is None else boxes[2:], simplest], remaining)
        )
    except TimeoutError:
        return "timeout"
    except WorkerDied:  # of this question: it took all memory, or crashed
        return "unreadable"
