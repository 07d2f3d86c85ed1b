"""Token ids of a model with a special role: those that end a reply, and those without a token.

A model's vocabulary is often larger than its tokenizer's, because matrices are padded to a multiple of some size. Such
ids would be sampled, and trained on, although no text can hold them. They are excluded from the policy: engines do not
sample them, and log-probabilities, in engine and learner alike, are over the other ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger("trainers")


def end_token_ids(generation_config: Any, vocab_size: int) -> tuple[int, ...]:
    """Return the ids that end a reply, as transformers' ``generate`` reads them: one ``eos_token_id``, or a list.

    Ids outside the vocabulary are dropped with a warning, because no model can sample them. Raises ``ValueError`` if a
    value is no id.
    """
    value = getattr(generation_config, "eos_token_id", None)
    ids = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise ValueError(
                f"eos_token_id of generation_config.json is {value!r}: it must be a token id, or a list of token ids"
            )
    if outside := [token_id for token_id in ids if token_id >= vocab_size]:
        log.warning(
            "eos_token_id of generation_config.json names %s, outside the model's vocabulary of %d: left out",
            ", ".join(map(str, outside)),
            vocab_size,
        )
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id < vocab_size))


def unused_token_ids(tokenizer: Any, vocab_size: int, ends: Iterable[int] = ()) -> tuple[int, ...]:
    """Return the sorted ids below ``vocab_size`` without a token, except for ``ends``, which end a reply."""
    used = {*map(int, tokenizer.get_vocab().values()), *map(int, ends)}
    return tuple(sorted(set(range(vocab_size)) - used))
