"""A training loop of your own from the trainer's pieces, in the environment of own_environment.py.

The parts of `python -m trainers.ppo`, without its configuration, reports and checkpoints: an engine replies, a
collector plays groups of episodes, an estimator turns each turn's reward into the advantages of that turn's tokens, a
learner takes a step, and the engine gets the new weights. Three iterations show credit assignment; they are too few
to learn much.

    pip install '.[train]'
    python examples/own_training_loop.py
"""

import asyncio

import numpy as np
import torch
from own_environment import HigherLower

from trainers.algorithms.batch import ActionBatch, gather
from trainers.algorithms.estimators import TurnGRPO
from trainers.algorithms.losses import PPO, token_weights
from trainers.config.engine import TorchEngineSection
from trainers.config.rollout import RolloutSection
from trainers.engines.torch_engine import TorchEngine
from trainers.learner import Learner
from trainers.models.tiny import build_model, build_tokenizer
from trainers.rollout.batch import Batch
from trainers.rollout.collector import Collector
from trainers.rollout.demonstrations import encode, play
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.renderer import Renderer
from trainers.section import ActorSection

ITERATIONS = 3


def loss(logprobs: torch.Tensor, entropy: torch.Tensor, columns: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict]:
    per_token = PPO().token_loss(logprobs, columns["old"], columns["advantage"], columns["trajectory"]).loss
    return (columns["weight"] * per_token).sum(), {}


def learn(learner: Learner, batch: Batch) -> None:
    episodes = batch.trajectories
    actions = ActionBatch.from_trajectories(episodes)  # the sampled tokens of all episodes, one after the other
    result = TurnGRPO(baseline="group").advantages(
        actions
    )  # a turn's reward-to-go, minus its siblings' mean at the same turn
    columns = {
        "old": gather(episodes, [episode.logprobs for episode in episodes]),
        "advantage": result.advantages,
        "weight": token_weights("token-mean", actions.token_offsets, result.policy_mask),
    }
    learner.update_actor(episodes, columns, loss)

    mean = np.mean([episode.total_reward for episode in episodes])
    print(f"\nversion {batch.version}: {len(episodes)} episodes, mean return {mean:+.2f}; siblings, turn by turn:")
    of_turn = result.advantages[actions.turn_starts]  # all tokens of a turn have the same
    for number, episode in enumerate(batch.groups[0]):
        replies = [message["content"] for message in episode.messages if message["role"] == "assistant"]
        advantages = of_turn[actions.turn_offsets[number] : actions.turn_offsets[number + 1]]
        turns = zip(replies, episode.turn_rewards, advantages, strict=True)
        print("    " + " | ".join(f"{reply!r} reward {r:+.1f} advantage {a:+.2f}" for reply, r, a in turns))
    print("the first of them, token by token: a reward stands at its turn's last token, an advantage at all of them")
    for i in range(actions.token_offsets[1]):
        turn, reward, advantage = actions.turn_index[i], actions.token_rewards[i], result.advantages[i]
        print(f"    turn {turn} token {i}: reward {reward:+.1f} advantage {advantage:+.2f}")


async def main() -> None:
    torch.set_num_threads(1)  # more are slower on a model so small
    demonstrations = list(
        play(HigherLower(), 600, seed=0, mistake_rate=0.5, mistake_weight=1.0)
    )  # half of it guesses blindly
    tokenizer = build_tokenizer(message["content"] for episode in demonstrations for message in episode.messages)
    model = build_model(len(tokenizer), hidden=64, layers=2, max_context=256, eos_token_id=tokenizer.eos_token_id)
    renderer = Renderer(tokenizer)
    learner = Learner(model, actor=ActorSection(lr=2e-3))
    examples = [encode(episode, renderer, tokenizer).trajectory for episode in demonstrations]
    for start in range(0, len(examples), 10):  # a warm start: random weights would never say a number
        metrics = learner.update_sft(examples[start : start + 10])
    print(f"warm start: loss {metrics['loss']:.2f}")

    model.load_state_dict(learner.weights())  # the learner trains a copy, and so does the engine play with one
    engine = TorchEngine(
        model, TorchEngineSection(max_slots=32, max_context=256, threads=1), stop_token_ids=renderer.stop_token_ids
    )
    async with (
        Backend(EnvSpec("examples/higher-lower")) as backend,
        Collector(
            engine,
            renderer,
            backend,
            tasks=HigherLower().tasks.size,
            rollout=RolloutSection(n=6, groups_per_batch=7, max_response_length=8),
        ) as collector,
    ):
        for _ in range(ITERATIONS):
            batch = await collector.next_batch()
            learn(learner, batch)
            await collector.update_weights(learner.weights(), batch.version + 1)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
