"""``actor.distill``: what teachers are asked, what of it reaches the loss, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from chat_styles import tokenizer_of
from learner_helpers import VOCAB, naive_scores, small_model, some_masked_trajectories, some_trajectories
from ppo_runs import episodes_of, in_process, training_of

from textenvs.privileged import Privilege
from trainers.advantages import Estimated, with_teacher
from trainers.algorithms.batch import Advantages, MadeOf
from trainers.algorithms.distillation import Context, DistillSection
from trainers.builders import SetupError
from trainers.builders.learner import teacher_of
from trainers.cluster.memory import Machine
from trainers.cluster.plan import make_plan
from trainers.command_line import resolve
from trainers.learner import Learner
from trainers.learner.scoring import Scorer
from trainers.learner.teachers import as_taught
from trainers.models.policy import Policy
from trainers.models.shape import shape_of_model
from trainers.models.tiny import build_model, save
from trainers.rollout.batch import BatchEpisode
from trainers.trajectory import Trajectory, action_offsets
from trainers.update import Update, has_gradient

TEMPERATURE = 0.7


def taught(items: list[Trajectory], seed: int = 4) -> list[Trajectory]:
    """With contexts for a teacher: for about two of three turns, of a part of the turn's own and some other tokens."""
    rng, made = np.random.default_rng(seed), []
    for item in items:
        shared, counts = [], []
        for turn in range(item.num_turns):
            first = int(np.flatnonzero(item.turn_id == turn)[0])
            start = int(item.segment_starts[np.searchsorted(item.segment_starts, first, side="right") - 1])
            taught = rng.random() < 2 / 3
            shared.append(int(rng.integers(first - start + 1)) if taught else -1)
            counts.append(int(rng.integers(1, 6)) if taught else 0)
        ids = rng.integers(0, VOCAB, sum(counts))
        fields = {"teacher_shared": shared, "teacher_counts": counts, "teacher_ids": ids}
        arrays: Any = {name: np.array(values, np.int32) for name, values in fields.items()}
        made.append(replace(item, **arrays))
    return made


ITEMS = taught(some_masked_trajectories())


def test_teachers_score_tokens_in_their_own_contexts(tmp_path: Path) -> None:
    """By the model's own logits, one context at a time; a teacher in a folder is not saved."""
    own, other = small_model(layers=1), small_model(layers=1, seed=8)
    save(tmp_path / "teacher", other, _Tokenizer())
    learner = Learner(own, reference=True, teacher=tmp_path / "teacher", temperature=TEMPERATURE, chunk_size=7)
    items = [as_taught(item) for item in ITEMS]
    models: dict[Scorer, Any] = {"actor": own, "reference": own, "teacher": other}
    for name, model in models.items():
        for item, got in zip(items, learner.logprobs(items, model=name), strict=True):
            with torch.no_grad():
                expected = naive_scores(model, item, TEMPERATURE)[0].numpy()
            np.testing.assert_allclose(got, expected, atol=2e-5)
    learner.save(tmp_path / "saved")
    assert "teacher" not in (tmp_path / "saved" / "learner.json").read_text()


class _Tokenizer:
    def save_pretrained(self, folder: Path) -> None:
        """Leave the folder without one: a learner reads the weights alone."""


def test_teacher_of_another_vocabulary(tmp_path: Path) -> None:
    """Padded matrices may differ in size; the distributions are over the tokens that the policy samples."""
    sizes = {"hidden": 32, "layers": 1, "heads": 4, "kv_heads": 2, "seed": 3}
    save(tmp_path / "teacher", build_model(VOCAB + 4, **sizes), _Tokenizer())
    learner = Learner(small_model(layers=1), teacher=tmp_path / "teacher")
    item = ITEMS[1]
    model = build_model(VOCAB + 4, **sizes)
    logits = model(input_ids=torch.from_numpy(item.token_ids[None].astype(np.int64))).logits
    assert logits.shape[-1] == VOCAB + 4
    (got,) = learner.logprobs([replace(item, segment_starts=item.segment_starts)], model="teacher")
    ids = torch.arange(VOCAB + 4) < VOCAB
    scores = []
    for part in item.segments():
        tokens = torch.from_numpy(item.token_ids[part].astype(np.int64))
        with torch.no_grad():
            own = model(input_ids=tokens[None]).logits[0].masked_fill(~ids, -torch.inf).log_softmax(-1)
        scores += [(item.turn_id[part][i], i, own[i - 1, tokens[i]]) for i in np.flatnonzero(item.action_mask[part])]
    expected = [float(score) for *_, score in sorted(scores, key=lambda row: row[0])]
    np.testing.assert_allclose(got, expected, atol=2e-5)
    save(tmp_path / "small", build_model(VOCAB - 4, **sizes), _Tokenizer())
    with pytest.raises(
        ValueError, match=f"has {VOCAB - 4} tokens, and the policy's tokenizer has the token {VOCAB - 4}"
    ):
        Learner(small_model(layers=1), teacher=tmp_path / "small")


@pytest.mark.parametrize("rewards", [True, False])
def test_advantages_are_added_or_replaced(rewards: bool) -> None:
    mask = np.array([True, True, False])
    parts = MadeOf(np.zeros(3), None, np.array([3.0, -3.0, 0.0]))
    made = Advantages(np.array([1.0, -1.0, 0.0]), mask, made_of=parts)
    estimated = Estimated(made, np.array([2.0, -2.0, 0.0]), {})
    section = DistillSection(teacher="reference", rewards=rewards)
    advantages, scaled = with_teacher(section, estimated, np.array([0.5, 0.25, 9.0]))
    kept = float(rewards)
    assert advantages.advantages.tolist() == [kept + 0.5, -kept + 0.25, 0.0]
    assert scaled.tolist() == [2 * kept + 0.5, -2 * kept + 0.25, 0.0]
    assert advantages.made_of is not None
    assert advantages.made_of.unscaled.tolist() == [3 * kept + 0.5, -3 * kept + 0.25, 0.0]
    assert advantages.made_of.by_teacher is not None
    assert advantages.made_of.by_teacher.tolist() == [0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["actor.distill.context=goal"], r"actor.distill.context: has no effect without actor.distill.teacher"),
        (["actor.distill.teacher=policy"], r"a teacher that sees what the policy sees is the policy"),
        (
            ["actor.distill.teacher=reference", "actor.policy_loss=gspo", "algorithm.adv_estimator=grpo"],
            "gives each token an advantage of its own",
        ),
        (["actor.distill.top_k=4"], r"actor.distill.top_k: has no effect without actor.distill.teacher"),
        *(
            (["actor.distill.teacher=reference", "actor.distill.top_k=4", f"actor.distill.{word}"], "has no effect")
            for word in ("clip=3", "discount=1")
        ),
        (
            ["actor.distill.teacher=policy", "actor.distill.context=goal", "env.train_side=both"],
            "actor.distill.context: does not go with env.train_side=both",
        ),
        *(
            (
                ["actor.distill.teacher=reference", "actor.distill.rewards=false", word],
                f"{word.split('=')[0]}: is about",
            )
            for word in (
                *("algorithm.reaction_credit.weight=1", "algorithm.use_kl_in_reward=true"),
                *("rollout.filter_zero_variance=true", "rollout.filter_variance_top_p=0.9"),
            )
        ),
    ],
)
def test_conflicts_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        resolve(words)


def test_contexts_are_what_environments_tell() -> None:
    assert get_args(Context) == get_args(Privilege)


CLARIFY = ("env.id=textenv/clarify", "engine.max_context=512", "trainer.total_iterations=1", "trainer.test_freq=-1")


def test_policy_teaches_itself(tmp_path: Path) -> None:
    """No token of the goal is in the policy's tokens; there is a gradient although all rewards are left out."""
    words = ("actor.distill.teacher=policy", "actor.distill.context=goal", "actor.distill.rewards=false")
    words = (*words, "actor.distill.top_k=4")
    folder = f"trainer.rollout_data_dir={tmp_path}/episodes"
    run = in_process(tmp_path / "run", *CLARIFY, *words, "algorithm.adv_estimator=turn_grpo", folder)
    (row,) = training_of(tmp_path / "run")
    assert row["actor/teacher_share"] == 1.0
    assert np.isfinite(row["actor/teacher_kl"])
    assert row["actor/advantage_abs_max"] == 0
    assert row["actor/grad_norm"] > 0
    assert row["actor/distill_kl"] > 0
    assert 0 < row["actor/distill_mass"] < 1
    episodes = episodes_of(tmp_path / "episodes")
    assert episodes
    for item in episodes:
        decode = run.tokenizer.decode
        shown = decode(as_taught(item).token_ids)
        assert shown.count("[Only you see this. What the user wants") == item.num_turns
        assert "Only you see this" not in decode(item.token_ids)
    learner = run.learner
    assert isinstance(learner, Learner)
    assert learner.reference is None
    assert len(learner.logprobs([as_taught(e) for e in episodes])[0]) == action_offsets(episodes[:1])[-1]


def test_folder_needs_the_policys_tokens(tmp_path: Path) -> None:
    own, other = tokenizer_of("chatml"), tokenizer_of("llama 3")
    model = build_model(len(own), hidden=32, layers=1, heads=2, kv_heads=1)
    save(tmp_path / "teacher", model, own)
    config, _ = resolve([f"actor.distill.teacher={tmp_path / 'teacher'}", "model.device=cpu"])
    assert teacher_of(config, Policy(model, own)) == tmp_path / "teacher"
    assert teacher_of(resolve([])[0], Policy(model, own)) is None
    with pytest.raises(SetupError, match="has another tokenizer than the policy"):
        teacher_of(config, Policy(model, other))


@pytest.mark.parametrize("context", ["none", "goal"])
def test_update_asks_the_teacher(context: str, tmp_path: Path) -> None:
    """By the teacher's own logits, in its contexts; a turn without one has no advantage of the teacher."""
    other = small_model(layers=1, seed=8)
    save(tmp_path / "teacher", other, _Tokenizer())
    words = [f"actor.distill.teacher={tmp_path / 'teacher'}", "actor.distill.coef=2", "actor.distill.clip=null"]
    config, _ = resolve([*words, f"actor.distill.context={context}"])
    learner = Learner(small_model(layers=1), teacher=tmp_path / "teacher", temperature=TEMPERATURE)
    forward = Update(config).forward([BatchEpisode(item, item) for item in ITEMS], learner)
    expected = []
    for item in ITEMS:
        with torch.no_grad():
            scores = naive_scores(other, item if context == "none" else as_taught(item), TEMPERATURE)[0].numpy()
        taught = np.ones(len(scores), np.bool_)
        if context != "none":
            taught = item.teacher_shared[item.turn_id[item.actions]] >= 0
        expected.append(np.where(taught, 2 * (scores - item.logprobs[item.actions]), 0))
    assert forward.teacher is not None
    np.testing.assert_allclose(forward.teacher, np.concatenate(expected), atol=1e-4)
    assert 0 < forward.metrics["actor/teacher_share"] <= 1


@pytest.mark.parametrize("context", ["none", "goal"])
def test_update_compares_each_state_with_the_teacher(context: str, tmp_path: Path) -> None:
    """The policy's tokens are scored in the teacher's contexts; a turn without one has no tokens."""
    learner = Learner(small_model(layers=1), reference=True, temperature=TEMPERATURE)
    config, _ = resolve(
        ["actor.distill.teacher=reference", f"actor.distill.context={context}", "actor.distill.top_k=3"]
    )
    batch = [BatchEpisode(item, item) for item in ITEMS]
    forward = Update(config).forward(batch, learner)
    own, shown = learner.top_logprobs(ITEMS, 3).top, ITEMS if context == "none" else [as_taught(i) for i in ITEMS]
    taught = np.concatenate([item.teacher_shared[item.turn_id[item.actions]] >= 0 for item in ITEMS])
    taught |= context == "none"
    assert forward.teacher is not None
    assert forward.teacher_top is not None
    assert not forward.teacher.any()
    assert (forward.teacher_top.ids == np.where(taught[:, None], own.ids, -1)).all()
    expected, offsets = learner.top_logprobs(shown, own.ids, model="reference").top, action_offsets(ITEMS)
    np.testing.assert_array_equal(forward.teacher_top.logprobs, np.where(taught[:, None], expected.logprobs, 0))
    assert forward.metrics["actor/distill_mass"] == pytest.approx(own.mass()[taught].mean())
    assert "actor/teacher_clipped" not in forward.metrics
    # The policy is the reference still: without another context it has nothing to learn from it.
    distance = np.abs(np.where(taught[:, None], own.logprobs - expected.logprobs, 0)).max()
    assert distance < 1e-5 if context == "none" else distance > 0.01
    assert has_gradient(config.actor, np.zeros(len(taught)), taught, offsets).all()


def test_policy_scores_tokens_of_a_server() -> None:
    """Ids that it never samples are left out; a context that the server refused has no tokens."""
    items, learner = some_trajectories(), Learner(small_model(layers=1), unused_token_ids=[VOCAB - 1])
    items = [item for item in items if not (item.token_ids[item.actions] == VOCAB - 1).any()]
    config, _ = resolve(["actor.distill.teacher=http://here", "actor.distill.top_k=4", "rollout.temperature=1"])
    count, places = int(action_offsets(items)[-1]), np.cumsum([len(item.actions) for item in items])[:-1]
    ids = np.tile(np.array([3, VOCAB - 1, VOCAB + 5, 8], np.int32), (count, 1))
    logprobs = -np.arange(4.0 * count, dtype=np.float32).reshape(count, 4) / 100
    scores = np.full(count, -1.0, np.float32)
    scores[:3] = np.nan

    class Served:
        def top_logprobs(self, shown: Any) -> Any:
            assert shown == items
            return np.split(scores, places), ids, logprobs

    update: Any = Update(config)
    update.served_teacher = Served()
    top = update.forward([BatchEpisode(item, item) for item in items], learner).teacher_top
    assert (top.ids[:3] == -1).all()
    assert (top.ids[3:] == [3, -1, -1, 8]).all()
    np.testing.assert_array_equal(top.logprobs[3:][:, [0, 3]], logprobs[3:][:, [0, 3]])
    assert not top.logprobs[:, 1:3].any()


def test_plan_counts_the_teacher() -> None:
    """Another model's parameters, in float32; the policy and what the run began with are counted already."""
    shape = shape_of_model(small_model(layers=1))
    config, _ = resolve(["actor.distill.teacher=FOLDER", "model.device=cpu"])
    with_teacher, plain = (make_plan(config, Machine(), shape, teacher=teacher).memory for teacher in (shape, None))
    extra = [row for row in with_teacher if row not in plain]
    assert extra == [("learner", "teacher", 4 * shape.parameters)]


def test_environment_must_tell(tmp_path: Path) -> None:
    words: list[Any] = ["actor.distill.teacher=policy", "actor.distill.context=goal"]
    with pytest.raises(SetupError, match=r"actor.distill.context=goal: program_envs:tests/bytes: Bytes has no user"):
        in_process(tmp_path, *words)
