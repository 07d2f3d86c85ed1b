"""Demonstrations as tokens: those of the rollout, with the weights of the imitated replies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_styles import make_tokenizer, tokenizer_of, tool_schema
from demonstration_kit import Sums, interact, replies, write_jsonl
from hypothesis import given
from hypothesis import strategies as st

from textenvs.messages import assistant, user
from trainers.engines.base import Generation, Sampling
from trainers.models.tiny import CHATML
from trainers.rollout.demonstrations import Demonstration, DemonstrationError, Example, encode, play, read
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.play import Episode, Player
from trainers.rollout.renderer import Renderer
from trainers.trajectory import Trajectory


class Recited:
    """An engine that says given replies, as a model would that had learned them by heart."""

    version, max_context = 0, 4096

    def __init__(self, replies: list[list[int]]) -> None:
        self.replies = replies

    async def generate(self, token_ids: list[int], sampling: Sampling, session: str | None = None) -> Generation:
        ids = self.replies.pop(0)
        return Generation(
            np.array(ids, np.int32), np.full(len(ids), -1.0, np.float32), np.zeros(len(ids), np.int32), "stop"
        )

    async def release(self, session: str) -> None: ...


@pytest.mark.parametrize("style", ["chatml", "chatml without newline", "llama 3", "gemma", "qwen 3", "mistral"])
async def test_tokens_are_those_of_rollout(style):
    """Play the demonstration's own replies in the environment: the trajectory has the demonstration's tokens."""
    tokenizer = tokenizer_of(style)
    renderer = Renderer(tokenizer)
    env, several = interact(tasks=Sums()), 0
    for number, demonstration in enumerate(play(env, 12, seed=5, mistake_rate=0.5, mistake_weight=0.5)):
        example = encode(demonstration, renderer, tokenizer)
        encoded = [tokenizer.encode(text, add_special_tokens=False) for text in replies(demonstration)]
        engine = Recited([[*ids, renderer.stop_token_ids[0]] for ids in encoded])
        index = int(demonstration.messages[0]["content"].split(" +")[0])
        async with Backend(EnvSpec(interact, {"tasks": Sums()})) as backend:
            episode = Episode(str(number), "", {"task_index": index}, 0, Sampling(), 0)
            rollout = await Player(engine, renderer).play(backend, episode)  # type: ignore[arg-type]
        if not rollout.terminated:  # it also has what the user said last, which no reply follows
            rollout = cut_behind_the_last_reply(rollout)
        for name in ("token_ids", "action_mask", "turn_id", "segment_starts"):
            assert np.array_equal(getattr(example.trajectory, name), getattr(rollout, name)), name
        check_weights(example, demonstration)
        several += len(encoded) > 1
    assert several > 2


def cut_behind_the_last_reply(trajectory: Trajectory) -> Trajectory:
    names = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id")
    size = int(trajectory.turn_ends()[-1]) + 1
    starts = trajectory.segment_starts[trajectory.segment_starts < size]
    return replace(trajectory, segment_starts=starts, **{name: getattr(trajectory, name)[:size] for name in names})


def check_weights(example: Example, demonstration: Demonstration) -> None:
    trajectory = example.trajectory
    assert example.weights.dtype == np.float32
    assert len(example.weights) == trajectory.action_mask.sum()
    turns = trajectory.turn_id[trajectory.action_mask]
    assert np.array_equal(example.weights, np.array(demonstration.imitate, np.float32)[turns])


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(words, words, st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=4))
def test_any_text_encodes_with_matching_weights(turns):
    tokenizer = tokenizer_of("chatml")
    renderer = Renderer(tokenizer)
    messages = tuple(message for question, reply, _ in turns for message in (user(question), assistant(reply)))
    demonstration = Demonstration(messages, tuple(weight for _, _, weight in turns))
    example = encode(demonstration, renderer, tokenizer)
    check_weights(example, demonstration)
    tokens = example.trajectory.token_ids
    rendered = tokenizer.apply_chat_template(list(messages), return_dict=False)
    assert tokens.tolist() == rendered[: len(tokens)]
    assert tokenizer.decode(rendered[len(tokens) :]) == "\n"  # what the template puts behind the last reply
    ends = example.trajectory.turn_ends()
    assert tokens[ends].tolist() == [renderer.stop_token_ids[0]] * len(turns)
    pieces = [tokens[example.trajectory.turn_id == turn][:-1] for turn in range(len(turns))]
    assert [tokenizer.decode(piece) for piece in pieces] == [reply for _, reply, _ in turns]


# Shows tools, calls, their results, and the reasoning of every turn.
TOOLS_CHATML = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n\n{% endif %}{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}\n<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCHEMA = tool_schema("weather", "The weather.", city={"type": "string"})
#: As TRL's documentation writes conversations with tools: no ids, and arguments that are objects.
TOOL_TALK = [
    {"role": "user", "content": "Warm?"},
    {
        "role": "assistant",
        "reasoning_content": "Look it up.",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rom"}}},
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Wien"}}},
        ],
    },
    {"role": "tool", "name": "weather", "content": "22"},
    {"role": "tool", "name": "weather", "content": "12"},
    {"role": "assistant", "content": "In Rom."},
    {"role": "user", "content": "And Bern?"},
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}},
]


def encoded(row: dict[str, Any], template: str, folder: Path, tools: Any = None) -> tuple[Example, Any]:
    (demonstration,) = read([write_jsonl(folder / "talks.jsonl", [row])])
    tokenizer = make_tokenizer(template)
    return encode(demonstration, Renderer(tokenizer), tokenizer, tools), tokenizer


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA]), [SCHEMA["function"]]])
def test_calls_are_learned_as_template_writes_them(tmp_path, tools):
    example, tokenizer = encoded({"messages": TOOL_TALK, "tools": tools}, TOOLS_CHATML, tmp_path)
    messages = json.loads(json.dumps(TOOL_TALK))
    messages[1]["content"] = messages[-1]["content"] = ""
    messages[-1]["tool_calls"] = [{"function": {"name": "weather", "arguments": {"city": "Bern"}}}]
    rendered = tokenizer.apply_chat_template(messages, tools=[SCHEMA], tokenize=False)
    tokens, turns = example.trajectory.token_ids, example.trajectory.turn_id
    assert tokenizer.decode(tokens) + "\n" == rendered
    rom = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
    both = rom + rom.replace("Rom", "Wien")
    texts = [f"<think>\nLook it up.\n</think>\n\n{both}", "In Rom.", rom.replace("Rom", "Bern")]
    assert [tokenizer.decode(tokens[turns == turn]) for turn in range(3)] == [f"{text}<|im_end|>" for text in texts]
    assert example.trajectory.segment_starts.tolist() == [0]


def test_rows_tools_come_before_environments(tmp_path):
    other = tool_schema("other", "")
    talk = [user("Hi"), assistant("Hi")]
    for row, names in (
        ({}, "other"),
        ({"tools": None}, "other"),
        ({"tools": [SCHEMA]}, "weather"),
        ({"tools": []}, ""),
    ):
        example, tokenizer = encoded({"messages": talk, **row}, TOOLS_CHATML, tmp_path, [other])
        text = tokenizer.decode(example.trajectory.token_ids)
        assert [name for name in ("other", "weather") if name in text] == ([names] if names else [])


def test_dropped_old_reasoning_begins_segment(tmp_path):
    template = TOOLS_CHATML.replace("{% if m['reasoning_content'] %}", "{% if m['reasoning_content'] and loop.last %}")
    talk = [user("a"), {**assistant("b"), "reasoning_content": "hm"}, user("c"), {**assistant("d"), "reasoning": "oh"}]
    example, tokenizer = encoded({"messages": talk}, template, tmp_path)
    starts = example.trajectory.segment_starts.tolist()
    pieces = [tokenizer.decode(part) for part in np.split(example.trajectory.token_ids, starts[1:])]
    opening = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert pieces == [
        f"{opening}<think>\nhm\n</think>\n\nb<|im_end|>",
        f"{opening}b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\noh\n</think>\n\nd<|im_end|>",
    ]


def test_parts_template_drops_are_refused(tmp_path):
    for row, problem in (
        ({"messages": TOOL_TALK[:2], "tools": [SCHEMA]}, "does not show the tools"),
        ({"messages": TOOL_TALK[:2]}, "does not show reasoning_content"),
    ):
        with pytest.raises(DemonstrationError, match=rf"talks.jsonl row 1: .*{problem}"):
            encoded(row, CHATML, tmp_path)


def test_reply_with_end_token_is_refused():
    tokenizer = tokenizer_of("chatml")
    demonstration = Demonstration((user("a"), assistant("b<|im_end|>c")), (1.0,))
    with pytest.raises(DemonstrationError, match="spells a token that ends replies; take it out: 'b<"):
        encode(demonstration, Renderer(tokenizer), tokenizer)
