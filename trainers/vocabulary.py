"""The token ids of a model that mean something: those that end a reply, and those without a token.

A model's vocabulary is often larger than its tokenizer's, because matrices are padded to a multiple of some size. Such
ids would be sampled, and trained on, although no text can hold them. They are left out of the policy: engines do not
draw them, and log-probabilities, in engine and learner alike, are over the other ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("trainers")


def end_token_ids(generation_config: Any, vocab_size: int) -> tuple[int, ...]:
    """The ids that end a reply, as transformers' ``generate`` reads them: one ``eos_token_id``, or a list.

    Ids outside the vocabulary are left out with a warning, because no model can sample them. Raises ``ValueError``: a
    value that is no id.
    """
    value = getattr(generation_config, "eos_token_id", None)
    ids = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or each < 0:
            raise ValueError(
                f"eos_token_id of generation_config.json is {value!r}: it must be a token id, or a list of token ids"
            )
    if outside := [each for each in ids if each >= vocab_size]:
        log.warning(
            "eos_token_id of generation_config.json names %s, outside the model's vocabulary of %d: left out",
            ", ".join(map(str, outside)),
            vocab_size,
        )
    return tuple(dict.fromkeys(each for each in ids if each < vocab_size))


def unused_token_ids(tokenizer: Any, vocab_size: int, ends: Iterable[int] = ()) -> tuple[int, ...]:
    """The ids below ``vocab_size`` that the tokenizer has no token for, without ``ends``, which end a reply; sorted."""
    used = {*map(int, tokenizer.get_vocab().values()), *map(int, ends)}
    return tuple(sorted(set(range(vocab_size)) - used))
