"""Play textenv/gsm8k-interact by hand, then several of it as one vector environment.

An observation is the conversation so far, an action is the assistant's text. Every turn has a reward of its own, and
`info["terms"]` lists its terms. Here a script replies: first a careless reply, then the worked answer.

    python examples/play_gsm8k.py
"""

import gymnasium
import numpy as np

import textenvs  # registers the environments

EASY = {"level": "easy"}  # generated problems of a few words; "medium", "hard" and "expert" tell stories


def play_one(seed: int) -> None:
    env = gymnasium.make("textenv/gsm8k-interact", **EASY)
    script: textenvs.TextEnv = env.unwrapped  # it has a scripted expert, and careless replies
    rng = np.random.default_rng(seed)

    conversation, info = env.reset(seed=seed)
    print(f"task {info['task_key']}")
    rewards: list[float] = []
    terminated = truncated = False
    while not (terminated or truncated):
        reply = script.demonstration(rng) if rewards else script.careless_reply(rng)
        printed = len(conversation) if rewards else 0
        conversation, reward, terminated, truncated, info = env.step(reply)
        rewards.append(reward)
        for message in conversation[printed:]:
            print(f"  {message['role']}: {message['content']}")
        print(f"  -> turn {len(rewards)}: reward {reward:+.2f} = {info['terms']}")
    # The first turn is paid for itself: wrong. The second is right, minus the cost of an extra turn.
    print(f"stop: {info['stop']}, turn rewards {rewards}, return {sum(rewards):.2f}")
    env.close()


def play_many(count: int, steps: int) -> None:
    envs = gymnasium.make_vec("textenv/gsm8k-interact", num_envs=count, **EASY)
    rng = np.random.default_rng(0)
    envs.reset(seed=0)  # environment i gets the seed 0 + i
    for step in range(steps):
        # Environment 0 always knows; the others are careless now and then. An environment whose episode is over starts
        # the next one at the following step, whatever the action is (Gymnasium's autoreset mode NEXT_STEP).
        replies = [
            env.careless_reply(rng) if number > 0 and rng.random() < 0.5 else env.demonstration(rng)
            for number, env in enumerate(envs.envs)
        ]
        conversations, rewards, terminated, truncated, _ = envs.step(replies)
        print(
            f"step {step}: rewards {rewards.round(2).tolist()}, over {(terminated | truncated).tolist()}, "
            f"messages {[len(conversation) for conversation in conversations]}"
        )
    envs.close()


if __name__ == "__main__":
    print("known:", ", ".join(textenvs.list_environments()))
    print("\n== one environment")
    play_one(seed=7)
    print("\n== a vector of three")
    play_many(count=3, steps=4)
