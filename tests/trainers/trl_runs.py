"""TRL's trainer with tiny models, and with scripted words instead of a model's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from adapter_kit import Played
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from trainers.integrations.trl import textenv_reward
from trainers.models import tiny

TEXTS = ["How many apples? #### 12", '<tool_call>{"name": "calc", "arguments": {"answer": 3}}</tool_call>', "tool user"]


def tiny_policy(**shape: Any) -> tuple[Any, PreTrainedTokenizerFast]:
    tokenizer = tiny.build_tokenizer(TEXTS, 300)
    usual: dict[str, Any] = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 8192}
    return tiny.build_model(len(tokenizer), eos_token_id=tokenizer.eos_token_id, **{**usual, **shape}), tokenizer


def trl_trainer(
    folder: Path,
    dataset: Any,
    rollout: Any = None,
    *,
    kind: type[GRPOTrainer] = GRPOTrainer,
    policy: tuple[Any, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A trainer on this machine's CPU that writes nothing."""
    torch.set_num_threads(1)
    model, tokenizer = policy or tiny_policy()
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 4096,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10**6,
        "disable_tqdm": True,
        "shuffle_dataset": False,
        "max_steps": 1,
    }
    made = {"reward_funcs": textenv_reward, **(options or {})}
    return kind(
        model,
        args=GRPOConfig(**{**usual, **settings}),
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=tokenizer,
        rollout_func=rollout,
        **made,
    )


def batch(trainer: Any, rows: int | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One batch as training makes it: the rows with their outcomes, and what the loss is given."""
    trainer.model.train()
    dataset = trainer.train_dataset
    count = len(dataset) if rows is None else rows
    inputs = [dataset[i] for i in range(count) for _ in range(trainer.num_generations)]
    return inputs, trainer._generate_and_score_completions(inputs)


class Scripted(GRPOTrainer):  # type: ignore[misc]
    """Says what a script says: which episode it is in, and at which turn, it reads off the prompt."""

    scripts: Sequence[tuple[str, Sequence[str]]] = ()  # what the prompt begins with, and the replies

    def _generate_single_turn(
        self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, **_: Any
    ) -> tuple[list[list[int]], None]:
        return [self._reply(ids) for ids in prompt_ids], None

    def _reply(self, prompt_ids: Sequence[int]) -> list[int]:
        tokenizer = self.processing_class
        text = tokenizer.decode(prompt_ids)
        (replies,) = {tuple(replies) for opening, replies in self.scripts if text.startswith(opening)}
        turn = text.count("<|im_start|>assistant") - 1
        reply = replies[turn] if turn < len(replies) else "Nothing more."
        return [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]


def script(tokenizer: Any, played: Played, replies: Sequence[str] | None = None, **template: Any) -> Any:
    opening = tokenizer.apply_chat_template(
        [dict(message) for message in played.opening], tokenize=False, add_generation_prompt=True, **template
    )
    return opening, played.replies if replies is None else replies
