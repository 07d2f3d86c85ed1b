"""Runs under verl 0.7: environments as interactions of its real classes. A test runs this in a process of its own."""

import asyncio
import sys

import adapter_kit
import interaction_kit
import verl
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.interactions.base import BaseInteraction
from verl.interactions.utils.interaction_registry import initialize_interactions_from_config
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from textenvs.integrations import EpisodeSpec
from textenvs.integrations.rows import episode_rows
from textenvs.integrations.verl import TextEnvInteraction


def by_the_contract(config_file):
    """All episodes at once in one interaction, which verl's own loader made."""
    interaction = initialize_interactions_from_config(config_file)["textenv"]
    assert isinstance(interaction, TextEnvInteraction)
    assert isinstance(interaction, BaseInteraction)
    assert interaction.name == "textenv"
    episodes = [each for env_id in adapter_kit.ENVIRONMENTS for each in adapter_kit.episodes(env_id, 6)]

    async def together():
        return await asyncio.gather(*(interaction_kit.play(interaction, played) for played in episodes))

    for returned, played in zip(asyncio.run(together()), episodes, strict=True):
        interaction_kit.check(returned, played)
    print(f"{len(episodes)} episodes under verl {verl.__version__}")


class Scripted:
    """The server of verl's loop."""

    def __init__(self, tokenizer, replies):
        self.tokenizer = tokenizer
        self.replies = list(replies)

    async def generate(self, *, request_id, prompt_ids, **_):
        ids = self.tokenizer.encode(self.replies.pop(0), add_special_tokens=False) + [self.tokenizer.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


def by_its_agent_loop(config_file, model):
    """Its ``tool_agent`` loop, which notes the turn rewards and makes no use of them."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={model}",
                "actor_rollout_ref.rollout.name=vllm",
                f"actor_rollout_ref.rollout.multi_turn.interaction_config_path={config_file}",
                "data.max_prompt_length=1024",
                "data.max_response_length=4096",
            ],
        )
    OmegaConf.resolve(config)
    tokenizer = AutoTokenizer.from_pretrained(model)
    # Its loop takes calls in the format hermes for calls of its own tools, so tools must be called otherwise.
    specs = [EpisodeSpec("textenv/gsm8k-tool", seed, {"call_format": "react"}) for seed in range(3)]
    specs += [
        EpisodeSpec(env_id, seed) for env_id in ("textenv/gsm8k-interact", "textenv/clarify") for seed in range(3)
    ]
    for spec in specs:
        played = adapter_kit.direct(spec)
        row = next(episode_rows("verl-interaction", [spec]))

        async def run(played=played, row=row):
            loop = ToolAgentLoop(
                trainer_config=DictConfigWrap(config),
                server_manager=Scripted(tokenizer, played.replies),
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=RLHFDataset,
                data_config=DictConfigWrap(config.data),
            )
            return await loop.run({}, raw_prompt=row["prompt"], extra_info=row["extra_info"])

        output = asyncio.run(run())
        assert output.extra_fields["turn_scores"] == played.rewards
    print(f"{len(specs)} episodes in its agent loop")


if __name__ == "__main__":
    by_the_contract(sys.argv[1])
    by_its_agent_loop(sys.argv[1], sys.argv[2])
