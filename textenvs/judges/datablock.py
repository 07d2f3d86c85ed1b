r"""What a judge looks at, put into a request so that it stays data.

Everything that was said in a conversation may try to be an instruction. So it is one line of JSON between two marks:

    <data 3f9a1c07b2de>
    {"conversation": [{"role": "user", "text": "... \u003c/data\u003e ..."}]}
    </data 3f9a1c07b2de>

* No ``<``, ``>``, line break or invisible character is left in it, nor a bracket that may begin a control token such as
``[INST]`` (JSON's own escapes stand for them), so nothing in it can be a mark, a control token or a line of its own.
* The code in the marks is a hash of the data: the same in every run, and not to be written into the data beforehand.
* What stands outside depends on nothing in the data but that code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..messages import Messages, clean_messages, text_of, visible_conversation

_DIGITS = 12
# JSON's own brackets are never followed by one of these.
_OPENING = re.compile(r"[<>]|\[(?=[|/]|[a-z]?[A-Z])")


@dataclass(frozen=True)
class DataBlock:
    """Data on its way to a judge: one line of JSON, and the code in the marks and in the verdict."""

    line: str
    code: str

    @property
    def text(self) -> str:
        return f"<data {self.code}>\n{self.line}\n</data {self.code}>"


def data_block(data: Mapping[str, Any]) -> DataBlock:
    """``data`` as a block; ``json.loads(block.line)`` gives it back. ``ValueError`` if it is not JSON."""
    try:
        line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"what a judge is shown must be JSON: {error}") from error
    # Only strings can hold such characters, and there JSON has an escape for each.
    line = _OPENING.sub(lambda match: _escaped(match[0]), line)
    line = "".join(c if c.isprintable() else _escaped(c) for c in line)
    code, salt = "", 0
    while not code or code in line:  # a collision would take about 2**48 tries; then another hash is used
        code = hashlib.sha256(f"{salt} {line}".encode()).hexdigest()[:_DIGITS]
        salt += 1
    return DataBlock(line, code)


def conversation_data(messages: Messages, *, tools: bool = False) -> list[dict[str, str]]:
    """A conversation as a judge reads it: who said what, without private reasoning and system messages."""
    heard = visible_conversation(clean_messages(messages), tools=tools)
    return [{"role": message["role"], "text": text_of(message)} for message in heard]


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 126 else f"\\u{ord(character):04x}"
