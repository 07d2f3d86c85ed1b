"""From a configuration to the parts of a run: the choices that the configuration leaves open."""

import asyncio
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

import textenvs
from textenvs.messages import assistant, user
from trainers import sft
from trainers.builders import collection, environments, reward_model
from trainers.builders import policy as policies
from trainers.builders.engines import _actor_engine, _all_or_none, _sending_s, engine_of
from trainers.builders.policy import threads_for
from trainers.command_line.load import resolve
from trainers.config import PPOConfig
from trainers.engines.base import Sampling
from trainers.engines.replicas import Replicas
from trainers.engines.torch_engine import TorchEngine
from trainers.learner import Learner
from trainers.models.policy import Policy
from trainers.models.tiny import build_model, build_tokenizer
from trainers.rewards.backends.judge import JudgeBackend
from trainers.rollout.renderer import Renderer

SMALL, LARGE = {"hidden": 32, "layers": 1}, {"hidden": 768, "layers": 2}


def policy(**shape: int) -> Policy:
    tokenizer = build_tokenizer(["What is 3 + 4?"], vocab_size=300)
    return Policy(build_model(len(tokenizer), **shape), tokenizer)


@pytest.mark.parametrize(
    ("shape", "configured", "threads"), [(SMALL, None, 1), (LARGE, None, None), (LARGE, 3, 3), (SMALL, 2, 2)]
)
def test_small_model_gets_one_thread_by_default(shape, configured, threads):
    assert threads_for(policy(**shape), configured) == threads


def test_run_of_tiny_model_uses_one_thread(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        options = ("sft.steps=1", "sft.demonstrations=4", "trainer.logger=jsonl")
        assert sft.main([*options, f"trainer.default_local_dir={tmp_path}"]) == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


async def test_lost_replica_restarts_with_current_weights():
    actor = policy(max_context=64, **SMALL)
    arguments = ["engine.max_context=64", "engine.max_slots=2", "rollout.max_response_length=8", "model.device=cpu"]
    one, _ = resolve(arguments, PPOConfig)
    several, _ = resolve([*arguments, "engine.replicas=3"], PPOConfig)
    renderer = Renderer(actor.tokenizer)
    plain = await engine_of(one, actor, renderer, version=5)
    replicas = await engine_of(several, actor, renderer, version=5)
    assert isinstance(plain, TorchEngine)
    assert isinstance(replicas, Replicas)
    try:
        assert replicas.version == 5
        weights = Learner(actor.model).weights()
        for value in weights.values():
            value.mul_(1.5)
        await plain.update_weights(weights, 6)
        await replicas.update_weights(weights, 6)
        greedy = Sampling(temperature=0.0, max_new_tokens=8)
        expected = (await plain.generate([5, 6, 7], greedy)).token_ids.tolist()
        await replicas._replicas[1].engine.close()  # a lost engine is one that says it is dead
        for turn in range(2000):
            made = await replicas.generate([5, 6, 7], greedy, f"s{turn}")
            assert made.token_ids.tolist() == expected
            assert set(made.weight_version) == {6}
            if replicas.stats()["replicas_restarted"]:
                break
        assert replicas.stats()["replicas_up"] == 3
        assert replicas._replicas[1].engine.version == 6
    finally:
        await plain.close()
        await replicas.close()


class Started:
    """An engine that others wait for, and that may not start."""

    version, max_context = 0, 64

    def __init__(self):
        self.closed = False

    async def close(self):
        self.closed = True


async def test_ray_engines_start_concurrently_with_summed_timeout(monkeypatch):
    timeouts, all_began = [], asyncio.Event()

    async def start(cluster, replica, make, **options):
        timeouts.append(options["timeout"])
        if len(timeouts) == 3:
            all_began.set()
        await asyncio.wait_for(all_began.wait(), 60)
        return Started()

    monkeypatch.setattr("trainers.builders.engines.RayEngine.start", start)
    options = ("cluster.backend=ray", "engine.name=vllm", "engine.replicas=3", "model.device=cpu")
    times = ("cluster.start_timeout_s=30", "engine.vllm.start_timeout_s=900")
    config, _ = resolve([*options, *times, f"engine.vllm.python={sys.executable}"], PPOConfig)
    small = policy(**SMALL)
    cluster = SimpleNamespace(ray=SimpleNamespace(put=lambda made: made), plan=SimpleNamespace(engine_gpus=((),) * 3))
    engines = await engine_of(config, small, Renderer(small.tokenizer), cluster=cluster)
    assert timeouts == [930.0] * 3
    assert 300 < engines._limits.update_timeout < 301
    assert engines._limits.restart_timeout > 930 + 300
    await engines.close()


def test_large_models_get_longer_update_timeout() -> None:
    with torch.device("meta"):
        large = build_model(151_936, hidden=3584, layers=28, intermediate=18_944, heads=28, kv_heads=4)
    bytes_a_second = 4 * large.num_parameters() / _sending_s(SimpleNamespace(skeleton=large))
    assert 20e6 < bytes_a_second < 100e6  # a slow network, or disk


async def test_actor_server_deletes_its_model_copy(monkeypatch):
    """Actors are killed, and remove nothing then."""
    folders = []

    async def served(config, policy, renderer, version, replica, folder):
        assert (folder / "model.safetensors").is_file()
        folders.append(folder)
        return Started()

    monkeypatch.setattr("trainers.builders.engines.served_engine", served)
    options = ("cluster.backend=ray", "engine.name=vllm", f"engine.vllm.python={sys.executable}")
    config, _ = resolve(list(options), PPOConfig)
    engine = await _actor_engine(config, policy(**SMALL), 0, 0)
    assert (folders[0] / "config.json").is_file()  # goes with every update by disk
    assert not list(folders[0].glob("*.safetensors"))
    del engine
    assert not folders[0].exists()


@pytest.mark.parametrize("cause", ["one fails", "cancelled"])
async def test_failed_start_closes_started_engines(cause):
    began, first, stuck = asyncio.Event(), Started(), asyncio.Event()

    async def make(index):
        if index == 0:
            return first
        if index == 1 and cause == "one fails":
            raise ValueError("no GPU")
        began.set()
        return await stuck.wait()  # a server that is still loading

    making = asyncio.ensure_future(_all_or_none(make, 3))
    await began.wait()
    if cause == "cancelled":
        making.cancel()
    with pytest.raises(ValueError if cause == "one fails" else asyncio.CancelledError):
        await asyncio.wait_for(making, 60)
    assert first.closed


@pytest.mark.parametrize(("value", "expected"), [("auto", "auto"), ("7", 7), ("null", None)])
def test_max_running_is_number_auto_or_staleness_limit(value, expected):
    config, _ = resolve([f"rollout.max_running={value}"], PPOConfig)
    assert config.rollout.max_running == expected


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
async def test_env_workers_limits_environments(kind):
    config, _ = resolve([f"env.backend={kind}", "env.workers=2"])
    assert environments.backend_of(config, *environments.played(config), validation=False).workers == 2


def test_temporary_environments_are_closed(monkeypatch):
    made, open_ones = 0, set()

    class Noted:
        tasks = textenvs.make("textenv/gsm8k").tasks

        def __init__(self):
            nonlocal made
            made += 1
            open_ones.add(self)

        def close(self):
            open_ones.remove(self)

        def demonstration(self, rng):
            return "4"

        def reset(self, *, seed, options):
            self.state = textenvs.EpisodeState(messages=(user("2 + 2"),))
            return self.state.messages, {}

        def step(self, reply):
            self.state.messages = (user("2 + 2"), assistant(reply))
            return self.state.messages, 1.0, True, False, {}

    monkeypatch.setattr(environments.Component, "make", lambda component, kwargs=None: Noted())
    judge = [f"reward_model.{key}" for key in ("enable=true", "kind=judge", "judge.model=m", "judge.rubric=correct")]
    config, _ = resolve([*judge, "reward_model.judge.base_url=http://h/v1"], PPOConfig)
    (component,) = environments.played(config)
    assert environments.task_count(component) is None
    assert environments.validation_tasks(config, component)
    section = config.reward_models["reward_model"]
    reward_model._check_reference(config, section, JudgeBackend(section.judge))
    collection.task_finder(config)
    few = config.warm_start.model_copy(update={"demonstrations": 3, "mistake_rate": 0.0})
    assert len(list(policies.demonstrations_of([component], few, seed=0))) == 3
    assert made == 6
    assert not open_ones


def test_reward_function_finds_task_with_folder_user(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("textenvs.chat.local._serve", lambda folder: "http://localhost:1/v1")
    asking = [f"env.mixture.{name}.id=textenv/clarify" for name in ("rules", "model")]
    config, _ = resolve([*asking, f"env.mixture.model.kwargs.user.model={tmp_path}"])
    find = collection.task_finder(config)
    for component in environments.played(config):
        for held_out, kwargs in ((False, component.training), (True, component.validation)):
            spec = environments.backend_of(config, component, validation=held_out).spec
            with closing(component.make(kwargs)) as env:
                assert find(SimpleNamespace(spec=spec, task_index=2)).key == env.tasks[2].key
