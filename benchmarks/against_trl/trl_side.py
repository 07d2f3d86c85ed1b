"""TRL's side, with its fastest settings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, StoppingCriteria, TrainerCallback

from textenvs.messages import user
from trainers.trajectory import Trajectory

from .work import CLIP, LR, Clock, Work, question, score

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is experimental: we know


class AtLengths(StoppingCriteria):
    """Ends every row at a length of its own, as a stop token would."""

    def __init__(self, prompt: int, lengths: NDArray[np.int64]) -> None:
        self._ends = torch.from_numpy(prompt + lengths)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows are done, bool ``[B]``."""
        return (input_ids.shape[1] >= self._ends).to(input_ids.device)


class Rollout:
    """A ``rollout_func`` of TRL's: turn by turn, all episodes in one ``generate``.

    Args:
        work: The work of an iteration.
        answer: The tokens from the end of a reply to the next generation point.
        vllm: Whether TRL's vLLM generates (``vllm_mode="colocate"``), and not ``model.generate``.
    """

    def __init__(self, work: Work, answer: list[int], *, vllm: bool = False) -> None:
        self._work, self._answer, self._vllm = work, answer, vllm
        self.begin(0)

    def begin(self, number: int) -> None:
        self._lengths, self._done = self._work.lengths(number), 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Play, as TRL's documentation of ``rollout_func`` says; ``earned`` goes to the reward function."""
        lengths, pad = self._lengths[self._done : self._done + len(prompts)], trainer.processing_class.pad_token_id
        self._done += len(prompts)
        opening = trainer.processing_class.apply_chat_template(prompts, add_generation_prompt=True)["input_ids"]
        completions: list[list[int]] = [[] for _ in prompts]
        masks: list[list[int]] = [[] for _ in prompts]
        earned = np.zeros(len(prompts))
        generate = self._by_vllm if self._vllm else self._by_model
        for turn in range(self._work.turns):
            contexts = [first + rest for first, rest in zip(opening, completions, strict=True)]
            replies = generate(trainer, contexts, lengths[:, turn], pad)
            texts = trainer.processing_class.batch_decode(replies, skip_special_tokens=True)
            earned += [score(text) for text in texts]
            for completion, tokens, reply in zip(completions, masks, replies, strict=True):
                answer = self._answer if turn + 1 < self._work.turns else []
                completion += reply + answer
                tokens += [1] * len(reply) + [0] * len(answer)
        return {
            "prompt_ids": opening,
            "completion_ids": completions,
            "logprobs": None,
            "env_mask": masks,
            "earned": earned.tolist(),
        }

    def _by_model(
        self, trainer: Any, contexts: list[list[int]], lengths: NDArray[np.int64], pad: int
    ) -> list[list[int]]:
        config = GenerationConfig(do_sample=True, top_k=0, pad_token_id=pad, max_new_tokens=self._work.longest)
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        width = max(map(len, contexts))
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in contexts])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in contexts])
        with torch.inference_mode():
            made = model.generate(
                ids.to(model.device),
                attention_mask=mask.to(model.device),
                generation_config=config,
                stopping_criteria=[AtLengths(width, lengths)],
            )
        model.train()
        return [row[:n] for row, n in zip(made[:, width:].tolist(), lengths, strict=True)]

    def _by_vllm(
        self, trainer: Any, contexts: list[list[int]], lengths: NDArray[np.int64], pad: int
    ) -> list[list[int]]:
        from vllm import SamplingParams

        ways = [
            SamplingParams(max_tokens=int(n), min_tokens=int(n), ignore_eos=True, detokenize=False) for n in lengths
        ]
        prompts = [{"prompt_token_ids": row} for row in contexts]
        made = trainer.vllm_generation.llm.generate(prompts, sampling_params=ways, use_tqdm=False)
        return [list(request.outputs[0].token_ids) for request in made]


class FixedRollout:
    """A ``rollout_func`` that generates nothing: the same episodes every time."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        self._trajectories = trajectories

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return episodes that were sampled elsewhere."""
        out: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "env_mask": [], "earned": [], "logprobs": None}
        for trajectory in self._trajectories:
            start = int(np.argmax(trajectory.action_mask))
            out["prompt_ids"].append(trajectory.token_ids[:start].tolist())
            out["completion_ids"].append(trajectory.token_ids[start:].tolist())
            out["env_mask"].append(trajectory.action_mask[start:].astype(int).tolist())
            out["earned"].append(trajectory.total_reward)
        return out


def reward(completions: list[Any], earned: list[float] | None = None, **_: Any) -> list[float]:
    """Return the rollout's rewards, else the score of the only reply."""
    return earned if earned is not None else [score(completion[0]["content"]) for completion in completions]


def make_trl(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    work: Work,
    folder: str,
    steps: int,
    micro_batch: int,
    generation_batch: int,
    rollout: Any = None,
    clock: Clock = time.perf_counter,
    device: str = "cpu",
    **settings: Any,
) -> Any:
    """Return a GRPOTrainer whose ``generate_s`` adds up the time of its generations.

    Args:
        model: It becomes the trainer's.
        tokenizer: Changed: its end of sequence becomes a token that the model does not have, so none is ever sampled.
        work: The work of an iteration.
        folder: For its output.
        steps: Iterations.
        micro_batch: Episodes of a micro-batch.
        generation_batch: Episodes that are generated together.
        rollout: Its ``rollout_func``.
        clock: For ``generate_s``.
        device: ``cpu`` or ``cuda``.
        settings: More of ``GRPOConfig``'s.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class Timed(GRPOTrainer):  # type: ignore[misc]
        generate_s = 0.0

        def _generate(self, prompts: Any) -> Any:
            began = clock()
            made = super()._generate(prompts)
            self.generate_s += clock() - began
            return made

    tokenizer.add_special_tokens({"eos_token": "<|never|>"})
    chosen = {
        "output_dir": folder,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": work.episodes // micro_batch,
        "steps_per_generation": generation_batch // micro_batch,
        "num_generations": work.group,
        "max_completion_length": work.longest,
        "max_steps": steps,
        "loss_type": "dapo",
        "scale_rewards": "none",
        "epsilon": CLIP,
        "beta": 0.0,
        "num_iterations": 1,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": device == "cpu",
        "optim": "adamw_torch_fused",
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "shuffle_dataset": False,
        "logging_steps": 10**9,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return Timed(
        model=model,
        reward_funcs=reward,  # type: ignore[arg-type]
        args=GRPOConfig(**{**chosen, **settings}),
        train_dataset=Dataset.from_dict({"prompt": [[user(question(number))] for number in range(work.tasks)]}),
        processing_class=tokenizer,
        rollout_func=rollout,
    )


def vllm_settings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: str) -> dict[str, Any]:
    """Return settings with which TRL's vLLM in this process generates; writes the model to a folder in ``folder``."""
    path = os.path.join(folder, "model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    model.name_or_path = path
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": 1024,
        "vllm_importance_sampling_correction": False,  # the other side has none
    }


def sizes(work: Work, micro_batch: int, generation_batch: int) -> dict[str, int]:
    """Sizes that TRL takes: no larger than the work, whole groups, whole micro-batches.

    Raises:
        SystemExit: The sizes do not divide each other.
    """
    generation_batch = min(generation_batch, work.episodes)
    micro_batch = min(micro_batch, generation_batch)
    if work.episodes % generation_batch or generation_batch % micro_batch or generation_batch % work.group:
        raise SystemExit(
            f"{work.episodes} episodes in groups of {work.group} cannot be generated {generation_batch} at a time and "
            f"learned from {micro_batch} at a time: choose powers of 2"
        )
    return {"micro_batch": micro_batch, "generation_batch": generation_batch}


class Between(TrainerCallback):
    """Times TRL's steps, and calls something after each."""

    def __init__(self, trainer: Any, after: Callable[[dict[str, float]], None], clock: Clock) -> None:
        self._trainer, self._after, self._clock = trainer, after, clock
        self._began = self._generated = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Note the start of a step: it begins with its generation."""
        self._began, self._generated = self._clock(), self._trainer.generate_s

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Report the seconds of a step, after the optimizer's."""
        seconds, generate = self._clock() - self._began, self._trainer.generate_s - self._generated
        self._after({"generate": generate, "update": seconds - generate})
