"""Our own collector on an environment behind a server: the same trajectories as on the environment itself."""

from collector_helpers import collect, prompt_text, tokens
from served import registered, running

from benchmarks.simulation.scripted import Call, Reply, ScriptedEngine
from trainers.rollout.environments import EnvSpec

ENV = "textenv/gsm8k-interact"


def script(call: Call) -> Reply:
    """A number that depends on the prompt and the seed; easy problems have small answers."""
    return Reply(tokens(f"#### {(len(prompt_text(call)) + (call.sampling.seed or 0)) % 12}"), latency=0.001)


async def collected(env_id, **kwargs):
    engine = ScriptedEngine(script, vocab_size=128)
    (batch,) = await collect(engine, EnvSpec(env_id, kwargs), n=4, groups_per_batch=8, filter_zero_variance=False)
    return [
        (
            episode.messages,
            episode.token_ids.tolist(),
            episode.action_mask.tolist(),
            episode.turn_rewards.tolist(),
            episode.terminated,
            episode.truncated,
            episode.status,
            episode.task_key,
        )
        for episode in batch.trajectories
    ]


async def test_collector_sees_no_difference():
    with running(registered(ENV)) as server:
        direct = await collected(ENV)
        remote = await collected("textenv/remote", url=server.url, env=ENV)
        assert remote == direct
        assert server.metrics()["opened"] >= 32
    assert len(direct) == 32
    assert {len(row[3]) for row in direct} != {1}, "every episode ended at once, which proves little"
