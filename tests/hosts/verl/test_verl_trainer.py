"""verl's default trainer, from the agent loop to the advantages, through its own TransferQueue on a local Ray."""

import asyncio
from types import SimpleNamespace

import adapter_kit
import numpy as np
import pytest
import ray
import torch
import transfer_queue
from test_verl_contexts import CONTEXTS, LINES, OWN, RELAY, Script
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.utils.transferqueue_utils import KVBatchMeta
from verl.workers.rollout.replica import TokenOutput

from textenvs.integrations import EpisodeSpec
from textenvs.integrations.rows import write_episodes

SIBLINGS = 3
pytestmark = pytest.mark.timeout(400)  # each of verl's actors imports all of verl, beside the rest of the suite


@pytest.fixture(scope="module")
def queue(config):
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    settings = config.transfer_queue.copy()
    settings.enable = True
    settings.backend.SimpleStorage.num_data_storage_units = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFER_QUEUE_ENABLE", "1")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        transfer_queue.init(settings)
        yield transfer_queue
        transfer_queue.close()
    ray.shutdown()


def collect(config, server, tokenizer, path, uids):
    """One batch of the trainer: its dataset's rows, its worker, its queue."""
    dataset = RLHFDataset(str(path), tokenizer, config.data)
    rows = collate_fn([dataset[i] for i in range(len(uids))])
    rows["uid"] = np.array(uids, dtype=object)
    batch = tensordict_utils.get_tensordict(rows)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 1)
    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class(config, server)

    async def generate():
        await worker.generate_sequences(batch)
        await asyncio.gather(*worker.background_tasks)

    asyncio.run(generate())


def test_turn_rewards_arrive_in_advantages(queue, config, tokenizer, server, tmp_path):
    config = config.copy()
    config.actor_rollout_ref.rollout.n = SIBLINGS
    config.algorithm.norm_adv_by_std_in_grpo = False
    played = adapter_kit.episodes("textenv/gsm8k-interact", 4)
    path = write_episodes("verl", [episode.spec for episode in played], tmp_path / "train.parquet")

    # Siblings play the same episode, each with replies of its own.
    scripts = {}
    for episode in played:
        server.learn(episode.opening, [])
        for sibling in range(SIBLINGS):
            replies = ["#### 1"] * 9 if sibling == 1 else episode.replies
            scripts[episode.opening[-1]["content"], sibling] = ["I do not know."] * 9 if sibling == 2 else replies
    seen = {}
    generate = server.generate

    async def by_sibling(request_id, *, prompt_ids, **keywords):
        if request_id not in server.script:
            text = tokenizer.decode(prompt_ids)
            sibling = seen[text] = seen.get(text, -1) + 1
            server.script[request_id] = next(
                script for (question, number), script in scripts.items() if question in text and number == sibling
            )
        return await generate(request_id, prompt_ids=prompt_ids, **keywords)

    server.generate = by_sibling
    collect(config, server, tokenizer, path, [f"prompt{i}" for i in range(len(played))])

    keys = [f"prompt{i}_{session}_0" for i in range(len(played)) for session in range(SIBLINGS)]
    fields = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["extra_fields", "rollout_log_probs"])
    about = fields.pop("extra_fields").tolist()
    fields["old_log_probs"] = fields.pop("rollout_log_probs")
    queue.kv_batch_put(keys=keys, partition_id="train", fields=fields)
    meta = KVBatchMeta(keys=keys, partition_id="train", tags=[{} for _ in keys])
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), meta, {})

    result = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages", "response_mask"])
    rewards = [record["turn_scores"] for record in about]
    to_go = [[sum(turns[turn:]) for turn in range(len(turns))] for turns in rewards]
    assert {tuple(values) for values in rewards} >= {tuple(one.rewards) for one in played}
    for number, (advantages, mask) in enumerate(zip(result["advantages"], result["response_mask"], strict=True)):
        siblings = set(range(number // SIBLINGS * SIBLINGS, (number // SIBLINGS + 1) * SIBLINGS)) - {number}
        expected = torch.zeros(len(mask))
        for turn, (start, end) in enumerate(about[number]["turn_spans"]):
            sibling_returns = [to_go[other][turn] for other in siblings if len(to_go[other]) > turn]
            expected[start:end] = to_go[number][turn] - (
                sum(sibling_returns) / len(sibling_returns) if sibling_returns else 0.0
            )
        torch.testing.assert_close(advantages, expected, atol=1e-5, rtol=0)
        assert (advantages[mask == 0] == 0).all()
    assert any(
        len(set(np.round(column[mask == 1].tolist(), 6))) > 1
        for column, mask in zip(result["advantages"], result["response_mask"], strict=True)
    )


def test_contexts_pass_through_verls_queue(queue, config, tokenizer, tmp_path, monkeypatch):
    config = config.copy()
    config.actor_rollout_ref.rollout.n = SIBLINGS
    config.algorithm.adv_estimator = "grpo"
    config.algorithm.norm_adv_by_std_in_grpo = False
    monkeypatch.setitem(_agent_loop_registry["textenv"], "environments", OWN)
    scripts = [LINES, ["1 ", "1."], ["7."]]
    server = Script(tokenizer, None)
    generate = server.generate

    async def by_sibling(request_id, **keywords):
        if request_id not in server.script:
            server.lines = scripts[len(server.script)]
        else:
            server.lines = server.script[request_id]
        return await generate(request_id, **keywords)

    monkeypatch.setattr(server, "generate", by_sibling)
    path = write_episodes("verl", [RELAY], tmp_path / "train.parquet")
    collect(config, server, tokenizer, path, ["relay"])
    keys = sorted(key for key in queue.kv_list("train")["train"] if key.startswith("relay_"))
    sessions = [key.split("_")[1] for key in keys]
    assert sorted(map(sessions.count, set(sessions))) == [1, 1, len(CONTEXTS)]
    fields = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["rollout_log_probs"])
    fields["old_log_probs"] = fields.pop("rollout_log_probs")
    queue.kv_batch_put(keys=keys, partition_id="train", fields=fields)
    meta = KVBatchMeta(keys=keys, partition_id="train", tags=[{} for _ in keys])
    PPOTrainer._compute_advantage(SimpleNamespace(config=config), meta, {})
    names = ["advantages", "response_mask", "rm_scores"]
    result = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=names)
    for advantages, mask, scores in zip(*(result[name] for name in names), strict=True):
        assert advantages.tolist() == [(float(scores.sum()) - 10.0) * sampled for sampled in mask.tolist()]


def test_failed_episode_is_dropped_without_its_siblings(queue, config, tokenizer, server, tmp_path, monkeypatch):
    config = config.copy()
    config.actor_rollout_ref.rollout.n = SIBLINGS
    played = adapter_kit.direct(EpisodeSpec("textenv/clarify", 0))
    server.learn(played.opening, played.replies)
    generate, sessions = server.generate, []

    async def sometimes(request_id, **keywords):
        sessions.append(asyncio.current_task())
        if sessions[-1] is sessions[0]:  # all attempts of one sibling
            return TokenOutput(token_ids=[], log_probs=[], stop_reason="completed")
        return await generate(request_id, **keywords)

    monkeypatch.setattr(server, "generate", sometimes)
    path = write_episodes("verl", [played.spec], tmp_path / "train.parquet")
    collect(config, server, tokenizer, path, ["failing"])
    records = queue.kv_list("train")["train"]
    tags = {key: tag["status"] for key, tag in records.items() if key.startswith("failing")}
    assert tags.pop("failing") == "failure"
    assert list(tags.values()) == ["success"] * (SIBLINGS - 1)
