r"""Units, currencies and words behind a value: ``45 miles per hour``, ``\$45`` and ``45\text{ apples}`` are 45.

Readers of LaTeX know some units by heart, take others for products of letters, and read ``2m`` as 2. Here a unit is
told by its form, the same way in an answer and in a reference, and only the value is compared.
"""

from __future__ import annotations

import re

_LONGEST = 2_000  # longer texts are left as they are
_COMMAND = (
    r"\\(?:text|textrm|textit|textbf|textsf|texttt|mathrm|mathsf|mathit|mathbf|mbox|operatorname|unit)(?![a-zA-Z])"
)
_SPACE = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z]))"
_POWER = r"(?:\s*\^\s*(?:-?\d|\{\s*-?\d\s*\})|[\u00b9\u00b2\u00b3])?"
_LETTERS = r"[a-zA-Z\u00b5\u03bc\u03a9\u2126\u00c5]"
# Units that may stand behind an expression with variables: other words may be part of what it says ("n even").
_AFTER_VARIABLES = """
    unit units square sq cubic m s g h foot feet inch inches meter meters metre metres centimeter centimeters centimetre
    centimetres millimeter millimeters kilometer kilometers kilometre kilometres mile miles yard yards second seconds
    minute minutes hour hours day days week weeks month months year years degree degrees dollar dollars cent cents
    gallon gallons liter liters litre litres gram grams kilogram kilograms pound pounds per
"""
#: A word, or a group of words in a command.
_WORD = re.compile(
    rf"(?P<group>{_COMMAND}\s*\{{(?:[^{{}}\d%\\=<>+|!?]|\^\d|\\[,;:! ]|\\cdot(?![a-zA-Z]))*\}}{_POWER}\s*)"
    rf"|(?P<word>{_LETTERS}+(?:['\u2019-]{_LETTERS}+)*\.?){_POWER}"
)
_BETWEEN = re.compile(rf"(?:{_SPACE}|[/()\u00b7\u22c5*]|\\(?:cdot|times|left|right)(?![a-zA-Z]))+")
_GROUP = rf"\{{\s*({_COMMAND}\s*\{{[^{{}}]*\}}{_POWER})\s*\}}"
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}")
_WHOLE = re.compile(rf"{_COMMAND}\s*\{{([^{{}}]*\d[^{{}}]*)\}}")  # \text{45 dollars}
# What a value ends with. A command before a unit is one of these, never the unit's beginning.
_VALUE_END = re.compile(r"[\d)}\]!%\u00b0]$|\\(?:pi|infty|circ|degree)\s*$|\u03c0$")
_CURRENCY = re.compile(
    r"^(?:\\?[$\u20ac\u00a3\u00a5\u20b9]|(?:USD|EUR|GBP|INR|Rs\.?|US\\?\$)(?=[\s\d~]))\s*(?=[\d.\\(-])"
)
_CURRENCY_BEHIND = re.compile(r"(?<=\d)(?:\s|~|\\[,;:! ]){0,4}(?:\\?[$\u20ac\u00a3\u00a5\u20b9])$")
_LETTERS_LEFT = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")

#: Words that are part of a value, or of a claim about it.
_OF_VALUES = """
    i e x y z n k pi tau phi inf infty infinity oo sqrt root cbrt sin cos tan cot sec csc log ln exp lim max min mod
    gcd lcm abs plus minus negative times over divided squared cubed factorial choose percent pct zero one two three
    four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands million millions
    billion billions trillion trillions dozen dozens score half halves third thirds fourth fourths quarter quarters
    fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths
    thousandth thousandths double twice thrice triple pair pairs and or not no none never nor is are isn't if then
    when else but except to than from most least more less fewer greater wrong false maybe base bn mil
"""
_VALUES = frozenset(_OF_VALUES.split())
#: Words that may be left out of an answer, but must not be added to it: they turn a value round.
_TURNING = """
    am pm noon midnight bc bce ad ce north south east west northeast northwest southeast southwest left right up
    down upward upwards downward downwards above below before after ago early late clockwise counterclockwise
    anticlockwise increase decrease gain loss profit debt deficit surplus
"""
_DIRECTIONS = frozenset(_TURNING.split())
# Units of one letter, and those of several that may stand at a number without a space.
_ONE_LETTER = frozenset("mgshLlNJWVAKCFTHS\u03a9\u2126\u00b5\u03bc")
_SHORT = """
    mm cm dm km nm mg kg lb lbs oz ft yd mi ml mL cl dl kL ms min hr hrs sec secs mph kmh kph kmph Hz kHz MHz GHz kJ
    kW kWh MW kPa Pa kN eV keV MeV GeV cc gal qt pt rad deg
"""
_ATTACHED = frozenset(_SHORT.split())


_KNOWN = _ATTACHED | frozenset(_AFTER_VARIABLES.split())


def split_unit(text: str) -> tuple[str, frozenset[str]]:
    r"""Return a text's value, and the words of its unit that turn a value round; the whole text where it has no unit.

    A unit is made of words of two letters and more, of units of one letter (``m``, ``s``) behind a space, and of what
    stands in ``\text{...}``, with powers, slashes and dots between. Words that are part of a value (``45 million``,
    ``5 squared``) are no unit, and neither is what stands behind letters that may be variables.
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return text, frozenset()
    value = _CURRENCY.sub("", whole[1].strip() if (whole := _WHOLE.fullmatch(text)) else text)
    value = _CURRENCY_BEHIND.sub("", _FRACTION.sub(r"\1/\2", value))
    start = _start_of_unit(value)
    if start is None:
        return value, frozenset()
    words = [word.lower().replace(".", "") for word in _words(value[start:])]
    return value[:start].strip().removesuffix("\u00b0").strip(), _DIRECTIONS & set(words)


def _start_of_unit(text: str) -> int | None:
    """Find the unit at the end of a text: the first place behind a value from which all is words of a unit."""
    for match in re.finditer(rf"{_SPACE}|{_COMMAND}|\u00b0|(?<=\d){_LETTERS}", text):
        start = match.start()
        before = text[max(0, start - 12) : start]
        if _VALUE_END.search(before) and _is_unit(text, start):
            return start
        if match[0].startswith("\\t") or match[0].startswith("\\m"):  # of a command, not of a space
            is_listed = all(word in _KNOWN for word in _words(text[start:]))
            if is_listed and re.search(r"(?<![a-zA-Z\\])[a-zA-Z]\s*$", before) and _is_unit(text, start):
                return start
    return text.rindex("\u00b0") if text.endswith("\u00b0") else None


def _is_unit(text: str, start: int) -> bool:
    side = text[:start].rpartition("=")[2]
    symbolic = bool(_LETTERS_LEFT.search(re.sub(r"\\[a-zA-Z]+", " ", side)))
    attached = text[start : start + 1].isalpha()
    at, end, count = start, len(text.rstrip(" .")), 0
    while at < end:
        if (gap := _BETWEEN.match(text, at)) is not None or text[at] == "\u00b0":
            at = gap.end() if gap else at + 1
            continue
        match = _WORD.match(text, at)
        if match is None:
            return False
        words = _words(match[0])
        if any((word if len(word) == 1 else word.lower()) in _VALUES for word in words):
            return False
        if match["word"]:
            word = words[0]
            if attached and not count and word not in _ATTACHED:
                return False
            if len(word) < (3 if symbolic else 2) and (symbolic or word not in _ONE_LETTER):
                return False
        at, count = match.end(), count + 1
    return count > 0 and _is_closed(text[:start])


def _is_closed(text: str) -> bool:
    return all(text.count(opening) <= text.count(closing) for opening, closing in ("{}", "()", "[]"))


def _words(text: str) -> list[str]:
    plain = re.sub(rf"{_COMMAND}", " ", text)
    return re.findall(rf"{_LETTERS}+(?:['\u2019-]{_LETTERS}+)*", plain)
