"""Variables of chat templates that the renderer sets itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_OURS = "the renderer's own: templates are rendered as text, and tokenised behind that"
#: Names that no user may set, and their meaning: arguments of ``apply_chat_template``, or variables that it sets.
RESERVED: Mapping[str, str] = {
    **dict.fromkeys(("messages", "conversation"), "the conversation at hand"),
    "tools": "the environment's tools",
    "add_generation_prompt": "true exactly where the model is to speak",
    "chat_template": "the tokenizer's template itself",
    **dict.fromkeys(("continue_final_message", "tokenize", "padding", "truncation", "max_length"), _OURS),
    **dict.fromkeys(("return_tensors", "return_dict", "return_assistant_tokens_mask"), _OURS),
    **dict.fromkeys(("tokenizer_kwargs", "processor_kwargs", "sanitize_control_tokens"), _OURS),
    **dict.fromkeys(("raise_exception", "strftime_now"), "a function that every template is given"),
}


def refused(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return those of the names that no user may set, each with its meaning."""
    return [(name, RESERVED[name]) for name in names if name in RESERVED]
