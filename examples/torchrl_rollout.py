"""A text environment in TorchRL: a rollout with a scripted policy, and a collector.

pip install 'textenvs[torchrl]'
python examples/torchrl_rollout.py
"""

from torchrl.collectors import Collector

from textenvs.integrations.torchrl import TextGymWrapper, drop_failed


def policy(td):
    """Ask first, then answer; a model would replace this."""
    has_asked = any(message["role"] == "assistant" for message in td["observation"])
    td["action"] = "#### 7" if has_asked else "Is that all there is to know?"
    return td


env = TextGymWrapper("textenv/clarify")
start = env.reset(seed=3)  # this very episode
rollout = env.rollout(8, policy, auto_reset=False, tensordict=start)
for step in rollout:
    print(f"assistant: {step['action']}")
    print(
        f"  reward {step['next', 'reward'].item():+.2f}, terminated {step['next', 'terminated'].item()}, "
        f"stop {step['next', 'info']['stop']}"
    )

collector = Collector(lambda: TextGymWrapper("textenv/clarify"), policy, frames_per_batch=8, total_frames=16)
for number, batch in enumerate(collector):
    complete = drop_failed(batch)
    print(
        f"batch {number}: {len(complete)} turns, {int(complete['next', 'done'].sum())} ends, "
        f"mean turn reward {complete['next', 'reward'].mean().item():+.3f}"
    )
collector.shutdown()
