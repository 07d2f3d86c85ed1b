"""TRL's rollout_func: the environments arrive in TRL's trainer as they are, token by token and reward by reward."""

import asyncio
import gc
import threading
import weakref

import adapter_kit
import gymnasium
import numpy as np
import program_envs  # noqa: F401 - registers
import pytest
import torch
from trl_runs import Scripted, batch, script, tiny_policy, trl_trainer

from textenvs import Task, TextEnv, Turn
from textenvs.env import EnvironmentFailure
from textenvs.integrations import EpisodeSpec, SpecError, episode_specs
from textenvs.integrations.trl import KEY, dataset_of, spec_of, textenv_dataset
from textenvs.messages import user
from trainers.engines.base import EngineError, Sampling
from trainers.integrations.trl import RolloutError, TextEnvRollout, term_rewards, textenv_reward
from trainers.integrations.trl.generation import RoundEngine, _generation, answer
from trainers.integrations.trl.rollout import check_groups, check_lockstep
from trainers.models import tiny

BYTES = "program_envs:tests/bytes"
#: What the prompts of these tests may name beyond what ships.
MINE = {
    BYTES: {},
    "program_envs:tests/blocking": {},
    "tests/once": {},
    "test_trl_rollout:tests/flaky": {"always": True},
}


class Flaky(TextEnv):
    """Environment whose simulator fails on odd tasks (``always``: on all), at the second turn."""

    def __init__(self, always=False):
        class Numbers:
            name, size = "numbers", None

            def __getitem__(self, index):
                return Task(f"task/{index}", "tests", (user(f"Task {index}."),), ground_truth=str(index))

        super().__init__(Numbers(), max_assistant_turns=3)
        self.always = always

    def respond(self, reply):
        if self.state.assistant_turns == 2 and (self.always or int(self.state.task.ground_truth) % 2):
            raise EnvironmentFailure("user_failed", "the simulator is gone")
        return Turn((user("More."),), terms={"words": len(reply["content"]) / 10})


gymnasium.register(id="tests/flaky", entry_point=Flaky)


# ------------------------------------------------------------------ faithful


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_trl_receives_the_played_episodes(env_id, tmp_path):
    """Through TRL's own batch code: messages, ends, rewards of turns, the sum that TRL takes, and the tokens."""
    plays = [adapter_kit.direct(EpisodeSpec(env_id, seed)) for seed in range(10)]
    with TextEnvRollout(environments=MINE, engine="trl") as rollout:
        data = dataset_of(played.spec for played in plays)
        trainer = trl_trainer(tmp_path, data, rollout, kind=Scripted, per_device_train_batch_size=20)
        tokenizer = trainer.processing_class
        trainer.scripts = [script(tokenizer, played) for played in plays]
        rows, inputs = batch(trainer)
    assert len({played.stop for played in plays}) > 1
    for number, row in enumerate(rows):
        played = plays[number // 2]
        observed = [message for turns in played.observations for message in turns]
        assert [m for m in row["messages"] if m["role"] != "assistant"] == [*played.opening, *observed]
        assert row["turn_rewards"] == played.rewards
        assert (row["terminated"], row["truncated"], row["stop"]) == (played.terminated, played.truncated, played.stop)
        assert not row["failed"]
        mask = inputs["tool_mask"][number].bool() & inputs["completion_mask"][number].bool()
        sampled = inputs["completion_ids"][number][mask].tolist()
        stop = tokenizer.eos_token_id
        turns = [[*tokenizer.encode(reply, add_special_tokens=False), stop] for reply in played.replies]
        assert sampled == [token for reply in turns for token in reply]
        assert np.bincount([turn for turn in row["turn_ids"] if turn >= 0]).tolist() == [len(reply) for reply in turns]
        # The whole is what the template makes of the conversation, as far as the last reply.
        spoken = [dict(message) for message in played.opening]
        for reply, messages in zip(played.replies, played.observations, strict=True):
            spoken += [{"role": "assistant", "content": reply}, *map(dict, messages)]
        whole = tokenizer.apply_chat_template(spoken, tokenize=False)
        tokens = torch.cat([inputs["prompt_ids"][number], inputs["completion_ids"][number]])
        present = torch.cat([inputs["prompt_mask"][number], inputs["completion_mask"][number]]).bool()
        assert whole.startswith(tokenizer.decode(tokens[present]))
    logged = [trainer._logs["rewards"]["textenv_reward"][2 * n] for n in range(len(plays))]
    assert logged == pytest.approx([sum(played.rewards) for played in plays])


def test_terms_are_logged_where_trl_logs(tmp_path):
    plays = [adapter_kit.direct(EpisodeSpec("textenv/clarify", seed)) for seed in range(6)]
    with TextEnvRollout(environments=MINE, engine="trl") as rollout:
        options = {"reward_funcs": [textenv_reward, *term_rewards("correct", "question")]}
        trainer = trl_trainer(tmp_path, dataset_of(p.spec for p in plays), rollout, kind=Scripted, options=options)
        trainer.scripts = [script(trainer.processing_class, played) for played in plays]
        rows, _ = batch(trainer)
    metrics = trainer._metrics["train"]
    for name in ("correct", "wrong", "question", "needless"):
        expected = np.mean([sum(terms[name] for terms in row["terms"]) for row in rows])
        assert metrics[f"terms/{name}"] == pytest.approx([expected])
    assert metrics["rewards/question/mean"] == pytest.approx(metrics["terms/question"])
    assert metrics["episodes/turns"] == pytest.approx([np.mean([len(p.rewards) for p in plays])])
    assert metrics["episodes/solved"] == pytest.approx([np.mean([p.stop == "solved" for p in plays])])


# ------------------------------------------------------------------ sampled by the policy that is trained


# Full weights are published in every other run here.
@pytest.mark.parametrize("engine", [pytest.param("torch", marks=pytest.mark.slow), "torch with LoRA"])
def test_sampling_policy_is_always_current(engine, tmp_path):
    """Log-probabilities of the embedded engine are those of TRL's own forward pass, also after steps of training."""
    peft = None
    if "LoRA" in engine:
        from peft import LoraConfig

        peft = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    apart = []

    with TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=8) as rollout:

        def watched(prompts, trainer):
            made = rollout(prompts, trainer)
            for n, (prompt, completion) in enumerate(zip(made["prompt_ids"], made["completion_ids"], strict=True)):
                ids = torch.tensor([prompt + completion])
                with torch.no_grad():
                    logits = trainer.model(ids).logits[0, len(prompt) - 1 : -1].float() / trainer.temperature
                logprobs = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
                mask = torch.tensor(made["env_mask"][n], dtype=torch.bool)
                apart.append(float((logprobs - torch.tensor(made["logprobs"][n]))[mask].abs().max()))
            return made

        watched.__name__ = "watched"
        trainer = trl_trainer(
            tmp_path,
            textenv_dataset(BYTES, 16),
            watched,
            options={"peft_config": peft},
            max_steps=3,
            temperature=0.7,
            max_completion_length=64,
        )
        before = {name: value.clone() for name, value in trainer.model.named_parameters() if value.requires_grad}
        trainer.train()
    assert len(apart) == 24
    assert max(apart) < 1e-4
    changed = [
        float((value - before[name]).abs().max()) for name, value in trainer.model.named_parameters() if name in before
    ]
    assert max(changed) > 1e-3, "nothing was trained, so this proved little"


def test_trl_generation_respects_budget_and_stops(tmp_path):
    """transformers' generate, in rounds: episodes of different lengths, none over its budget."""
    with TextEnvRollout(environments=MINE, engine="trl", max_turn_tokens=5) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 8), rollout, max_completion_length=60)
        rows, inputs = batch(trainer)
        assert trainer.generation_config.max_new_tokens == 60
    stop = trainer.processing_class.eos_token_id
    assert len({len(row["turn_rewards"]) for row in rows}) > 1
    for row, ids in zip(rows, inputs["completion_ids"], strict=True):
        assert len(row["turn_ids"]) <= 60
        for turn in range(len(row["turn_rewards"])):
            turn_ids = [int(ids[i]) for i, t in enumerate(row["turn_ids"]) if t == turn]
            assert 1 <= len(turn_ids) <= 5
            assert stop not in turn_ids[:-1]
    assert "sampling_per_token_logps" not in inputs  # generate does not say them


@pytest.mark.parametrize("engine", ["torch", "trl"])
def test_exhausted_budget_ends_episode(engine, tmp_path):
    with TextEnvRollout(environments=MINE, engine=engine, threads=1, max_turn_tokens=6) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 8), rollout, max_completion_length=17)
        rows, inputs = batch(trainer)
    cut = [row for row in rows if row["status"] == "truncated_context"]
    assert cut
    for row in rows:
        assert len(row["turn_ids"]) <= 17
        assert row["turn_ids"][-1] == len(row["turn_rewards"]) - 1  # it ends with a reply, not in what follows one
        assert row["terminated"] == (row["stop"] == "solved")
    for row in cut:
        assert row["truncated"]
        assert len(row["turn_rewards"]) < 3


def test_evaluations_repeat_training_batches_vary(tmp_path):
    with TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=6) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 4), rollout, max_completion_length=64)
        prompts = [trainer.train_dataset[i]["prompt"] for i in (0, 0, 1, 1)]
        trainer.model.train()
        first, second = (rollout(prompts, trainer)["completion_ids"] for _ in range(2))
        trainer.model.eval()
        once, again = (rollout(prompts, trainer)["completion_ids"] for _ in range(2))
    assert first != second
    assert once == again
    assert once[0] != once[1], "siblings are samples of their own"
    with TextEnvRollout(
        environments=MINE, threads=1, max_turn_tokens=6
    ) as fresh:  # a process that resumed at the same step
        trainer.model.train()
        assert fresh(prompts, trainer)["completion_ids"] == first


# ------------------------------------------------------------------ failures


def test_failed_episode_does_not_affect_its_group(tmp_path):
    specs = [EpisodeSpec("test_trl_rollout:tests/flaky", 0, {}, index) for index in range(4)]
    with TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=6, retries=0) as rollout:
        trainer = trl_trainer(tmp_path, dataset_of(specs), rollout, max_completion_length=64)
        rows, inputs = batch(trainer)
    for number, row in enumerate(rows):
        assert row["failed"] == ((number // 2) % 2 == 1)
        if row["failed"]:
            assert inputs["completion_mask"][number].sum() == 1
            assert (inputs["completion_mask"] * inputs["tool_mask"])[number].sum() == 0
            assert inputs["advantages"][number] == 0
    rewards = trainer._logs["rewards"]["textenv_reward"]
    assert [np.isnan(reward) for reward in rewards] == [row["failed"] for row in rows]
    assert trainer._metrics["train"]["episodes/failed"] == [0.5]


@pytest.mark.parametrize("engine", ["torch", "trl"])
def test_all_failed_batch_is_an_error(engine, tmp_path):
    with TextEnvRollout(environments=MINE, engine=engine, threads=1, max_turn_tokens=6) as rollout:
        trainer = trl_trainer(
            tmp_path, textenv_dataset("test_trl_rollout:tests/flaky", 2, env_kwargs={"always": True}), rollout
        )
        with pytest.raises(RolloutError, match="all 4 episodes of a batch failed; the first: the simulator is gone"):
            batch(trainer)


def test_oversized_openings_are_an_error(tmp_path):
    with TextEnvRollout(environments=MINE, engine="trl", max_context=4) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 2), rollout)
        with pytest.raises(RolloutError, match=r"the opening takes \d+ tokens, and the context has room for 4"):
            batch(trainer)


def test_failed_episode_is_retried_with_new_seed(tmp_path):
    contents = []

    class Once(Flaky):
        def respond(self, reply):
            contents.append(reply["content"])
            if len(contents) == 1:
                raise EnvironmentFailure("user_failed", "busy")
            return super().respond(reply)

    gymnasium.register(id="tests/once", entry_point=Once)
    with TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=6, retries=1, max_running=1) as rollout:
        trainer = trl_trainer(
            tmp_path, dataset_of([EpisodeSpec("tests/once", 0, {}, 0)]), rollout, max_completion_length=64
        )
        rows, _ = batch(trainer)
    assert [row["failed"] for row in rows] == [False, False]
    assert contents[0] != contents[1]


def test_generation_exception_reaches_caller_and_cleans_up(tmp_path):
    class Broken(Scripted):
        def _generate_single_turn(self, *args, **kwargs):
            raise RuntimeError("CUDA out of memory")

    with TextEnvRollout(environments=MINE, engine="trl") as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 4), rollout, kind=Broken)
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            batch(trainer)
        (backend,) = rollout._backends.values()
        assert backend.stats()["leased"] == 0
        trainer._generate_single_turn = lambda prompts, *_: ([[5, 2]] * len(prompts), None)
        rows, _ = batch(trainer)  # and it can be called again
        assert len(rows) == 8


def test_round_works_with_fewer_environments(tmp_path):
    with TextEnvRollout(environments=MINE, engine="trl", backend="thread", workers=3, max_turn_tokens=4) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 4), rollout)
        rows, _ = batch(trainer)
    assert all(row["turn_rewards"] for row in rows)


def test_closing_ends_threads_and_environments(tmp_path):
    def named():
        return [t for t in threading.enumerate() if t.name == "torch-engine"]

    before = len(named())
    rollout = TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=4)
    trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 2), rollout, max_completion_length=32)
    batch(trainer)
    assert len(named()) == before + 1
    rollout.close()
    rollout.close()
    assert len(named()) == before
    batch(trainer)  # it starts anew
    rollout.close()
    assert len(named()) == before


def test_refused_trainer_leaves_others_playable(tmp_path):
    data = textenv_dataset(BYTES, 1)
    with TextEnvRollout(environments=MINE, engine="torch", threads=1, max_turn_tokens=4) as rollout:
        fine = trl_trainer(tmp_path, data, rollout, max_completion_length=16)
        refused = trl_trainer(tmp_path, data, rollout, use_transformers_continuous_batching=True)
        batch(fine)
        for _ in range(2):
            with pytest.raises(ValueError, match="an engine of its own"):
                batch(refused)
        batch(fine)


def test_unused_engine_is_closed(tmp_path, monkeypatch):
    closed = []
    rollout = TextEnvRollout(environments=MINE, engine="torch", threads=1)
    trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 1), rollout)
    monkeypatch.setattr(rollout, "_episodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch(trainer)
    close = rollout._engine.close

    async def noted():
        closed.append(True)
        await close()

    monkeypatch.setattr(rollout._engine, "close", noted)
    rollout.close()
    rollout.close()
    assert closed == [True]


def interrupted(*_):
    raise KeyboardInterrupt


# ------------------------------------------------------------------ what is refused


def test_foreign_prompt_rows_are_refused(tmp_path):
    with TextEnvRollout(environments=MINE, engine="trl") as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 2), rollout, kind=Scripted)
        with pytest.raises(SpecError, match="prompt 0 of the batch carries no episode descriptions"):
            rollout([[{"role": "user", "content": "Hello"}]] * 2, trainer)
        good = trainer.train_dataset[0]["prompt"]
        changed = [{**good[0], "content": "Be nice. " + good[0]["content"]}]
        trainer.scripts = [("", ["a", "b", "c"])]
        with pytest.raises(RolloutError, match="prompt 0 of the batch is not what its environment opens with"):
            rollout([changed, changed], trainer)
        with pytest.raises(RolloutError, match=r"3 prompts in runs of \[3\], where groups of 2"):
            rollout([good] * 3, trainer)


@pytest.mark.parametrize(
    ("seeds", "whole", "fine"),
    [
        ([0, 0, 1, 1], True, True),
        ([0, 0, 0, 0], True, True),  # two rows that are the same episode
        ([0, 1, 0, 1], True, False),
        ([0, 1], True, False),  # a version that does not repeat
        ([0, 1, 1, 2], False, True),  # parts of groups, of one process among several
        ([0, 1, 2, 2], False, False),
        ([0], False, True),
    ],
)
def test_groups_are_seen_to_be_groups(seeds, whole, fine):
    specs = [EpisodeSpec(BYTES, seed) for seed in seeds]
    if fine:
        check_groups(specs, 2, whole=whole)
    else:
        with pytest.raises(RolloutError, match="repeats prompts in another way"):
            check_groups(specs, 2, whole=whole)


def test_template_that_rewrites_history_is_refused(tmp_path):
    model, tokenizer = tiny_policy()
    # Earlier replies are shown without their reasoning.
    tokenizer.chat_template = tiny.CHATML.replace(
        "{{ message['content'] }}",
        "{% if message['role'] == 'assistant' and not loop.last %}{{ message['content'].split('</think>')[-1] }}"
        "{% else %}{{ message['content'] }}{% endif %}",
    )
    with TextEnvRollout(environments=MINE, engine="trl") as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 1), rollout, kind=Scripted, policy=(model, tokenizer))
        trainer.scripts = [("", ["<think>hm</think>1", "<think>hm</think>1", "1"])]
        with pytest.raises(RolloutError, match="has 3 contexts, and GRPOTrainer takes one .*Where the chat template"):
            batch(trainer)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"repetition_penalty": 1.2}, "no repetition_penalty"),
        ({"generation_kwargs": {"typical_p": 0.5}}, r"generation_kwargs \(typical_p\)"),
        ({"use_transformers_continuous_batching": True}, "an engine of its own"),
    ],
)
def test_unsupported_engine_options_are_refused(settings, match, tmp_path):
    with TextEnvRollout(environments=MINE, engine="torch") as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 1), rollout, **settings)
        with pytest.raises(ValueError, match=match):
            batch(trainer)


def test_unsupported_trl_settings_are_refused():
    for wrong in ({"engine": "vllm"}, {"max_running": 0}, {"max_turn_tokens": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TextEnvRollout(**wrong)
    with pytest.raises(ValueError, match="differ"):
        term_rewards("correct", "correct")


def test_blocking_environment_needs_another_backend(tmp_path):
    with TextEnvRollout(environments=MINE, threads=1) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset("program_envs:tests/blocking", 1), rollout)
        with pytest.raises(RolloutError, match="may block its thread"):
            batch(trainer)


def test_rows_that_share_outcome_are_noticed():
    with pytest.raises(RuntimeError, match="2 rows of the batch have the outcomes of 1 episodes"):
        textenv_reward(turn_rewards=[[1.0], [1.0]], failed=[False, False], episode_id=["a", "a"])


class Args:
    """Stand-in of a trainer with vLLM, which is not installed here."""

    use_vllm, vllm_mode, vllm_tensor_parallel_size, vllm_enable_sleep_mode = True, "server", 1, False


class Many:
    args, is_fsdp_enabled, is_deepspeed_enabled = Args(), False, False

    class accelerator:  # noqa: N801 - as it is called there
        num_processes = 2


def test_deadlocking_multi_process_rounds_are_refused():
    with pytest.raises(RolloutError, match="with 2 processes"):
        check_lockstep(Many())
    Many.accelerator.num_processes = 1
    check_lockstep(Many())


# ------------------------------------------------------------------ rounds


class VLLM:
    """Stand-in with the used part of TRL's ``VLLMGeneration`` (which TRL calls itself)."""

    max_completion_length = 100


class WithVLLM:
    """A trainer with vLLM: log-probabilities are lists, with ``None`` for those that are not known."""

    use_vllm, vllm_generation = True, VLLM()

    def __init__(self, completions, logprobs):
        self.outputs = completions, logprobs

    def _generate_single_turn(self, prompts, images, fields, generations):
        self.limit = self.vllm_generation.max_completion_length
        assert (images, fields, generations) == (None, {}, 1)
        return self.outputs


async def test_vllm_round_is_cut_with_logprobs():
    engine = RoundEngine(64)
    engine.begin(3, 8)
    lengths = (2, 7, 3)
    requests = [
        asyncio.ensure_future(engine.generate([1, 2], Sampling(max_new_tokens=n, stop_token_ids=(9,)))) for n in lengths
    ]
    await asyncio.sleep(0)
    trainer = WithVLLM([[4, 5, 6], [4, 9, 6], [7, 8, 9]], [[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0], [None, -1.0, -1.0]])
    assert answer(trainer, engine.rounds.get_nowait())
    assert (trainer.limit, trainer.vllm_generation.max_completion_length) == (7, 100)
    cut, stopped, unknown = await asyncio.gather(*requests, return_exceptions=True)
    assert (cut.token_ids.tolist(), cut.finish_reason, cut.logprobs.tolist()) == ([4, 5], "length", [-1.0, -2.0])
    assert (stopped.token_ids.tolist(), stopped.finish_reason) == ([4, 9], "stop")
    assert isinstance(unknown, EngineError)


async def test_round_starts_when_no_request_can_join():
    engine = RoundEngine(64)
    engine.begin(3, 2)
    one = asyncio.ensure_future(engine.generate([1], Sampling()))
    await asyncio.sleep(0)
    assert engine.rounds.empty()  # a second may still come
    two = asyncio.ensure_future(engine.generate([1], Sampling()))
    await asyncio.sleep(0)
    assert len(engine.rounds.get_nowait()) == 2
    engine.leave()
    engine.leave()  # one left
    three = asyncio.ensure_future(engine.generate([1], Sampling()))
    await asyncio.sleep(0)
    assert len(engine.rounds.get_nowait()) == 1
    for task in (one, two, three):
        task.cancel()


def test_stop_token_at_limit_is_a_stop():
    made = _generation([1, 2, 9], None, Sampling(max_new_tokens=3, stop_token_ids=(9,)))
    assert (made.token_ids.tolist(), made.finish_reason) == ([1, 2, 9], "stop")


# ------------------------------------------------------------------ rows


def test_dataset_carries_its_episodes():
    specs = [
        *episode_specs("textenv/gsm8k-tool", 3, seed=7),
        EpisodeSpec("textenv/clarify", 2**62, {"ambiguous": 1.0}, 5),
    ]
    dataset = dataset_of(specs)
    assert [spec_of(row["prompt"]) for row in dataset] == specs
    columns = ("env", "seed", "env_kwargs", "task_index")
    assert [EpisodeSpec.from_row({name: row[name] for name in columns}) for row in dataset] == specs
    for row, spec in zip(dataset, specs, strict=True):
        messages = [{"role": m["role"], "content": m["content"]} for m in row["prompt"]]
        assert messages == [dict(message) for message in spec.make().reset(seed=spec.seed, options=spec.options)[0]]
        assert [m.get(KEY) is not None for m in row["prompt"]] == [False] * (len(messages) - 1) + [True]
    with pytest.raises(SpecError, match="no episode"):
        dataset_of([])


def test_deleted_trainer_is_garbage_collected(tmp_path):
    with TextEnvRollout(environments=MINE, threads=1, max_turn_tokens=4) as rollout:
        trainer = trl_trainer(tmp_path, textenv_dataset(BYTES, 1), rollout, max_completion_length=16)
        batch(trainer)
        reference = weakref.ref(trainer)
        del trainer
        gc.collect()
        assert reference() is None
