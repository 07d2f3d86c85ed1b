r"""Words of a text, in any script: one tokenizer for search, guards of users and answers.

A word is a run of letters, digits and the marks upon them (``\w`` leaves out vowel signs, which cuts Hindi and Thai
words to pieces). In scripts that put no spaces between words, every character is one, so that a part of a sentence is
found in it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

# Chinese, Japanese (kana too), Bopomofo, Thai, Lao, Tibetan, Burmese, Khmer; and Korean, where particles join words.
_UNSPACED = (
    "\u0e00-\u0e4f\u0e80-\u0ecf\u0f00-\u0f1f\u0f2a-\u0fff\u1000-\u103f\u1050-\u109f\u1100-\u11ff\u1780-\u17df\u2e80-\u2fdf"
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3040-\u30ff\u3100-\u318f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
# A character of a word in the other scripts: such a word ends where it is followed by none.
_SPACED = rf"[^\W{_UNSPACED}]"
_ASCII = re.compile(r"\w+", re.ASCII)


class Word(NamedTuple):
    """A word of a text: its spelling for comparisons (one form of each character, lower case), and its place."""

    text: str
    start: int
    end: int
    #: Whether it is a character of a script without spaces.
    is_character: bool


def words_of(text: str) -> list[Word]:
    """Return the words of a text, in order, in time linear in it."""
    if text.isascii():  # no scripts without spaces, no marks: the same words, in a fifth of the time
        return [Word(match[0].lower(), match.start(), match.end(), False) for match in _ASCII.finditer(text)]
    return [
        Word(_spelling(match[0]), match.start(), match.end(), match["character"] is not None)
        for match in _pattern().finditer(text)
    ]


def spellings(text: str) -> list[str]:
    """Return the words of a text as :func:`words_of` spells them; a plain text's in a sixth of the time."""
    return _ASCII.findall(text.lower()) if text.isascii() else [word.text for word in words_of(text)]


@functools.lru_cache(maxsize=1024)
def standing(piece: str) -> re.Pattern[str]:
    """Return a pattern that finds a piece as whole words: "5" in "5 km" and in "是5元", not in "15"."""
    first, last = piece[:1], piece[-1:]
    before = "" if re.match(f"[{_UNSPACED}]", first) else f"(?<!{_SPACED})"
    after = "" if re.match(f"[{_UNSPACED}]", last) else f"(?!{_SPACED})"
    return re.compile(f"{before}{re.escape(piece)}{after}")


def _spelling(word: str) -> str:
    return unicodedata.normalize("NFKC", word).casefold()


@functools.cache
def _pattern() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M")
    marks = f"[{marks}\u200c\u200d]*"  # with the joiners of Indic and Arabic words
    return re.compile(rf"(?P<character>[{_UNSPACED}](?<=\w){marks})|(?:{_SPACED}{marks})+")
