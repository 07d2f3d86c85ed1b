r"""Answers that state the problem again: ``\binom{8}{4}`` where 70 was asked for is equal to it, and no answer.

Equality of mathematics cannot tell them apart, so this is a matter of form, compared with the reference's:

* an answer to a problem whose reference is rational (or several rational numbers) is written as one: an integer, a
  decimal, ``3 \times 10^8``, and where the reference is no integer a fraction of two integers or a mixed number;
* where the reference is another number, it computes nothing that the reference does not (no powers, roots, logarithms,
  sums, products, fractions in fractions, ...); multiples of roots and of pi are numbers;
* where the reference is a multiple of a square root that the problem shows as another one (``5\sqrt{2}`` for
  ``\sqrt{50}``), the answer has no other root than the reference;
* an answer is not made of the same tokens as some part of the problem, in whatever order, with brackets and neutral
  terms or without, unless the reference is, too;
* it has no variables that the reference has not: what it says of them cancels;
* it leaves no operation between numbers to be done that the reference does not: ``\frac{6x}{3}`` is not ``2x``. A
  fraction that is not in lowest terms is one only where the problem asks for the simplest form.

Where the reference has variables and the problem asks for an expression to be written in another form, SymPy compares
forms besides (:func:`~textenvs.scoring.math_worker.is_restated`): ``+x-x`` and ``^{1+1}`` are no work.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from itertools import islice

from .relations import claims_of

_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|quad|qquad|[bB]igg?[lr]?)(?![a-zA-Z])|\\[,;:! ]|[~&]"
    r"|\\(?:text|mathrm|textbf|mbox)\s*\{[^{}]*\}(?:\s*\^\s*(?:\d|\{\s*\d\s*\}))?|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))"
)
_SPELLINGS = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(?:(\d)|\{(\d+)\})\s*(?:(\d)|\{(\d+)\})"), r"\\frac{\1\2}{\3\4}"),
    (re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\(?:cdot|cdotp|times|ast|bullet)(?![a-zA-Z])|[×·⋅∙∗•✕⨯＊]"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])|[÷∕]"), "/"),
    (re.compile(r"[−–—‐﹣－]"), "-"),
    (re.compile(r"[＋⁺﹢]"), "+"),
    (re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))"), ""),
    (re.compile(r"√|(?<![a-zA-Z\\])sqrt(?![a-zA-Z])"), r"\\sqrt"),
    (re.compile(r"π|(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi"),
    (re.compile(r"(?<![a-zA-Z\\])(binom|comb|choose|log|ln|sin|cos|tan|gcd|lcm|exp)(?=\s*[(_\d])"), r"\\\1"),
)
# A blank behind a command stays before a letter: \\cos x is no command \\cosx.
_BLANKS = re.compile(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])|\s+")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|[^\s\w$\\]|_")

# What a number does not compute, by the kind that a reference may have as well.
_CALLS = {
    "counting": re.compile(r"\\(?:binom|choose|comb)|\d\s*!|[)}]\s*!|\b\d*C_?\{?\d|\bC\s*\("),
    "function": re.compile(
        r"\\(?:log|ln|lg|sin|cos|tan|cot|sec|csc|arc\w+|sum|prod|int|lim|max|min|gcd|lcm|[bp]?mod|[lr]floor|[lr]ceil"
        r"|det|\w*sinh|cosh|tanh|operatorname|begin|overline|lvert|vert)(?![a-zA-Z])|\|"
    ),
}
_VALUE = r"(?:\d+(?:\.\d+)?|\.\d+)"
_ARITHMETIC = {
    "power": re.compile(r"\^"),
    "root": re.compile(r"\\sqrt"),
    # A sign in front computes nothing: \pm\sqrt{2} is two numbers.
    "sum": re.compile(r"(?<=[\w)}\]!])(?:[+-]|\\pm|±)|\d\{[+-]|\{[+-]\}"),
    "nested": re.compile(r"\\frac\{(?:[^{}]*\}\{)?[^{}]*(?:\\frac|/)"),
    "product": re.compile(
        r"\d\*\.?\d|[)\]]\*?[(\[]|\d\*?\(|[)!]\*?\.?\d"  # the last digit of a value and the first of another suffice
        r"|\\frac\{[^{}]*\}\{[^{}]*\}\*|\*\\frac\{\d+\}\{\d+\}|[\d)}]/\("
    ),
}
# A rational number, with what may stand around it: brackets, a currency. Its groups are those of a fraction.
_RATIONAL = re.compile(
    r"[(\[{]{0,3}(?:\\?[$€£])?(?:[+-]|\\pm|±)?(?:\\?[$€£])?[({]{0,3}"
    r"(?:(?P<whole>\d{1,99})?\\frac\{(?P<over>[+-]?\d{1,99})\}\{(?P<under>[+-]?\d{1,99})\}"
    r"|\(?(?P<top>\d+)\)?/\(?(?P<bottom>\d+)\)?"
    rf"|{_VALUE}(?:(?:\*10\^\{{?|[eE])[+-]?\d+\}}?)?|10\^\{{?[+-]?\d+\}}?)"
    r"(?:\.0*)?[)\]}]{0,3}(?:\\?[$€£%°])?[)\]}.]{0,3}"
)
_WRITTEN = ("integer", "decimal", "ratio")
_SIMPLIFY = re.compile(
    r"\b(?:simplif(?:y|ied|ication)|simplest|lowest terms|reduced? (?:the |a )?(?:fraction|form)|irreducible)\b", re.I
)
# A quotient of two integers that are written out.
_QUOTIENT = re.compile(
    r"\\frac\{-?(?P<over>\d{1,99})\}\{-?(?P<under>\d{1,99})\}"
    r"|(?<![\d.a-zA-Z)}])(?P<top>\d{1,99})/\(?(?P<bottom>\d{1,99})(?![\d.])"
)
_SEVERAL = re.compile(r"\\[{}]|[,;]|(?<=[\d}])(?:and|or)(?=[\d\\+-])")
_SCIENTIFIC = re.compile(r"\*10\^(?:\{[+-]?\d+\}|[+-]?\d+)|(?<![\d.])10\^(?:\{[+-]?\d+\}|[+-]?\d+)$")
# Tokens that say nothing about what an expression is made of, and what adds or multiplies nothing.
_NEUTRAL = frozenset("()[]{}*.,;:?")
_PADDING = re.compile(r"^(?:[+0]\+|\+|1\*|1(?=[(\\a-zA-Z]))|(?:[+-]0|\*1|/1|\^1)$")
_MOST_TOKENS = 2_000


def restates(answer: str, ground_truth: str, problem: str) -> bool:
    """Return whether an equal answer only states the problem again, which is all that the policy was shown."""
    form, gold = _form(answer), _form(ground_truth)
    if asks_to_simplify(problem) and _has_common_factor(form) and not _has_common_factor(gold):
        return True
    if rational := _rational(gold):
        written = _rational(form)
        if not written or (rational == "integer" and written == "ratio"):
            return True
        return _is_part(form, gold, problem)
    if _divides(form) and not _divides(gold):
        return True
    lacking = _computed(form) - _computed(gold)
    if _variables(form) - _variables(ground_truth) and not re.search(r"(?<![a-zA-Z\\])[a-zA-Z]{3}", gold):
        return True  # what it says of them cancels
    if _is_number(gold):
        if _roots(form) - _roots(gold) and _simplifies_root(gold, problem):
            return True
        if lacking - ({"power", "root"} if _computed(gold) & {"power", "root"} else set()):
            return True
    elif lacking & set(_CALLS) and not _computed(gold) & set(_CALLS):
        return _is_part(form, gold, problem) or bool(re.search(r"\\(?:sum|prod|int|lim)(?![a-zA-Z])", form))
    return _is_part(form, gold, problem)


# The expressions of a problem: what stands between dollars or brackets of LaTeX; in plain text, runs of numbers, single
# letters and signs.
_DELIMITED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_RUN = re.compile(r"(?:(?<![a-zA-Z\\])(?:\d+(?:\.\d+)?[a-zA-Z]{0,3}|[a-zA-Z])(?![a-zA-Z])|[-+*/^()\s])+")
_BETWEEN_SIDES = re.compile(
    r"[=<>,;&?]|\\(?:[lg]eq?|[lg]t|ne|neq|approx|equiv|to|mapsto|quad|qquad|text\{[^{}]*\})(?![a-zA-Z])|\\\\"
)
_MOST_EXPRESSIONS, _LONGEST_EXPRESSION = 24, 400


def expressions_in(problem: str) -> list[str]:
    """Return the expressions of a problem that compute something, without relation signs."""
    delimited = [next(filter(None, match)) for match in _DELIMITED.findall(problem[:20_000])]
    runs = _RUN.findall(_DELIMITED.sub("|", problem[:20_000])) if "\\" not in problem or not delimited else []
    sides = (side.strip(" .\t\n") for text in (*delimited, *runs) for side in (text, *_BETWEEN_SIDES.split(text)))
    computing = (
        side for side in sides if 2 < len(side) <= _LONGEST_EXPRESSION and re.search(r"[-+*/^(\\]|\d[a-zA-Z]", side)
    )
    return list(islice(dict.fromkeys(computing), _MOST_EXPRESSIONS))


def is_rational(ground_truth: str) -> bool:
    """Return whether a reference is one or several rational numbers."""
    return _rational(_form(ground_truth)) is not None


def asks_to_simplify(problem: str) -> bool:
    """Return whether a problem asks for the simplest form of its answer."""
    return _SIMPLIFY.search(problem) is not None


def has_variables(ground_truth: str) -> bool:
    """Return whether a reference is an expression with variables."""
    return not _is_number(_form(ground_truth))


def _form(text: str) -> str:
    """Return the last sides of a text's relations, in one spelling."""
    chains = claims_of(text).chains
    return ",".join(_spelled(chain[-1]) for chain in chains)


def _spelled(text: str) -> str:
    text = _DROPPED.sub("", text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return _BLANKS.sub(lambda match: f"{match[1]} " if match[1] else "", text)


def _rational(form: str) -> str | None:
    """Return the last of ``_WRITTEN`` that occurs in a form of rational numbers; ``None`` for other forms."""
    kinds = set()
    for part in filter(None, _SEVERAL.split(form)):
        if not (number := _RATIONAL.fullmatch(part)):
            return None
        if number["whole"] and not abs(int(number["over"])) < abs(int(number["under"])):
            return None
        point = "." in part.rstrip(".") or "%" in part
        kinds.add("ratio" if number["over"] or number["top"] else "decimal" if point else "integer")
    return max(kinds, key=_WRITTEN.index, default=None)


def _quotients(form: str) -> list[tuple[int, int]]:
    numbers = ((match["over"] or match["top"], match["under"] or match["bottom"]) for match in _QUOTIENT.finditer(form))
    return [(int(over), int(under)) for over, under in numbers]


def _divides(form: str) -> bool:
    """Return whether a quotient of two integers in it is an integer."""
    return any(under and over % under == 0 for over, under in _quotients(form))


def _has_common_factor(form: str) -> bool:
    """Return whether a fraction in it is not in lowest terms."""
    return any(math.gcd(over, under) > 1 for over, under in _quotients(form))


def _is_number(form: str) -> bool:
    """Return whether a form has no variables: no letters but those of commands, ``i`` and ``e``."""
    return not re.search(r"(?!(?:i|e)(?![a-zA-Z]))[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", form))


def _variables(form: str) -> set[str]:
    return set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", " ", form))) - {"i", "e"}


_SQUARE_ROOT = re.compile(r"(?P<times>\d{0,12})\*?\\sqrt(?!\[)(?:\{(?P<inside>\d{1,12}(?:\.\d+)?)\}|(?P<digit>\d))")
_HALF = re.compile(r"(?P<base>\d{1,12}(?:\.\d+)?)\^(?:\{(?:1/2|\\frac\{1\}\{2\}|0?\.5)\}|\(?(?:1/2|0?\.5)\)?)")


def _roots(form: str) -> set[str]:
    """Return the numbers under square roots, as they are written."""
    return {root["inside"] or root["digit"] for root in _SQUARE_ROOT.finditer(_HALF.sub(r"\\sqrt{\g<base>}", form))}


def _squares(form: str) -> set[float]:
    roots = _SQUARE_ROOT.finditer(form)
    return {float(root["times"] or 1) ** 2 * float(root["inside"] or root["digit"]) for root in roots}


def _simplifies_root(gold: str, problem: str) -> bool:
    """Return whether the reference is a multiple of a root that the problem shows as another one."""
    whole = _SQUARE_ROOT.fullmatch(gold)
    return whole is not None and bool(_squares(gold) & _squares(_spelled(problem)))


def _computed(form: str) -> set[str]:
    kinds = {kind for kind, pattern in _CALLS.items() if pattern.search(form)}
    plain = _SCIENTIFIC.sub("", form)
    return kinds | {kind for kind, pattern in _ARITHMETIC.items() if pattern.search(plain)}


def _tokens(form: str) -> list[str]:
    tokens = _TOKEN.findall(form.replace(r"\frac", "/"))
    return [token for token in tokens[:_MOST_TOKENS] if token not in _NEUTRAL]


def _is_part(form: str, gold: str, problem: str) -> bool:
    """Return whether the answer's tokens are those of some part of the problem, and not those of the reference."""
    tokens = _tokens(_PADDING.sub("", form))
    counts, size = Counter(tokens), len(tokens)
    if not tokens or counts == Counter(_tokens(gold)):
        return False
    if size == 1:  # a number: only one that was to be written in another way
        return "." in tokens[0] and "/" in _tokens(gold) and tokens[0] in _tokens(_spelled(problem))
    window: Counter[str] = Counter()
    inside: deque[str] = deque()
    for token in islice(_tokens(_spelled(problem)), _MOST_TOKENS):
        inside.append(token)
        window[token] += 1
        if len(inside) > size:
            window[inside.popleft()] -= 1
        if len(inside) == size and window == counts:
            return True
    return False
