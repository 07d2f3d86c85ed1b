"""``python -m trainers.ppo`` as a whole: what it writes, and every option once."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from ppo_runs import (
    QUICK,
    ROOT,
    SMALL,
    arguments,
    comparable,
    each_batch,
    episodes_of,
    finite,
    in_process,
    metrics_of,
    refused,
    training_of,
)
from transformers import AutoModelForCausalLM, MistralConfig, Qwen3MoeConfig

from trainers.algorithms.estimators import ESTIMATORS
from trainers.builders.learner import actor_steps
from trainers.command_line import load_config, resolve
from trainers.models.tiny import build_tokenizer
from trainers.ppo import main, train
from trainers.run import Run, assemble
from trainers.trajectory import Trajectory, read_parquet
from trainers.update import Update

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k"


# ------------------------------------------------------------------ a whole run


def test_whole_run_writes_everything(tmp_path, capsys):
    folder = tmp_path / "run"
    dumps = [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    freq = ["trainer.total_iterations=4", "trainer.save_freq=1", "trainer.test_freq=2", "trainer.keep_last_n=2"]
    assert main(arguments(folder, *dumps, *freq)) == 0

    rows = metrics_of(folder)
    assert [(row["step"], "val/reward" in row) for row in rows] == [
        *((0, True), (1, False), (2, False), (2, True), (3, False), (4, False), (4, True))
    ]
    assert all(finite(row) for row in rows)
    expected = {"train/reward", "train/solved", "actor/entropy", "actor/approx_kl_k3", "actor/grad_norm", "critic/loss"}
    expected |= {"train/turn_tokens", "perf/tokens_per_s", "time/rollout_s", "time/learn_s", "time/publish_s"}
    assert expected <= set(training_of(folder)[0])

    with Image.open(folder / "curves.png") as curves:
        assert min(curves.size) > 300
    assert list((folder / "tensorboard").iterdir())
    checkpoints = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert checkpoints == ["iteration_000003", "iteration_000004"]

    for number in range(1, 5):
        episodes = read_parquet(tmp_path / "train" / f"{number:06d}.parquet")
        assert len(episodes) == 4
        row = training_of(folder)[number - 1]
        assert np.mean([episode.total_reward for episode in episodes]) == pytest.approx(row["train/reward"])
        assert {int(v) for episode in episodes for v in episode.weight_version[episode.action_mask]} == {number - 1}
        assert all(episode.messages[0]["role"] == "user" for episode in episodes)
    assert [len(read_parquet(tmp_path / "val" / f"{n:06d}.parquet")) for n in (0, 2, 4)] == [3, 3, 3]
    validated = [{e.task_key for e in read_parquet(tmp_path / "val" / f"{n:06d}.parquet")} for n in (0, 4)]
    assert validated[0] == validated[1], "validations must be of the same tasks"

    output = capsys.readouterr().out
    for words in (
        *(
            "warm start: 3 steps, loss",
            "careless: 2 steps, loss",
            "validation 0/4  reward",
            "iteration  4/4  reward",
            "validation 4/4",
            "KL",
            "entropy",
        ),
        *("tokens/turn", "tokens/s", "user: ", "assistant: ", "turn 1: reward"),
        *("episodes solved", "first reply right", "iteration 0 -> 4", f"curves:  {folder}/curves.png"),
    ):
        assert words in output, words

    assert main(arguments(folder, *dumps, *freq)) == 0  # once more: there is nothing left to do, and it says so
    assert "this run is finished (4 iterations)" in capsys.readouterr().out
    assert metrics_of(folder) == rows


def test_held_out_tasks_are_not_trained_on(tmp_path):
    """The default: validation takes the generated problems' other half."""
    dumps = [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    overrides = ["env.id=textenv/gsm8k-interact", 'env.val_kwargs={"split": "test"}', "data.val_size=16"]
    in_process(tmp_path / "run", *dumps, *overrides, "trainer.total_iterations=2")
    train_, val = (
        {episode.messages[0]["content"] for path in (tmp_path / name).iterdir() for episode in read_parquet(path)}
        for name in ("train", "val")
    )
    assert len(val) == 16
    assert not train_ & val


@pytest.mark.slow  # compat/test_verl_commands_run.py trains on files of rows
@pytest.mark.skipif(not (GSM8K / "train.jsonl").is_file(), reason="the real GSM8K rows are not there")
def test_real_rows(tmp_path):
    files = [f"data.train_files={GSM8K}/train.jsonl", f"data.val_files={GSM8K}/test.jsonl"]
    dumps = [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    overrides = ["engine.max_context=1024", "data.val_size=4", "rollout.max_response_length=32", "model.vocab_size=512"]
    overrides += ["trainer.logger=jsonl"]
    folder = tmp_path / "run"
    assert main(arguments(folder, *files, *dumps, *overrides, "trainer.total_iterations=2")) == 0
    rows = metrics_of(folder)
    assert len(rows) == 4
    assert all(finite(row) for row in rows)
    episodes = [e for n in (1, 2) for e in read_parquet(tmp_path / "train" / f"{n:06d}.parquet")]
    assert {episode.data_source for episode in episodes} == {"openai/gsm8k"}
    assert all(episode.task_key.startswith("train/") for episode in episodes)
    first = read_parquet(tmp_path / "val/000000.parquet")
    assert [episode.task_key for episode in first] == [f"test/{n}" for n in (1, 2, 3, 4)]


# ------------------------------------------------------------------ every option


#: Each line is a run: options that know nothing of each other are in one, which an error's message tells apart.
RECOMPUTED = "actor.old_logprobs=recompute actor.importance_correction"
KL = "actor.use_kl_loss=true actor.kl_loss_coef=0.1 actor.kl_loss_type"
KL_IN_REWARD = "algorithm.use_kl_in_reward=true algorithm.kl_penalty"
ESTIMATOR = "algorithm.adv_estimator"
OPTIONS = [
    f"{ESTIMATOR}=dr_grpo {KL}=k1 actor.policy_loss=gspo actor.loss_agg_mode=seq-mean-token-mean",
    f"{ESTIMATOR}=opo {KL}=k2 actor.policy_loss=cispo actor.clip_ratio_low=1.0 actor.loss_agg_mode=token-mean",
    f"{ESTIMATOR}=gdpo {KL}=k3 actor.policy_loss=sapo actor.tau_neg=1.5 actor.loss_agg_mode=seq-mean-token-sum",
    f"{ESTIMATOR}=turn_gae {KL_IN_REWARD}=k1 algorithm.gamma=0.9 algorithm.lam=0.8 critic.cliprange_value=null",
    f"{ESTIMATOR}=gigpo algorithm.step_weight=0.5 algorithm.anchor=history algorithm.norm_by_std=false "
    f"{KL_IN_REWARD}=low_var_kl actor.policy_loss=clip_cov actor.clip_cov_ratio=0.1 actor.clip_cov_lb=0.01 "
    "actor.loss_agg_mode=seq-mean-token-sum-norm",
    f"{ESTIMATOR}=gagpo algorithm.gamma=0.9 algorithm.lam=0.5 algorithm.truncated=drop actor.loss_agg_mode=token-mean",
    f"{ESTIMATOR}=graphgpo algorithm.step_weight=0.5 algorithm.distance_discount=0.3 algorithm.anchor=observation",
    f"{ESTIMATOR}=maxrl algorithm.norm_adv=false actor.policy_loss=ppo",
    f"{ESTIMATOR}=reinforce_pp {KL_IN_REWARD}=abs actor.policy_loss=kl_cov actor.kl_cov_ratio=0.1 "
    "actor.ppo_kl_coef=1.0 actor.ppo_epochs=2",
    f"{ESTIMATOR}=remax rollout.n=1 rollout.groups_per_batch=4 rollout.filter_zero_variance=true "
    f"{RECOMPUTED}=token_tis actor.tis_cap=1.5 trainer.fsdp=never",
    f"{ESTIMATOR}=reinforce_pp_baseline {RECOMPUTED}=sequence_tis actor.rejection=geometric "
    "model.attn_implementation=eager trainer.async_save=true",
    f"{ESTIMATOR}=fork {RECOMPUTED}=decoupled actor.tis_cap=null actor.rejection=token rollout.max_running=auto "
    "engine.replicas=2",
    f"{ESTIMATOR}=grpo_passk {RECOMPUTED}=token_tis actor.importance_batch_normalize=true "
    "model.enable_gradient_checkpointing=true model.use_remove_padding=true trainer.peak_tflops=1",
    f"{ESTIMATOR}=grpo algorithm.norm_by_std=false algorithm.truncated=drop actor.clip_ratio_c=3.0 "
    f"actor.entropy_coeff=0 actor.lr_warmup_steps=3 actor.weight_decay=0.1 {RECOMPUTED}=sequence_tis "
    "actor.importance_batch_normalize=true actor.rejection=seq_max_k3 actor.rejection_kl=0.1",
    f"{ESTIMATOR}=bilevel_gae algorithm.turn_gamma=0.9 algorithm.turn_lam=0.8 algorithm.lam=0.7 model.dtype=bfloat16",
    f"{ESTIMATOR}=gae rollout.retries=0 rollout.top_p=0.8 rollout.top_k=20 rollout.min_p=0.01 "
    f"rollout.keep_sampling_mask=true rollout.temperature=1.3 {RECOMPUTED}=token_tis actor.use_kl_loss=true",
    f"{ESTIMATOR}=rae rollout.n=1 rollout.groups_per_batch=4 actor.policy_loss=gspo_token "
    "actor.clip_ratio_low=0.001 actor.clip_ratio_high=0.002 actor.ppo_epochs=2 "
    "env.id=program_envs:tests/blocking env.backend=thread env.workers=2",
    f"{ESTIMATOR}=rloo actor.policy_loss=geo_mean actor.clip_ratio_low=0.4 actor.ppo_epochs=2 env.backend=process "
    "env.workers=1 algorithm.baseline=mixed algorithm.norm_adv=false rollout.max_running=1 data.shuffle=false "
    "env.kwargs.tasks=3",
    f"{ESTIMATOR}=passk rollout.n=4 algorithm.pass_k=3 algorithm.norm_by_std=false actor.policy_loss=dppo_kl "
    "actor.clip_ratio_low=0.05 actor.clip_ratio_high=0.05 actor.clip_ratio_c=20",
    f"{ESTIMATOR}=turn_grpo algorithm.zero_pad=true algorithm.outcome_mix=0.3 algorithm.norm_by_std=true "
    "model.lora_rank=4 model.target_modules=[q_proj,v_proj] actor.use_kl_loss=true trainer.fsdp=always",
]


def estimator_of(options: str) -> str:
    return options.split()[0].partition("=")[2]


def test_every_estimator_is_among_options():
    assert {estimator_of(options) for options in OPTIONS} == set(ESTIMATORS)


#: Of these, a loss, a baseline or a sum differs from one that stays, and has an oracle of its own in algorithms/.
AS_OTHERS = ("bilevel_gae", "dr_grpo", "gagpo", "gdpo", "maxrl", "opo", "passk", "rae", "reinforce_pp_baseline", "rloo")


@pytest.mark.parametrize(
    "options", [pytest.param(o, marks=[pytest.mark.slow] * (estimator_of(o) in AS_OTHERS)) for o in OPTIONS]
)
def test_every_estimator_and_option_trains(tmp_path, options):
    before: dict[str, torch.Tensor] = {}
    overrides = [*options.split(), "trainer.total_iterations=1"]
    run = in_process(tmp_path, *overrides, look=lambda run: before.update(run.learner.weights()))
    (row,) = training_of(tmp_path)
    assert finite(row)
    assert row["actor/grad_norm"] > 0
    assert row["actor/advantage_std"] > 0
    assert ("critic/loss" in row) == ("critic" in ESTIMATORS[estimator_of(options)].needs)
    assert ("actor/greedy_reward" in row) == (estimator_of(options) == "remax")
    assert ("actor/anchored" in row) == (estimator_of(options) in ("gigpo", "gagpo"))
    assert ("actor/ranked" in row) == (estimator_of(options) == "graphgpo")
    assert any(not torch.equal(value, before[name]) for name, value in run.learner.weights().items())
    assert run.collector._engine.version == 1
    if "use_kl" in options:  # before the first update the policy is the reference
        assert row["actor/ref_kl"] == pytest.approx(0.0, abs=1e-5)
    if "keep_sampling_mask" in options:
        assert row["actor/entropy"] < np.log(20), "of the 20 likeliest tokens"
    if "_cov" in options:
        assert row["actor/selected"] == pytest.approx(0.1, abs=0.03)
    if "recompute" in options:
        assert row["actor/importance_mean"] == pytest.approx(1.0, abs=1e-4)
        assert row["actor/importance_clipped"] == 0.0
        assert row["actor/mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
        assert row.get("actor/rejected", 0.0) == 0.0


def test_old_weights_are_seen_and_corrected(tmp_path):
    """One iteration behind, and the policy moves: weights are not 1, and a narrow band rejects tokens."""
    overrides = ["rollout.staleness=1", "actor.old_logprobs=recompute", "actor.importance_correction=decoupled"]
    overrides += ["actor.rejection=token", "actor.rejection_low=0.99", "actor.rejection_high=1.01", "actor.lr=0.01"]
    in_process(tmp_path, *overrides, "trainer.total_iterations=3")
    first, *_, last = training_of(tmp_path)
    assert first["actor/rejected"] == 0.0, "nothing is old yet"
    assert 0.0 < last["actor/rejected"] <= 1.0
    assert last["actor/mismatch_kl"] > 1e-6
    assert last["actor/importance_ess"] < 1.0


def test_greedy_episodes_are_compared_not_trained(tmp_path):
    seen: list[Any] = []
    overrides = [
        "algorithm.adv_estimator=remax",
        "algorithm.norm_adv=false",
        f"trainer.rollout_data_dir={tmp_path}/dumps",
    ]
    run = in_process(tmp_path, *overrides, "trainer.total_iterations=1", look=each_batch(seen.append))
    for number, (batch, row) in enumerate(zip(seen, training_of(tmp_path), strict=True), 1):
        episodes = read_parquet(tmp_path / "dumps" / f"{number:06d}.parquet")
        assert len(episodes) == 4
        assert not any("greedy" in episode.episode_id for episode in episodes)
        greedy = {episode.group_id: episode.total_reward for episode in batch.of("greedy")}
        assert set(greedy) == {episode.group_id for episode in episodes}
        assert all("greedy" in episode.episode_id for episode in batch.of("greedy"))
        assert row["actor/greedy_reward"] == pytest.approx(np.mean([*greedy.values()]))
    batch = seen[-1]
    greedy = {episode.group_id: episode.total_reward for episode in batch.of("greedy")}
    advantages = Update(run.config).prepare(batch.episodes, run.learner).advantages
    expected = [
        episode.total_reward - greedy[episode.group_id]
        for episode in batch.trajectories
        for _ in range(int(episode.action_mask.sum()))
    ]
    np.testing.assert_allclose(advantages.advantages, expected)


def test_run_continues_after_replica_loss(tmp_path):
    engines: list[Any] = []

    def look(run: Run) -> None:
        engine, report = run.collector._engine, run.reporter.iteration
        engines.append(engine)

        def fail(*_: object) -> None:
            raise MemoryError("injected")

        def report_and_break(step: int, *rest: Any) -> None:
            report(step, *rest)
            if step == 1:
                engine._replicas[0].engine._scheduler._decoder.logits = fail

        run.reporter.iteration = report_and_break  # type: ignore[method-assign]

    overrides = ["engine.replicas=2", "trainer.total_iterations=3", f"trainer.rollout_data_dir={tmp_path}/dumps"]
    in_process(tmp_path, *overrides, look=look)
    assert len(training_of(tmp_path)) == 3
    assert engines[0].stats()["replicas_lost"] == 1
    assert engines[0].stats()["retries"] >= 1
    for number in range(1, 4):
        episodes = read_parquet(tmp_path / "dumps" / f"{number:06d}.parquet")
        assert {int(v) for episode in episodes for v in episode.weight_version[episode.action_mask]} == {number - 1}


# test_torch_models.py has the variants of the others.
@pytest.mark.parametrize("family", ["qwen2", *(pytest.param(f, marks=pytest.mark.slow) for f in ("qwen3", "llama"))])
def test_engine_and_learner_agree_on_every_turn(tmp_path, family):
    """The log-probabilities sampled with are those that the learner computes from the recorded tokens."""
    overrides = [f"model.family={family}", "model.layers=2", "rollout.n=4", "actor.old_logprobs=recompute"]
    in_process(tmp_path, *overrides, "trainer.total_iterations=2")
    rows = training_of(tmp_path)
    assert rows[0]["actor/outside_clip_first"] == 0.0
    assert max(row["actor/engine_logprob_gap"] for row in rows) < 1e-4
    assert max(row["train/turns"] for row in rows) > 1, "later turns must be among those compared"


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (MistralConfig, {"sliding_window": 16}),
        (Qwen3MoeConfig, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    ],
)
async def test_engine_and_learner_agree_for_module_families(tmp_path, kind, shape):
    """Weights travel too: the gap of later iterations is as small as the first one's."""
    tokenizer = build_tokenizer(["How many? 12 apples."] * 3, vocab_size=300)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = AutoModelForCausalLM.from_config(kind(**sizes, **heads, **ends, **shape, max_position_embeddings=256))
    for one in (tokenizer, model):
        one.save_pretrained(tmp_path / "model")
    argv = [argument for argument in (*SMALL, *QUICK) if not argument.startswith(("warm_start.", "algorithm."))]
    argv += [f"model.path={tmp_path}/model", f"trainer.default_local_dir={tmp_path}/run", "rollout.n=4"]
    argv += ["algorithm.adv_estimator=grpo", "actor.old_logprobs=recompute", "trainer.total_iterations=2"]
    config = load_config(argv)[0]
    async with assemble(config) as run:
        await train(run)
    rows = training_of(tmp_path / "run")
    assert len(rows) == 2
    assert max(row["actor/engine_logprob_gap"] for row in rows) < 1e-4
    assert any(row["actor/grad_norm"] > 0 for row in rows), "else the weights stayed as they were"


def test_epochs_and_mini_batches_are_optimizer_steps(tmp_path):
    run = in_process(tmp_path, "actor.ppo_epochs=2", "actor.mini_batches=3", "trainer.total_iterations=1")
    assert run.learner.actor_optimizer.step_count == run.learner.critic_optimizer.step_count == 2 * 3
    assert training_of(tmp_path)[0]["actor/ratio"] != 1.0


def test_lost_episodes_reduce_optimizer_steps(tmp_path):
    loses_one = each_batch(lambda batch: replace(batch, episodes=batch.episodes[1:]))
    run = in_process(tmp_path, "rollout.n=3", "actor.mini_batches=6", "trainer.total_iterations=1", look=loses_one)
    assert run.learner.actor_optimizer.step_count == 5


def test_critic_warms_up_alone(tmp_path):
    run = in_process(tmp_path, "critic.warmup=1", "actor.mini_batches=1", "trainer.total_iterations=2")
    assert (run.learner.actor_optimizer.step_count, run.learner.critic_optimizer.step_count) == (1, 2)
    rows = training_of(tmp_path)
    assert ["actor/loss" in row for row in rows] == [False, True]
    assert all("critic/loss" in row for row in rows)


def test_learning_rate_schedule_counts_actor_steps():
    with_critic = ["algorithm.adv_estimator=gae", "critic.warmup=20", "trainer.total_iterations=100"]
    assert actor_steps(resolve(with_critic)[0]) == 80 * 2


def test_weight_of_kl_is_steered(tmp_path):
    """``beta <- beta (1 + clip(kl / target - 1, -0.2, 0.2) n / horizon)``, with ``n`` episodes an iteration."""
    kl = ["algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=k3", "algorithm.kl_ctrl.kl_coef=0.1"]
    steer = ["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.001", "algorithm.kl_ctrl.horizon=40"]
    in_process(tmp_path, *kl, *steer, "actor.lr=0.01", "trainer.total_iterations=4")
    rows = training_of(tmp_path)
    beta = 0.1
    for row in rows:
        assert row["actor/kl_coef"] == pytest.approx(beta)
        beta *= 1 + np.clip(row["actor/ref_kl"] / 0.001 - 1, -0.2, 0.2) * 4 / 40
    assert rows[1]["actor/kl_coef"] < 0.1  # at first policy and reference are the same
    assert rows[3]["actor/kl_coef"] > rows[1]["actor/kl_coef"]


def groups_in(folder: Path) -> list[int]:
    def group(episode: Trajectory) -> int:
        return int(episode.group_id.removeprefix("g"))

    paths = sorted(folder.iterdir())
    return [number for path in paths for number in dict.fromkeys(map(group, read_parquet(path)))]


@pytest.mark.parametrize("mode", ["keep", "abort", pytest.param("wait", marks=pytest.mark.slow)])  # rollout/ has each
def test_episodes_continue_while_learner_learns(tmp_path, mode):
    overrides = ["rollout.staleness=1", "rollout.window=2", f"rollout.update_mode={mode}", "trainer.save_freq=2"]
    overrides += [f"trainer.rollout_data_dir={tmp_path}/dumps"]
    in_process(tmp_path, *overrides, "trainer.total_iterations=2")
    run = in_process(tmp_path, *overrides, "trainer.total_iterations=4")
    rows = training_of(tmp_path)
    assert all(finite(row) for row in rows)
    stale = [row["rollout/staleness_max"] for row in rows]
    assert set(stale) == {0.0, 1.0}, "some episodes are older than the weights they train, none by more than asked for"
    assert stale[0] == stale[2] == 0.0, "at a start and after a resumption there is nothing old"
    done = groups_in(tmp_path / "dumps")
    waiting = run.collector.frontier()["slots"]
    assert sorted(done + waiting["in_flight"]) == list(range(waiting["next_group"])), "each group once, across resuming"


def test_validation_does_not_change_training(tmp_path):
    in_process(tmp_path / "a", "trainer.total_iterations=2")
    in_process(tmp_path / "b", "trainer.total_iterations=2", "trainer.test_freq=1", "trainer.val_before_train=true")
    for alone, beside in zip(*(comparable(training_of(tmp_path / name)) for name in ("a", "b")), strict=True):
        # Which requests share a step of the engine changes the last bit of what it computes.
        assert beside == pytest.approx(alone, rel=1e-3, abs=1e-5)


def test_trace_shows_phases_and_episodes(tmp_path):
    overrides = ["rollout.staleness=1", "trainer.total_iterations=2", "trainer.test_freq=1"]
    in_process(tmp_path, *overrides, f"trainer.trace_file={tmp_path}/trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(processes) == {"trainer", "episodes", "evaluation"}
    phases = sorted((e for e in events if e["ph"] == "X" and e["pid"] == processes["trainer"]), key=lambda e: e["ts"])
    assert [e["name"] for e in phases] == ["save", *["rollout", "learn", "publish", "validate"] * 2, "save"]
    assert all(one["ts"] + one["dur"] <= other["ts"] + 0.01 for one, other in pairwise(phases))
    for name, row in zip(("learn", "publish"), ("time/learn_s", "time/publish_s"), strict=True):
        drawn = [e["dur"] / 1e6 for e in phases if e["name"] == name]
        assert drawn == pytest.approx([metrics[row] for metrics in training_of(tmp_path)], abs=1e-4)
    assert [e["name"] for e in events if e["ph"] == "i"] == ["weights 1", "weights 2"]
    played = [e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("eval")]
    assert len(played) == 2 * 3, "two validations of three tasks"


REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    replies = [m["content"] for m in extra_info["messages"] if m["role"] == "assistant"]
    assert solution_str == "\\n\\n".join(replies), "nothing but the policy's words"
    assert data_source and ground_truth is not None
    return {"score": 0.25 + len(replies), "seen": 1}
"""


@pytest.mark.parametrize("replace", [pytest.param(True, marks=pytest.mark.slow), False])  # one sum, of less or more
def test_custom_reward_function_scores_whole_episodes(tmp_path, replace):
    """In training and in validation: once an episode, on its last turn, in place of the environment's or beside it."""
    (tmp_path / "reward.py").write_text(REWARD)
    overrides = [
        f"custom_reward_function.path={tmp_path}/reward.py",
        f"custom_reward_function.replace={replace}".lower(),
    ]
    overrides += ["env.id=textenv/gsm8k-interact", "env.kwargs.max_assistant_turns=2", "env.val_kwargs.split=test"]
    overrides += [f"trainer.rollout_data_dir={tmp_path}/train", f"trainer.validation_data_dir={tmp_path}/val"]
    in_process(tmp_path / "run", *overrides, "trainer.total_iterations=1")
    for path in (tmp_path / "train/000001.parquet", tmp_path / "val/000001.parquet"):
        for episode in read_parquet(path):
            assert [turn.get("custom") for turn in episode.turn_terms][:-1] == [None] * (episode.num_turns - 1)
            assert episode.turn_terms[-1]["custom"] == 0.25 + episode.num_turns
            environment_reward = sum(
                sum(value for name, value in turn.items() if name in ("correct", "format", "extra_turn"))
                for turn in episode.turn_terms
            )
            assert environment_reward == pytest.approx(0.0 if episode.num_turns == 1 else -0.35)
            expected = 0.25 + episode.num_turns + (0 if replace else environment_reward)
            assert episode.total_reward == pytest.approx(expected)


def test_failing_reward_function_stops_the_run(tmp_path, capsys):
    (tmp_path / "reward.py").write_text("def compute_score(**row):\n    raise KeyError('no such column')\n")
    overrides = [f"custom_reward_function.path={tmp_path}/reward.py", "rollout.max_consecutive_errors=3"]
    assert main(arguments(tmp_path / "run", *QUICK, *overrides)) == 1
    output = capsys.readouterr().err
    assert all(
        words in output for words in ("error: 3 episodes in a row", "error_reward", "KeyError: 'no such column'")
    )
    refused(
        capsys,
        arguments(tmp_path / "run2", *QUICK, overrides[0], "custom_reward_function.name=score"),
        *("custom_reward_function.name: ", "has no function score; it has compute_score"),
        code=2,
    )


def test_chosen_iterations_are_profiled_in_all_threads(tmp_path):
    in_process(tmp_path, "trainer.profile_steps=[2]", "trainer.total_iterations=2")
    (trace,) = (tmp_path / "profile").iterdir()
    assert trace.name == "iteration_000002.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    threads = {event["tid"] for event in events if event.get("name") in ("aten::mm", "aten::addmm", "aten::linear")}
    assert len(threads) >= 2, "the engine's and the learner's"
    assert any("Backward" in event.get("name", "") for event in events)


def test_episode_tokens_after_opening_are_limited(tmp_path):
    overrides = ["rollout.max_response_tokens=9", f"trainer.rollout_data_dir={tmp_path}/train"]
    in_process(tmp_path / "run", *overrides, "trainer.total_iterations=1")
    episodes = read_parquet(tmp_path / "train/000001.parquet")
    for episode in episodes:
        sampled = np.flatnonzero(episode.action_mask)
        assert sampled[-1] - sampled[0] < 9
        assert episode.num_turns == 1, "a reply and the environment's answer to it leave no room for another"
        assert episode.status == "truncated_context" or episode.terminated


def test_train_size_and_critic_betas_apply(tmp_path):
    overrides = [
        "data.train_size=3",
        "critic.betas=[0.5,0.75]",
        "trainer.total_iterations=2",
        f"trainer.rollout_data_dir={tmp_path}/e",
    ]
    run = in_process(tmp_path, *overrides)
    episodes = episodes_of(tmp_path / "e")
    assert {episode.task_key for episode in episodes} == {"task/0", "task/1", "task/2"}
    assert run.learner.critic_optimizer.section.betas == (0.5, 0.75)
