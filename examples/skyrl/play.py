"""Two episodes in SkyRL-Gym, as SkyRL's generator makes and plays them: rows, environments, rewards a turn."""

import tempfile
from pathlib import Path

import skyrl_gym
from pyarrow import parquet

from textenvs.integrations import episode_specs
from textenvs.integrations.rows import write_episodes
from textenvs.integrations.skyrl import register

register("textenv/gsm8k-interact")
with tempfile.TemporaryDirectory() as folder:
    path = write_episodes("skyrl", episode_specs("textenv/gsm8k-interact", 2), Path(folder) / "train.parquet")
    rows = parquet.read_table(path).to_pylist()

for row in rows:
    prompt, env_class = row.pop("prompt"), row.pop("env_class")
    env = skyrl_gym.make(env_class, env_config={}, extras={**row, "max_turns": 3})
    messages, _ = env.init(prompt)
    print(f"{env_class}: {messages[-1]['content']}")
    done = False
    while not done:
        reply = "#### 1"
        step = env.step(reply)
        done = step["done"]
        seen = " ".join(message["content"] for message in step["observations"])
        print(
            f"  {reply!r}: reward {step['reward']:+.2f}, done={done}, stop {step['metadata']['stop']} {seen}".rstrip()
        )
    print(f"  {env.get_metrics()}")
    env.close()
