"""The places of a reward model's workers: with the learner, in their own pool, or in one that the learner spans."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.checkpoints import changes
from trainers.cluster.memory import Machine, PlanError
from trainers.cluster.plan import Plan, describe, make_plan
from trainers.command_line import ConfigError
from trainers.command_line.load import render, resolve
from trainers.config import PPOConfig


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("judge")
    (folder / "config.json").write_text("{}")
    return str(folder)


def plan(judge: str, *options: str, machine: Machine | None = None) -> Plan:
    model = ("reward_model.enable=true", f"reward_model.classifier.path={judge}")
    return make_plan(resolve([*model, *options], PPOConfig)[0], machine or Machine())


POOL = "reward_model.enable_resource_pool=true"
SPANNED = "reward_model.learner_spans_pool=true"


@given(
    kind=st.sampled_from(["shared", "own", "spanned"]),
    device=st.sampled_from(["cpu", "cuda"]),
    ranks=st.integers(1, 8),
    engines=st.integers(1, 4),
    workers=st.integers(1, 4),
    nodes=st.integers(1, 2),
)
def test_workers_have_places_and_spanned_pools_are_exclusive(judge, kind, device, ranks, engines, workers, nodes):
    options = ["cluster.backend=ray", f"model.device={device}", f"cluster.learner_ranks={ranks}"]
    options += [f"engine.replicas={engines}", "actor.mini_batches=1", f"cluster.nnodes={nodes}"]
    options += ["cluster.n_gpus_per_node=8"] * (device == "cuda")
    if kind == "shared":
        options += [f"reward_model.classifier.replicas={workers}"]
    else:
        options += [POOL, f"reward_model.n_gpus_per_node={workers}"] + [SPANNED] * (kind == "spanned")
    needed = engines + workers if kind == "spanned" else workers if kind == "shared" else 0
    if needed > ranks or (device == "cuda" and engines > ranks):
        with pytest.raises(PlanError, match=str(ranks)):
            plan(judge, *options)
        return
    made = plan(judge, *options)
    (its,) = made.rewards
    assert len(its.seats) == len(its.gpus) == workers
    seats = made.learner + made.engines + its.seats
    places = {(pool.name, number): place for pool in made.pools for number, place in enumerate(pool.places)}
    for where, place in places.items():
        occupants = [seat for seat in seats if (seat.pool, seat.place) == where]
        assert sum(seat.cpus for seat in occupants) == place.cpus > 0
        assert sum(seat.gpus for seat in occupants) == place.gpus
    assert {(seat.pool, seat.place) for seat in its.seats} <= set(places)
    gpus = {gpu for ranks_of in its.gpus for gpu in ranks_of}
    if kind == "own":
        assert {seat.pool for seat in its.seats} == {"rewards"}
        assert made.gpus == (ranks + workers) * (device == "cuda")
        assert not gpus
        return
    assert made.gpus == ranks * (device == "cuda")
    assert gpus == ({seat.place for seat in its.seats} if device == "cuda" else set())
    if kind == "spanned":
        assert not {seat.place for seat in its.seats} & {seat.place for seat in made.engines}
        assert {seat.place for seat in made.learner} >= {seat.place for seat in its.seats + made.engines}


def test_own_pool_reduces_the_gpus_per_node(judge):
    machine = Machine(gpus=4)
    made = plan(judge, POOL, "reward_model.n_gpus_per_node=1", "model.device=cuda", machine=machine)
    assert made.gpus_per_node == 3
    assert "reward model: 1 worker in this process" in describe(made)
    with pytest.raises(
        PlanError, match=r"n_gpus_per_node=4 and reward_models.reward_model.n_gpus_per_node=1, but torch sees 4"
    ):
        plan(judge, POOL, "cluster.n_gpus_per_node=4", "model.device=cuda", machine=machine)
    with pytest.raises(PlanError, match="none would be left"):
        plan(judge, POOL, "reward_model.n_gpus_per_node=4", "model.device=cuda", machine=machine)


@pytest.mark.parametrize(
    "elsewhere", [["kind=service", "service.url=http://there:1"], ["kind=judge", "judge.model=m"]], ids=lambda o: o[0]
)
def test_remote_reward_model_has_no_workers(elsewhere):
    options = ["reward_model.enable=true", *(f"reward_model.{option}" for option in elsewhere)]
    config = resolve([*options, "cluster.backend=ray"], PPOConfig)[0]
    assert config.reward_models["reward_model"].workers == 0
    assert make_plan(config, Machine()).rewards == ()


def test_plan_without_room_names_the_keys(judge):
    with pytest.raises(PlanError, match=r"engines take 1 .*learner_ranks=2.*nnodes is 2; .* at most 2"):
        plan(judge, "cluster.backend=ray", "cluster.learner_ranks=2", POOL, SPANNED, "reward_model.n_gpus_per_node=2")
    with pytest.raises(PlanError, match="without GPUs and without Ray"):
        plan(judge, POOL, SPANNED)
    with pytest.raises(PlanError, match=r"replicas=2 share the places of cluster.learner_ranks=1"):
        plan(judge, "cluster.backend=ray", "reward_model.classifier.replicas=2")
    with pytest.raises(
        PlanError, match=r"ray_init.num_cpus=2, but .* and 1 worker of reward models 1 each.*at least 3"
    ):
        plan(judge, "cluster.backend=ray", "ray_init.num_cpus=2", "cluster.colocate=false", POOL)


# ---------------------------------------------------------------- several


def several(judge: str, *options: str) -> list[str]:
    both = [f"reward_models.{name}.classifier.path={judge}" for name in ("one", "two")]
    return [*both, *(f"reward_models.{option}" for option in options)]


@given(ranks=st.integers(1, 4), counts=st.tuples(st.integers(1, 4), st.integers(1, 4)), own=st.booleans())
def test_several_models_share_learner_places_evenly(judge, ranks, counts, own):
    options = ["cluster.backend=ray", f"cluster.learner_ranks={ranks}", "actor.mini_batches=1"]
    its = ["two.enable_resource_pool=true", f"two.n_gpus_per_node={counts[1]}"]
    its = its if own else [f"two.classifier.replicas={counts[1]}"]
    config = resolve([*options, *several(judge, f"one.classifier.replicas={counts[0]}", *its)], PPOConfig)[0]
    if max(counts[:1] if own else counts) > ranks:
        with pytest.raises(PlanError, match=r"reward_models\.(one|two)\.classifier\.replicas"):
            make_plan(config, Machine())
        return
    made = make_plan(config, Machine())
    assert {workers.model: len(workers.seats) for workers in made.rewards} == {"one": counts[0], "two": counts[1]}
    seats = made.learner + made.engines + made.rewards[0].seats + made.rewards[1].seats
    for pool in made.pools:
        for number, place in enumerate(pool.places):
            assert place.cpus == sum(seat.cpus for seat in seats if (seat.pool, seat.place) == (pool.name, number))
    shared = [seat.place for workers in made.rewards for seat in workers.seats if seat.pool != "rewards"]
    loads = [shared.count(rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= 1
    description = describe(made)
    assert "reward model one: " in description
    assert "reward model two: " in description


def test_named_models_are_merged_from_files(judge, tmp_path):
    (tmp_path / "a.yaml").write_text("reward_models:\n  the one:\n    weight: 2.0\n")
    with pytest.raises(ConfigError, match="reward_models.the one.name: the one is not allowed"):
        resolve(["--config", f"{tmp_path}/a.yaml"], PPOConfig)
    (tmp_path / "a.yaml").write_text(
        "reward_models:\n  mine:\n    kind: judge\n    judge: {model: 007, chat: {temperature: 0.5}}\n"
    )
    overrides = ["reward_models.mine.weight=0.5", f"reward_models.other.classifier.path={judge}"]
    config, flags = resolve(["--config", f"{tmp_path}/a.yaml", *overrides], PPOConfig)
    judge_model, other = config.reward_models["mine"], config.reward_models["other"]
    assert (judge_model.name, judge_model.kind, judge_model.weight) == ("mine", "judge", 0.5)
    assert (judge_model.judge.model, judge_model.judge.chat) == ("007", {"temperature": 0.5})
    assert (other.name, other.kind) == ("other", "classifier")
    assert flags.sources["reward_models.mine.judge.model"] == f"{tmp_path}/a.yaml:4"
    (tmp_path / "b.yaml").write_text(render(config, flags.sources))
    assert resolve(["--config", f"{tmp_path}/b.yaml"], PPOConfig)[0] == config
    assert PPOConfig(**config.model_dump()) == config
    assert not resolve(["--config", f"{tmp_path}/b.yaml", "reward_models={}"], PPOConfig)[0].reward_models


@pytest.mark.parametrize("name", ["reward_model", "liked"])
def test_section_stands_for_named_entry(tmp_path, name):
    keys = ["kind=judge", "judge.model=m", "judge.chat.temperature=0.5", "weight=2"]
    config = resolve([f"reward_models.{name}.{key}" for key in keys], PPOConfig)[0]
    named = [] if name == "reward_model" else [f"name={name}"]
    section = [f"reward_model.{key}" for key in ("enable=true", *named, *keys)]
    assert resolve(section, PPOConfig)[0] == config
    (tmp_path / "run.yaml").write_text(render(config))
    again = ["--config", f"{tmp_path}/run.yaml", "reward_model.weight=3", *(f"reward_model.{key}" for key in named)]
    assert resolve(again, PPOConfig)[0].reward_models[name].weight == 3


def test_older_files_have_the_same_models(tmp_path):
    judge = "{kind: judge, judge: {model: m}, classifier: {rows: 8}, nnodes: 1"
    for enable, models in (("true", {"liked": 1.0, "other": 0.5}), ("false", {"other": 0.5})):
        main = f"{judge}, enable: true, name: liked}}" if enable == "true" else "{enable: false, kind: classifier}"
        text = f"reward_model: {main}\nreward_models:\n  other: {judge}, enable: true, weight: 0.5}}\n"
        (tmp_path / "old.yaml").write_text(text)
        config = resolve(["--config", f"{tmp_path}/old.yaml"], PPOConfig)[0]
        assert {name: model.weight for name, model in config.reward_models.items()} == models
    (tmp_path / "old.yaml").write_text(f"reward_model: {judge}, enable: true}}\nreward_models: {{}}\n")
    config = resolve(["--config", f"{tmp_path}/old.yaml"], PPOConfig)[0]
    assert list(config.reward_models) == ["reward_model"]
    saved = config.model_dump(mode="json")
    older = {
        "reward_model": {**saved["reward_models"]["reward_model"], "enable": True, "weight": 2.0},
        "reward_models": {},
    }
    assert list(changes({**saved, **older}, saved)) == ["reward_models.reward_model.weight: 2.0 -> 1.0"]
    assert list(changes(saved, {**saved, "reward_models": {}}))[0].startswith(
        "reward_models.reward_model: {kind: judge"
    )
