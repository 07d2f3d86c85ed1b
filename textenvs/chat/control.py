"""Control tokens spelt out in text, which a service might read as such: then a reply could hold messages of its own."""

from __future__ import annotations

import re

# <|im_start|>, <｜User｜>, <s>, </s>, <bos>, <start_of_turn>, [INST], [/TOOL_CALLS], and their kin.
CONTROL = re.compile(r"<(?=[|\uff5c]|/?s>|/?(?:bos|eos|pad|unk|mask)>|(?:start|end)_of_)|\[(?=/?[A-Z][A-Z_]+\])")


def defuse(text: str) -> str:
    """The text with a space in every spelt-out control token: still readable, no longer a token."""
    return CONTROL.sub(r"\g<0> ", text)
