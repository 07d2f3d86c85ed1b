"""A model folder, verl's own configuration for it, and a server that says what a script says."""

from __future__ import annotations

from collections import defaultdict

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from textenvs.integrations import EpisodeSpec
from textenvs.integrations.rows import episode_rows
from trainers.integrations.verl import TextEnvAgentLoop
from trainers.models.tiny import build_model, build_tokenizer, save


def make_model_folder(folder):
    tokenizer = build_tokenizer(["Tom has 3 apples and buys 4 more. #### 7 user assistant"] * 3, vocab_size=400)
    save(folder, build_model(len(tokenizer), hidden=16, layers=1, heads=2, kv_heads=1), tokenizer)
    return folder


def make_config(folder, *overrides):
    """Compose the configuration as ``python -m verl.trainer.main_ppo`` does."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={folder}",
                "actor_rollout_ref.model.external_lib=trainers.integrations.verl",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.calculate_log_probs=True",
                "data.max_prompt_length=1024",
                "data.max_response_length=2048",
                "algorithm.adv_estimator=textenv_turn_grpo",
                *overrides,
            ],
        )
    OmegaConf.resolve(config)
    return config


def make_loop(config, tokenizer, server, hf_model_type="qwen2", **options):
    """Make the agent loop as verl's worker does."""
    return TextEnvAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type=hf_model_type,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap([]),
        **{"environments": {"textenv/shaky-verl": {}}, **options},
    )


def row_of(spec: EpisodeSpec, **columns):
    """A row as the dataset gives it to an agent loop."""
    row = next(episode_rows("verl", [spec]))
    return {**row, "raw_prompt": row["prompt"], "index": row["extra_info"]["index"], **columns}


class ScriptedServer:
    """verl's interface: replies by what the first prompt of a trajectory was, a byte a token.

    No tokenizer would cut text so, so code that tokenises again is detected.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.replies = {}  # by the text of the first prompt
        self.requests = defaultdict(list)  # by request id: prompts and sampling parameters
        self.sampled = defaultdict(list)  # by request id
        self.script = {}  # by request id
        self.version = 0

    def learn(self, opening, replies):
        text = self.tokenizer.apply_chat_template(opening, tokenize=False, add_generation_prompt=True)
        self.replies[text] = list(replies)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        if request_id not in self.script:
            self.script[request_id] = self.replies[self.tokenizer.decode(prompt_ids)]
        turn = len(self.requests[request_id])
        self.requests[request_id].append((list(prompt_ids), dict(sampling_params)))
        ids = self.pieces(self.script[request_id][turn])[: sampling_params["max_tokens"]]
        self.sampled[request_id].append(ids)
        self.version += 1
        return TokenOutput(
            token_ids=ids,
            log_probs=[-(i + 1) / 8 for i in range(len(ids))] if sampling_params["logprobs"] else None,
            stop_reason="completed",
            num_preempted=1,
            extra_fields=dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), self.version),
        )

    def pieces(self, text):
        """The token of each byte, and the end of the turn."""
        by_byte = [self.tokenizer.encode(part, add_special_tokens=False) for part in text]
        return [i for part in by_byte for i in part] + [self.tokenizer.eos_token_id]


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
