"""Lost workers: another takes their batch, they are restarted, and no score changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray_here import local_ray
from reward_models import save_model, talk
from simulated_time import simulated

from textenvs.messages import Messages, assistant, user
from trainers.config.reward_model import ClassifierSection, RewardModelSection
from trainers.rewards import RewardService, ScoringRequest, UnscoredError
from trainers.rewards.backends.classifier import Classifier, ClassifierPool, Worker, WorkerLostError


def truth(conversation: Messages) -> float:
    return float(conversation[-1]["content"])


def request(number: int) -> ScoringRequest:
    return ScoringRequest((user("?"), assistant(str(number))))


class Fake:
    """A worker that takes a second per batch, and is lost when ``dies`` returns true."""

    def __init__(self, dies: Callable[[Sequence[Messages]], bool], starts: Callable[[], bool]) -> None:
        self._dies, self._starts = dies, starts
        self.lost = self.closed = self.asleep = False
        self.running = 0

    async def start(self) -> None:
        await asyncio.sleep(5)
        if not self._starts():
            raise WorkerLostError("out of memory")

    async def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        assert not any((self.lost, self.closed, self.asleep, self.running)), "one batch at a time, while it is awake"
        self.running += 1
        try:
            await asyncio.sleep(1)
            if self._dies(conversations):
                self.lost = True
                raise WorkerLostError("killed")
            return [truth(conversation) for conversation in conversations]
        except asyncio.CancelledError:
            self.lost = True
            raise
        finally:
            self.running -= 1

    async def sleep(self) -> None:
        assert not any((self.lost, self.closed, self.asleep, self.running))
        await asyncio.sleep(1)
        self.asleep = True

    async def wake(self) -> None:
        assert self.asleep
        await asyncio.sleep(1)
        self.asleep = False
        if self._dies(()):
            self.lost = True
            raise WorkerLostError("killed in its sleep")

    async def call(self, method: str, *arguments: Any) -> Any:
        return await {"score": self.score, "sleep": self.sleep, "wake": self.wake}[method](*arguments)

    async def close(self) -> None:
        self.closed = True


async def pool_of(
    count: int, dies: Callable[[Sequence[Messages]], bool], starts: Callable[[], bool] = lambda: True
) -> tuple[ClassifierPool, list[Fake]]:
    made: list[Fake] = []

    def make(number: int) -> Worker:
        made.append(Fake(dies, starts))
        return made[-1]

    return await ClassifierPool.start(ClassifierSection(), count, make), made


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.booleans(), max_size=12),
    st.lists(st.booleans(), max_size=4),
    st.lists(st.tuples(st.floats(0, 6), st.integers(0, 9)), min_size=1, max_size=20),
)
@simulated
async def test_lost_workers_change_no_score(count, size, deaths, starts, arrivals) -> None:
    dying, starting = iter(deaths), iter(starts)
    died = 0

    def dies(_: object) -> bool:
        nonlocal died
        died += (now := next(dying, False))
        return now

    began = False
    pool, made = await pool_of(count, dies, lambda: not began or next(starting, True))
    began = True
    options = RewardModelSection(max_batch_size=size, retries=20, cache_size=0)
    async with RewardService({"m": pool}, {"m": options}) as service:

        async def ask(after: float, number: int) -> None:
            await asyncio.sleep(after)
            assert await service.score("m", request(number)) == number

        await asyncio.gather(*(ask(*arrival) for arrival in arrivals))
        lost = pool.losses
    assert all(fake.closed for fake in made)
    assert lost == died, "each was seen, and no other"


@simulated
async def test_request_that_kills_workers_is_isolated() -> None:
    pool, made = await pool_of(2, lambda talks: any(truth(conversation) == 7 for conversation in talks))
    async with RewardService({"m": pool}, {"m": RewardModelSection(max_batch_size=8, retries=1)}) as service:
        scores = (service.score("m", request(number)) for number in range(8))
        *good, bad = await asyncio.gather(*scores, return_exceptions=True)
        assert good == list(range(7))
        assert isinstance(bad, UnscoredError)
        assert "killed" in str(bad)
        assert pool.losses == len(made) - 2 + (not await pool.healthy())


@simulated
async def test_pool_without_workers_is_unhealthy(caplog: pytest.LogCaptureFixture) -> None:
    first, up = True, asyncio.Event()

    def once(_: object) -> bool:
        nonlocal first
        dies, first = first, False
        return dies

    began = False
    pool, _ = await pool_of(1, once, lambda: not began or up.is_set())
    began = True
    async with RewardService({"m": pool}, {"m": RewardModelSection(timeout_s=3.0)}) as service:
        waiting = asyncio.ensure_future(service.score("m", request(3)))
        await asyncio.sleep(30)
        assert not await pool.healthy()
        up.set()
        assert await waiting == 3
        assert pool.losses == 1
    assert "worker 0 of a reward model is lost" in caplog.text
    assert "does not start: out of memory" in caplog.text
    assert "'m' is down" in caplog.text
    assert "'m' is back after" in caplog.text


@simulated
async def test_timed_out_batch_costs_only_its_worker() -> None:
    pool, made = await pool_of(1, lambda _: False)
    async with RewardService(
        {"m": pool}, {"m": RewardModelSection(timeout_s=0.5, retries=0, patience_s=50.0)}
    ) as service:
        with pytest.raises(UnscoredError, match=r"longer than 0\.5 s"):
            await service.score("m", request(1))
    assert len(made) > 1
    assert made[0].closed


@simulated
async def test_failed_start_closes_all_workers() -> None:
    made: list[Fake] = []
    answers = iter([True, False, True])

    def make(number: int) -> Worker:
        made.append(Fake(lambda _: False, lambda: next(answers)))
        return made[-1]

    with pytest.raises(WorkerLostError):
        await ClassifierPool.start(ClassifierSection(), 3, make)
    assert all(fake.closed for fake in made)


# ---------------------------------------------------------------- for real


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("reward_model"))


async def test_unloadable_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be loaded"):
        await ClassifierPool.start(ClassifierSection(path=str(tmp_path / "absent")))


@pytest.mark.slow  # test_ppo_ray_rewards.py kills an actor, too
@pytest.mark.xdist_group("ray")
async def test_killed_actor_changes_no_score(folder: str, request: pytest.FixtureRequest) -> None:
    ray = local_ray(request.config)
    from trainers.cluster.ray.engine import RayWorker

    options = ClassifierSection(path=folder, rows=4, bucket=64)
    alone = Classifier(options)
    made: list[RayWorker] = []

    def make(number: int) -> Worker:
        made.append(RayWorker(options, "auto", placement={"num_cpus": 1}))
        return made[-1]

    pool = await ClassifierPool.start(options, 1, make)
    async with RewardService({"m": pool}, {"m": RewardModelSection(max_batch_size=16)}) as service:
        scores = [asyncio.ensure_future(service.score("m", ScoringRequest(talk(i)))) for i in range(32)]
        while not service.stats()["m/batches"]:
            await asyncio.sleep(0.001)
        ray.kill(made[0].actor, no_restart=True)
        assert await asyncio.gather(*scores) == [alone.score([talk(i)])[0] for i in range(32)]
        assert pool.losses == 1


@simulated
async def test_sleeping_pool_delays_but_serves_requests():
    """Earlier requests are finished, later ones wait; a worker may die while it sleeps."""
    loop = asyncio.get_running_loop()
    dead: list[bool] = []
    pool, made = await pool_of(2, lambda batch: not batch and not dead and not dead.append(True))
    early = [asyncio.ensure_future(pool.score([request(number)])) for number in range(3)]
    await asyncio.sleep(0.1)
    await pool.sleep()
    assert all(worker.asleep for worker in made)
    assert [future.done() for future in early].count(True) >= 2
    late = asyncio.ensure_future(pool.score([request(7)]))
    began = loop.time()
    await asyncio.sleep(100)
    assert not late.done()
    await pool.wake()
    assert await late == [7.0]
    assert [await future for future in early] == [[0.0], [1.0], [2.0]]
    assert loop.time() - began < 110
    assert pool.losses == 1
    await pool.sleep()
    await pool.close()
    assert all(worker.closed for worker in made)


async def test_classifier_scores_equal_after_sleep(tmp_path):
    pool = await ClassifierPool.start(ClassifierSection(path=save_model(tmp_path)))
    requests = [ScoringRequest(talk(number)) for number in range(3)]
    before = await pool.score(requests)
    await pool.sleep()
    await pool.wake()
    assert await pool.score(requests) == before
    await pool.close()


@simulated
async def test_sleeping_pool_starts_no_worker() -> None:
    """The only worker dies over a batch while the pool waits for it; another would take the learner's memory."""
    pool, made = await pool_of(1, lambda batch: bool(batch))
    scoring = asyncio.ensure_future(pool.score([request(1)]))
    await asyncio.sleep(0.5)
    await asyncio.wait_for(pool.sleep(), 60)
    await asyncio.sleep(60)
    assert [fake.closed for fake in made] == [True], "none is started while the pool sleeps"
    await pool.wake()
    await asyncio.sleep(10)
    assert len(made) >= 2
    scoring.cancel()
    await asyncio.gather(scoring, return_exceptions=True)
    await pool.close()


@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "falling asleep"])
@simulated
async def test_starting_worker_sleeps_and_wakes_with_pool(asleep: bool) -> None:
    died = iter([True])
    pool, made = await pool_of(1, lambda batch: bool(batch) and next(died, False))
    scoring = asyncio.ensure_future(pool.score([request(7)]))
    await asyncio.sleep(3)  # it died after one second, and another takes five to start
    await pool.sleep()
    await asyncio.sleep(60 if asleep else 3.5)
    assert not asleep or [(fake.closed, fake.asleep) for fake in made] == [(True, False), (False, True)]
    await pool.wake()
    assert await asyncio.wait_for(scoring, 60) == [7]
    assert not made[-1].asleep
    await pool.close()
