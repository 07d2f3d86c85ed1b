"""Chat templates in the styles of the models people train, as small Jinja strings, for the renderer's tests.

Each follows the format's facts (which tokens, which newlines, what is trimmed or dropped), not any model's own source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainers.models.tiny import CHATML, build_tokenizer

TEXTS = [
    "Tom has 3 apples and buys 4 more. How many apples does he have now? The answer is 7. #### 7",
    "No, that is not right. Try again: think about it step by step, then say yes or no.",
    "user assistant system model tool reply question\n\n",
]

_ALTERNATE = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}{% endfor %}"
)

CHATML_NO_NEWLINE = CHATML.replace("<|im_end|>\n", "<|im_end|>")

DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    + CHATML
)

TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    + _ALTERNATE
    + "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# Reasoning stays only in replies after the last user message; tool results are user turns, neighbours joined.
QWEN3 = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' }}{{ m['content'] }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m['role'] == 'assistant' %}<|im_start|>assistant\n"
    "{% set content = m['content'].split('</think>')[-1].lstrip('\n')"
    " if '</think>' in m['content'] else m['content'] %}"
    "{% if loop.index0 > ns.last and '</think>' in m['content'] %}{{ m['content'] }}"
    "{% elif loop.index0 > ns.last and loop.last %}{{ '<think>\n\n</think>\n\n' + content }}"
    "{% else %}{{ content }}{% endif %}"
    "{% for c in m['tool_calls'] or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The system prompt goes into the *last* user message; tool results must follow calls.
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% set ns = namespace(n=0, last=0) %}{% for m in loop_messages %}"
    "{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% if m['role'] == 'user' or (m['role'] == 'assistant' and not m['tool_calls']) %}"
    "{% if (m['role'] == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('conversation roles must alternate') }}"
    "{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
    "{% for m in loop_messages %}{% if m['role'] == 'user' %}[INST] "
    "{% if system is defined and loop.index0 == ns.last %}{{ system + '\n\n' }}{% endif %}{{ m['content'] }}[/INST]"
    "{% elif m['role'] == 'tool' %}[TOOL_RESULTS] {{ {'content': m['content'], 'id': m['tool_call_id']} | tojson }}"
    "[/TOOL_RESULTS]{% elif m['tool_calls'] %}[TOOL_CALLS] [{% for c in m['tool_calls'] %}"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}{% if not loop.last %}, {% endif %}"
    "{% endfor %}]{{ eos_token }}{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
)

# No token ends a turn: the next speaker's does, and it is what the model samples to stop.
GLM = (
    "[gMASK]<sop>{% for m in messages %}<|{{ 'observation' if m['role'] == 'tool' else m['role'] }}|>\n"
    "{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + m['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)

PLAIN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class Style:
    """A template, its special tokens and what is expected of it."""

    template: str
    end: str  # the token that ends an assistant turn
    special: tuple[str, ...] = ()
    bos: str | None = None
    system: bool = True  # takes a system message
    free: bool = True  # takes any order of roles
    tools: bool = True
    rewrites: bool = False
    trims: bool = False  # trims replies
    other_forms: tuple[bool, bool, bool] = (False, False, False)  # joined users; system, tool results as user messages


STYLES = {
    "chatml": Style(CHATML, "<|im_end|>"),
    "chatml without newline": Style(CHATML_NO_NEWLINE, "<|im_end|>"),
    "default system": Style(DEFAULT_SYSTEM, "<|im_end|>"),
    "trimming": Style(TRIMMING, "<|im_end|>", rewrites=True, trims=True),
    "llama 3": Style(
        LLAMA3,
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        rewrites=True,
        trims=True,
    ),
    "gemma": Style(
        GEMMA,
        "<end_of_turn>",
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        bos="<bos>",
        system=False,
        free=False,
        tools=False,
        rewrites=True,
        trims=True,
        other_forms=(True, True, True),
    ),
    "qwen 3": Style(QWEN3, "<|im_end|>", rewrites=True),
    "mistral": Style(
        MISTRAL,
        "</s>",
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        bos="<s>",
        free=False,
        rewrites=True,
        other_forms=(True, False, True),
    ),
    "glm": Style(GLM, "<|user|>", ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")),
}

# Parameters of tests. A renderer probes its template for tenths of a second: the tests of a style run in one process.
GROUPED_STYLES = [pytest.param(name, marks=pytest.mark.xdist_group(f"style {name}")) for name in STYLES]


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a style, with merges learned from ``TEXTS``."""
    style = STYLES[name]
    return make_tokenizer(style.template, style.special, style.bos, style.end)


def make_tokenizer(
    template: str, special: tuple[str, ...] = (), bos: str | None = None, eos: str = "<|im_end|>"
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that keeps spaces and newlines apart from words."""
    tokenizer = build_tokenizer(TEXTS * 3, vocab_size=600, chat_template=template, special=special)
    tokenizer.eos_token = eos
    tokenizer.bos_token = bos
    return tokenizer


def newline_merging_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Like GPT-4's and Llama 3's: runs of newlines and spaces are single tokens, so text boundaries may merge."""
    style = STYLES[name]
    tokenizer = Tokenizer(models.BPE())
    pattern = Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    names = list(dict.fromkeys(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *style.special]))
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS * 3, *("a.\n\n", "b\n\n\n", "\n\n  c  \n", "!\n\n\n\n") * 20], trainer)
    return _wrapped(tokenizer, style)


def word_space_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Like SentencePiece's: a word carries the space before it, one is put before the text, and decoding drops it."""
    style = STYLES[name]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = list(dict.fromkeys(["<|im_start|>", "<|im_end|>", *style.special]))
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    state = json.loads(tokenizer.to_str())
    vocab = state["model"]["vocab"]
    vocab.update({f"<0x{i:02X}>": len(vocab) + i for i in range(256)})  # any other character, byte by byte
    return _wrapped(Tokenizer.from_str(json.dumps(state)), style)


def _wrapped(tokenizer: Tokenizer, style: Style) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=style.end, bos_token=style.bos)
    wrapped.chat_template = style.template
    return wrapped


def tool_schema(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def look_call(value: str, number: int = 0) -> dict[str, Any]:
    """Return a call of ``look`` with this value."""
    function = {"name": "look", "arguments": json.dumps({"what": value})}
    return {"id": f"zqcall00{number}", "type": "function", "function": function}
