"""Control tokens spelt out in text, which a service might read as such: then a reply could hold messages of its own.

A service does not say which control tokens its tokenizer has. So they are told by their shape, not by a list: a word
without spaces between angle brackets, anything behind ``<|`` or ``[|``, and capitals between square brackets. In
training, where there is a tokenizer, ``trainers.chat_template.control`` reads them from it.
"""

from __future__ import annotations

import re

# <|im_start|>, <｜User｜>, <s>, </s>, <bos>, <start_of_turn>, <turn|>, [INST], [/TOOL_CALLS], [gMASK], [|endofturn|].
CONTROL = re.compile(r"<(?=[|\uff5c]|[^\s<>]{1,64}>)|\[(?=\||/?[a-z]?[A-Z][A-Z_]+\])")


def defuse(text: str) -> str:
    """The text with a space in every spelt-out control token: still readable, no longer a token."""
    return CONTROL.sub(r"\g<0> ", text)
