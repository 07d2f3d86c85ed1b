r"""Answers written as relations: what ``x = 4`` and ``5 = 4`` claim.

Readers of LaTeX take the last side of ``\boxed{5=4}`` for the answer, and read ``5 \to 4`` as ``4``. Here an answer is
taken apart before it is compared, so that one that contradicts itself is not right by its last side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Relations and arrows that claim that both sides are the same. Inequalities and \approx are left to Math-Verify, which
# does not take one side of them for the whole.
_RELATION = re.compile(
    r"=|[≡≅≃∼→⇒⟹⇔]"
    r"|\\(?:equiv|cong|simeq|sim|doteq|to|implies|iff|(?:[Ll]ong)?(?:left|Left)?(?:right|Right)arrow)(?![a-zA-Z])"
)
_NOT_EQUAL = re.compile(r"\\not\s*=|\\neq?(?![a-zA-Z])|[<>!]=|\\[lg]eq?(?![a-zA-Z])|≠|≤|≥")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])")
_SPACE = re.compile(r"\\(?:displaystyle|quad|qquad)(?![a-zA-Z])|\\[,;:! ]|[\s$~&]")
_OPEN, _CLOSE = {"{", "(", "[", r"\{"}, {"}", ")", "]", r"\}"}
_WRAPPER = re.compile(r"(?:\\(?:boxed|fbox|text|mathrm|mathbf|bm|boldsymbol))?(\{|\\\{|\(|\[)")

_WORDS = r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathcal|mbox|operatorname|overline|vec|hat|bar|tilde|widehat)"
_GROUP = rf"{_WORDS}\{{(?!\d)[^{{}}]*\}}"
# No constants, and nothing that computes: \sqrt{x} = 4 says that x is 16.
_COMMAND = r"\\(?!(?:pi|infty|frac|dfrac|tfrac|sqrt|cdot|times|div|pm|mp)(?![a-zA-Z]))[a-zA-Z]+(?![a-zA-Z{])"
_INVERSE = r"[^\W\d_]\^(?:\{-1\}|-1)(?=\([^()]*[^\W\d_][^()]*\))"  # f^{-1}(x); x^{-1} = 4 says that x is 1/4
_ATOM = rf"(?:{_GROUP}|{_COMMAND}|{_INVERSE}|[^\W\d_]|\[[A-Z]+\])'*+(?:_(?:\{{[^{{}}]*\}}|[^\W_]))?'*+(?:\([^()]*\))?"
_NAME = re.compile(rf"(?:{_ATOM})+(?:[+*/-](?:{_ATOM})+)*")
_LEVELS = 8  # of brackets around an answer that are taken off


@dataclass(frozen=True)
class Claims:
    """An answer taken apart."""

    #: For each item of a list that is separated by commas, the sides of its relations; one side where there is none.
    chains: tuple[tuple[str, ...], ...]
    #: A relation stands inside something that it is no part of, as in ``\\frac{5=4}{1}``.
    hidden: bool
    #: The whole answer stood in brackets.
    wrapped: bool

    @property
    def relations(self) -> int:
        return sum(len(chain) - 1 for chain in self.chains) + self.hidden


def claims_of(answer: str) -> Claims:
    """Return the claims of an answer in LaTeX or plain text; takes time linear in it."""
    text, wrapped = _SIZE.sub("", answer).strip().strip("$").strip(), False
    for _ in range(_LEVELS):
        if (inner := _unwrapped(text)) is None:
            break
        text, wrapped = inner, True
    chains: list[tuple[str, ...]] = []
    sides: list[str] = []
    start, skip, hidden, before = 0, 0, False, ""
    allowed: list[bool] = []  # for each open bracket: may a relation stand in it?
    for token in _TOKEN.finditer(text):
        at, word = token.start(), token[0]
        if at < skip:
            continue
        if word in _OPEN:
            # Of sums and limits, of texts, and of functions: P(X = 2).
            allowed.append(before in ("_", "^") or (word == "(" and (before.isalpha() or before[:1] == "\\")))
        elif word in _CLOSE and allowed:
            allowed.pop()
        elif (unequal := _NOT_EQUAL.match(text, at)) is not None:
            skip = unequal.end()
        elif (relation := _RELATION.match(text, at)) is not None:
            skip = relation.end()
            if not allowed:
                sides.append(text[start:at])
                start = skip
            elif not all(allowed):
                hidden = True
        elif word in ",;" and not allowed and not text[at - 1 : at + 2].replace(word, "0").isdigit():
            chains.append((*sides, text[start:at]))
            sides, start = [], at + 1
        if not word.isspace():
            before = word
    chains.append((*sides, text[start:]))
    stripped = tuple(tuple(side.strip() for side in chain if side.strip()) for chain in chains)
    return Claims(tuple(chain for chain in stripped if chain), hidden, wrapped)


def is_name(side: str) -> bool:
    r"""Return whether a side only names the unknown: ``x``, ``x_1``, ``f(2)``, ``\angle A``, ``a+b``, ``\text{area}``.

    A side with a number, a power or a root is not a name but says something about one.
    """
    if len(side) > 200:
        return False
    names = _SPACE.sub("", _SIZE.sub("", side))
    if names[:1] == "(" and names[-1:] == ")":  # (x, y)
        return all(_NAME.fullmatch(name) for name in names[1:-1].split(","))
    return _NAME.fullmatch(names) is not None


_LESS, _AT_MOST = ("<", r"\lt"), ("<=", r"\le", r"\leq", r"\leqslant", "≤", "⩽")
_MORE, _AT_LEAST = (">", r"\gt"), (">=", r"\ge", r"\geq", r"\geqslant", "≥", "⩾")
_UNEQUAL = ("!=", r"\ne", r"\neq", "≠")
_INEQUALITY = re.compile(r"<=|>=|!=|[<>≤≥≠⩽⩾]|\\(?:[lg]t|[lg]e(?:q(?:slant)?)?|neq?)(?![a-zA-Z])")
_BUILDER = re.compile(
    r"\\?\{\s*(?P<name>[^{}|:<>=\s]{1,20}?)\s*(?:(?:\\in(?![a-zA-Z])|∈)\s*(?:\\mathbb\s*\{?\s*R\s*\}?|ℝ)\s*)?"
    r"(?:\\mid(?![a-zA-Z])|\||:)(?P<body>.*?)\\?\}",
    re.DOTALL,
)
_OR = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*,?\s*or\s*\}|(?<![a-zA-Z\\{])or(?![a-zA-Z}])|\\(?:lor|vee)(?![a-zA-Z])|[∨]"
)
_AND = re.compile(
    r"\\(?:text|mathrm|mbox)\s*\{\s*,?\s*and\s*\}|(?<![a-zA-Z\\{])and(?![a-zA-Z}])|\\(?:land|wedge)(?![a-zA-Z])|[∧]"
)
_LONGEST_INEQUALITY = 400


def interval_of(text: str) -> tuple[str, str] | None:
    r"""Return the name that inequalities bound, and its intervals: of ``2 < x \le 5``, ``x`` and ``(2,5]``.

    ``None`` for other texts.

    The name stands alone: ``2x < 4`` is no interval, for it is not solved. Several are joined by "or" and "and"; a
    comma means the one of the two that leaves neither nothing nor everything.
    """
    text = _SIZE.sub("", text[: _LONGEST_INEQUALITY + 1]).strip().strip("$").strip()
    if len(text) > _LONGEST_INEQUALITY or not _INEQUALITY.search(text):
        return None
    if (builder := _BUILDER.fullmatch(text)) is not None and is_name(builder["name"]):
        text = builder["body"]
    names: set[str] = set()
    unions: list[str] = []
    for alternative in _OR.split(text):
        bounds = [_bounds(part, names) for clause in _AND.split(alternative) for part in clause.split(",")]
        if not bounds or any(bound is None for bound in bounds):
            return None
        if (joined := _joined([bound for bound in bounds if bound is not None], commas="," in alternative)) is None:
            return None
        unions.append(joined)
    return (names.pop(), r"\cup".join(unions)) if len(names) == 1 else None


def _bounds(clause: str, names: set[str]) -> tuple[str, str] | None:
    """Return the lower and the upper bound of a clause with their brackets, ``""`` where it has none; adds its name."""
    sides = [side.strip() for side in _INEQUALITY.split(clause)]
    signs = _INEQUALITY.findall(clause)
    if len(sides) not in (2, 3) or not all(sides):
        return None
    place = 1 if len(sides) == 3 or not is_name(sides[0]) else 0
    if not is_name(sides[place]) or any(_RELATION.search(side) for side in sides):
        return None
    names.add(_SPACE.sub("", sides[place]))
    if signs[0] in _UNEQUAL:
        return None if len(signs) > 1 else (f"!{sides[1 - place]}", "")
    bounds = {"lower": "", "upper": ""}
    for number, sign in enumerate(signs):
        upper = (sign in (*_LESS, *_AT_MOST)) == (number == place)
        open_ = sign in (*_LESS, *_MORE)
        side = sides[number + (number >= place)]
        if bounds["upper" if upper else "lower"]:
            return None
        bounds["upper" if upper else "lower"] = (
            f"{side}{')' if open_ else ']'}" if upper else f"{'(' if open_ else '['}{side}"
        )
    return bounds["lower"], bounds["upper"]


def _joined(bounds: list[tuple[str, str]], *, commas: bool) -> str | None:
    """Return the interval within all bounds, or the union of two listed ones that exclude each other."""
    if len(bounds) == 1 and bounds[0][0].startswith("!"):
        place = bounds[0][0][1:]
        return rf"(-\infty,{place})\cup({place},\infty)"
    lower, upper = [low for low, _ in bounds if low], [high for _, high in bounds if high]
    if len(lower) > 1 or len(upper) > 1 or lower[:1] and lower[0].startswith("!"):
        return None
    low, high = (lower or [r"(-\infty"])[0], (upper or [r"\infty)"])[0]
    if commas and lower and upper:
        try:
            apart = float(low[1:]) >= float(high[:-1])
        except ValueError:
            return None
        return rf"(-\infty,{high}\cup{low},\infty)" if apart else f"{low},{high}"
    return f"{low},{high}"


def _unwrapped(text: str) -> str | None:
    """Return the inside of brackets around the whole text; ``None`` where there are none."""
    opening = _WRAPPER.match(text)
    if opening is None:
        return None
    depth = 0
    for token in _TOKEN.finditer(text, opening.start(1)):
        depth += (token[0] in _OPEN) - (token[0] in _CLOSE)
        if depth == 0:
            return text[opening.end() : token.start()].strip() if token.end() == len(text) else None
    return None
