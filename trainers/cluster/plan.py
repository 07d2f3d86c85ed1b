"""The placement of a run's parts, and whether it fits, decided before anything starts. Pure functions of numbers.

A *place* is the resources of actors or processes on one machine (Ray's bundle); a *pool* is a group of places.
With ``cluster.colocate`` learner and engines share the places of one pool, otherwise each has its own; counted
environments on Ray always have one. The workers of a reward model share the learner's places, have a pool of their own,
or (``reward_model.learner_spans_pool``) the last of the learner's places, and leave the others to the engines. Memory
is an estimate, and what does not fit at some moment is refused (:mod:`trainers.cluster.timeline`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from textenvs.text import plural
from trainers.cluster.memory import SERVED, Machine, ModelShape, PlanError, estimate
from trainers.cluster.timeline import Timeline, shortages, table, tight, timelines
from trainers.config.engine import ServedEngineSection
from trainers.config.reward_model import ClassifierModelSection, RewardModelSection, sections_of
from trainers.config.sizes import episodes, episodes_per_batch, futures

if TYPE_CHECKING:
    from trainers.config import PPOConfig

_GIB = 2**30
_MOST_IN_FLIGHT = 2**20  # requests: tasks of one event loop

PoolName = Literal["learner", "engines", "shared", "environments", "rewards"]


@dataclass(frozen=True)
class Place:
    """The resources of one place."""

    cpus: float
    gpus: int = 0


@dataclass(frozen=True)
class Pool:
    """Places of one placement group."""

    name: PoolName
    places: tuple[Place, ...]
    strategy: Literal["PACK", "SPREAD"] = "PACK"  #: Ray's word for how they are spread over machines


@dataclass(frozen=True)
class Seat:
    """The place of an actor, and its resources; an engine that uses the GPUs of learner ranks takes none."""

    pool: PoolName
    place: int  #: number of its place there
    cpus: float
    gpus: int = 0


@dataclass(frozen=True)
class Workers:
    """The places of the workers of one reward model."""

    model: str
    seats: tuple[Seat, ...]
    gpus: tuple[tuple[int, ...], ...]  #: for each that shares GPUs, the ranks whose GPUs they are; else empty


@dataclass(frozen=True)
class Plan:
    """The places of all parts of a run."""

    backend: Literal["local", "ray"]
    device: Literal["cpu", "cuda"]
    nnodes: int
    gpus_per_node: int
    pools: tuple[Pool, ...]  #: for Ray's placement groups; none where everything is in this process or beside it
    learner: tuple[Seat, ...]  #: a seat for each rank
    engines: tuple[Seat, ...]  #: a seat for each replica
    engine_gpus: tuple[tuple[int, ...], ...]  #: for each that shares GPUs, the ranks whose GPUs they are; else empty
    environments: tuple[Seat, ...] = ()  #: counted ones
    rewards: tuple[Workers, ...] = ()  #: of each reward model that this run computes
    memory: tuple[tuple[str, str, int], ...] = ()  #: rows ``(who, what, bytes)``, on one GPU or in one process
    timelines: tuple[Timeline, ...] = ()  #: of their sums at each moment of an iteration, by kind of place
    notes: tuple[str, ...] = ()

    @property
    def cpus(self) -> float:
        return sum(place.cpus for pool in self.pools for place in pool.places)

    @property
    def gpus(self) -> int:
        return sum(place.gpus for pool in self.pools for place in pool.places)


def make_plan(
    config: PPOConfig,
    machine: Machine,
    shape: ModelShape | None = None,
    *,
    served: Sequence[tuple[int, int, int]] = (),
    teacher: ModelShape | None = None,
    serving: bool = False,
) -> Plan:
    """Place the parts of a run; PlanError where that cannot be. Without a ``shape`` no memory is estimated.

    ``served`` and ``teacher`` are as in :func:`trainers.cluster.memory.estimate`. ``serving``: engines alone, on Ray:
    there is no learner, and ``cluster.colocate`` is false.
    """
    device = _device(config, machine)
    per_node = _gpus_per_node(config, machine, device)
    if config.engine.replicas is None:
        config = with_replicas(config, _room_for_engines(config, device, per_node, serving))
    cluster, engine = config.cluster, config.engine
    ranks = 0 if serving else cluster.learner_ranks
    replicas = 0 if engine.base_urls else engine.engines  # servers that run already need no place
    _check_sizes(config, device, per_node, engine.gpus, ranks, replicas)
    shards = 1 if serving else _check_cut(config, machine, shape)
    if not serving:
        _check_in_flight(config)

    learner = _learner_seats(config, device, ranks)
    engines, engine_gpus = _engine_seats(config, device, replicas)
    environments = _environment_seats(config)
    rewards = tuple(_reward_seats(config, learner, float(cluster.cpus_per_actor), int(device == "cuda")))
    placed_by_ray = (*learner, *engines, *(seat for workers in rewards for seat in workers.seats))
    memory: tuple[tuple[str, str, int], ...] = ()
    on_ray, local_ranks = cluster.backend == "ray", _ranks(config, machine)
    if shape is not None:
        sizes: dict[str, Any] = {"ranks": local_ranks, "shards": shards, "engine_gpus": engine.gpus}
        total, free = machine.gpu_bytes, machine.gpu_free
        others: dict[str, Any] = {"served": served, "teacher": teacher}
        memory = tuple(estimate(config, shape, device=device, gpu_bytes=total, gpu_free=free, **others, **sizes))
    lines = timelines(memory, config, device, local_ranks, machine) if memory else ()
    plan = Plan(
        "ray" if on_ray else "local",
        device,
        cluster.nnodes,
        per_node,
        pools=tuple(_pools((*(placed_by_ray if on_ray else ()), *environments))),
        learner=learner,
        engines=engines,
        engine_gpus=engine_gpus,
        environments=environments,
        rewards=rewards,
        memory=memory,
        timelines=lines,
        notes=() if serving else (*_notes(config, engine_gpus), *tight(lines)),
    )
    _check_cpus(plan, config.ray_init.num_cpus)
    for shortage in shortages(lines, config, device, machine):
        raise PlanError(shortage)
    return plan


def _device(config: PPOConfig, machine: Machine) -> Literal["cpu", "cuda"]:
    """Return the device that ``model.device`` is on this machine."""
    if config.model.device != "auto":
        return config.model.device
    gpus = machine.gpus if config.cluster.n_gpus_per_node is None else config.cluster.n_gpus_per_node
    return "cuda" if gpus else "cpu"


def _learner_seats(config: PPOConfig, device: str, ranks: int) -> tuple[Seat, ...]:
    """Place the learner's ranks."""
    cluster, gpu = config.cluster, int(device == "cuda")
    pool: PoolName = "shared" if cluster.colocate else "learner"
    # The GPUs that a server shares with ranks are one place, for Ray alone decides which places are on one machine.
    ranks_of_place = config.engine.gpus if cluster.colocate and gpu else 1
    return tuple(Seat(pool, rank // ranks_of_place, float(cluster.cpus_per_actor), gpu) for rank in range(ranks))


def _engine_seats(
    config: PPOConfig, device: str, replicas: int
) -> tuple[tuple[Seat, ...], tuple[tuple[int, ...], ...]]:
    """Place the engine's replicas; for each, the seat and the ranks whose GPUs it uses (``Plan.engine_gpus``)."""
    cluster, width, gpu = config.cluster, config.engine.gpus, device == "cuda"
    pool: PoolName = "shared" if cluster.colocate else "engines"
    own_gpus = width if gpu and not cluster.colocate else 0
    seats = tuple(Seat(pool, i, float(cluster.cpus_per_actor), own_gpus) for i in range(replicas))
    if gpu and cluster.colocate and cluster.backend == "ray":
        return seats, tuple(tuple(range(i * width, (i + 1) * width)) for i in range(replicas))
    return seats, ((),) * replicas


def _environment_seats(config: PPOConfig) -> tuple[Seat, ...]:
    """Place the environments, if they are counted actors of Ray."""
    cpus = config.cluster.cpus_per_env
    if config.env.backend != "ray" or not cpus:
        return ()
    assert config.env.workers is not None
    # Training and validation have environments of their own, and so has each component of a mixture.
    count = 2 * config.env.workers * max(1, len(config.env.mixture))
    return tuple(Seat("environments", i, cpus) for i in range(count))


def _check_cpus(plan: Plan, cpus: float | None) -> None:
    """Check that Ray's CPUs (``ray_init.num_cpus``) are enough; null is as many as it finds."""
    if cpus is not None and plan.cpus > cpus:
        raise PlanError(
            f"ray_init.num_cpus={cpus}, but {_cpus_in_words(plan)}: {plan.cpus:g}. Give Ray at least "
            f"{ceil(plan.cpus)}, or take fewer"
        )


def with_replicas(config: PPOConfig, count: int) -> PPOConfig:
    """Return the configuration with a number of engines, as a plan counts them (``len(plan.engines)``)."""
    return config.model_copy(update={"engine": config.engine.model_copy(update={"replicas": max(1, count)})})


def _room_for_engines(config: PPOConfig, device: str, per_node: int, serving: bool) -> int:
    """Return the engines that ``engine.replicas=null`` is: as many as there are GPUs for; it may be none."""
    cluster, engine = config.cluster, config.engine
    if device == "cpu" or engine.base_urls:
        return 1
    ranks = 0 if serving else cluster.learner_ranks
    if cluster.backend == "local" and cluster.colocate:
        # The embedded one is where the learner is; servers take the machine's GPUs in turn.
        return 1 if engine.name == "torch" else per_node // engine.gpus
    if not cluster.colocate:
        return (cluster.nnodes * per_node - ranks) // engine.gpus
    spanning = [section for section in config.reward_models.values() if section.spans]
    return (ranks - sum(section.workers for section in spanning)) // engine.gpus


def _reward_seats(config: PPOConfig, learner: tuple[Seat, ...], cpus: float, gpu: int) -> Iterator[Workers]:
    """Yield the places of each reward model's workers, and the ranks whose GPUs they use."""
    first = 0
    for section in config.reward_models.values():
        count = section.workers
        if not count:
            continue
        if section.own_pool and not section.spans:
            seats = tuple(Seat("rewards", i, cpus, gpu) for i in range(count))
            yield Workers(section.name, seats, ((),) * count)
            continue
        # Without a pool they begin where the engines do, one model's after the other's; in a pool that the learner
        # spans, they have the last places.
        start = len(learner) - count if section.spans else first
        first += count
        ranks = [(start + i) % len(learner) for i in range(count)]
        seats = tuple(Seat(learner[rank].pool, learner[rank].place, cpus) for rank in ranks)
        yield Workers(section.name, seats, tuple((rank,) if gpu else () for rank in ranks))


def _own_pool(config: PPOConfig) -> tuple[str, ClassifierModelSection] | None:
    """Return the key and section of the reward model with its own pool; at most one has it."""
    models = sections_of(config).items()
    return next(((key, it) for key, it in models if isinstance(it, ClassifierModelSection) and it.own_pool), None)


def _gpus_per_node(config: PPOConfig, machine: Machine, device: str) -> int:
    configured = config.cluster.n_gpus_per_node
    if device == "cpu":
        if configured:
            raise PlanError(
                f"cluster.n_gpus_per_node={configured}, but model.device=cpu uses none; leave it out, or cuda"
            )
        return 0
    local = config.cluster.backend == "local"
    key, section = _own_pool(config) or ("", None)
    own = 0 if section is None or section.spans else section.n_gpus_per_node
    if configured is None and own and machine.gpus <= own:
        raise PlanError(
            f"{key}.n_gpus_per_node={own} is for a pool beside the others, and {machine.says}: none would be left"
        )
    count = machine.gpus - own if configured is None else configured
    if count == 0:
        raise PlanError(
            "model.device=cuda needs GPUs, and there are none "
            + ("here" if configured is None else "with cluster.n_gpus_per_node=0")
            + ("" if local else "; say how many each machine of the cluster has: cluster.n_gpus_per_node=N")
        )
    if (local or machine.nodes) and count + own > machine.gpus:
        pool_gpus = f" and {key}.n_gpus_per_node={own}" if own else ""
        raise PlanError(f"cluster.n_gpus_per_node={count}{pool_gpus}, but {machine.says}; at most that many do")
    if machine.nodes and config.cluster.nnodes > machine.nodes:
        raise PlanError(
            f"cluster.nnodes={config.cluster.nnodes}, but --plan-for has {machine.nodes}; at most that many do"
        )
    return count


def _check_sizes(config: PPOConfig, device: str, per_node: int, width: int, ranks: int, replicas: int) -> None:
    cluster = config.cluster
    for key, section in sections_of(config).items():
        _check_workers(key, section, config, device, width)
    total = cluster.nnodes * per_node
    if device == "cpu":
        if not cluster.colocate and cluster.backend == "local":
            raise PlanError("cluster.colocate=false has no effect without GPUs and without Ray: there are no places")
        return
    if width > per_node or per_node % width:
        raise PlanError(
            f"engine.tensor_parallel_size={width} does not divide cluster.n_gpus_per_node={per_node}: an engine stays "
            f"on one machine; {', '.join(str(n) for n in range(1, per_node + 1) if per_node % n == 0)} do"
        )
    if ranks > per_node and ranks % per_node:
        raise PlanError(
            f"cluster.learner_ranks={ranks} is more than cluster.n_gpus_per_node={per_node} and not a multiple of it: "
            f"machines would have unequal shares; {ranks // per_node * per_node} or {-(-ranks // per_node) * per_node} "
            "would do"
        )
    engines = replicas * width
    totals = f"cluster.nnodes={cluster.nnodes} times cluster.n_gpus_per_node={per_node} is {total} GPUs"
    if cluster.colocate:
        if ranks > total:
            raise PlanError(f"{totals}, and cluster.learner_ranks={ranks} need one each; at most {total} do")
        if engines > ranks and cluster.backend == "ray":
            raise PlanError(
                f"engine.replicas={replicas} of {width} GPUs each are {engines}, and with cluster.colocate=true they "
                f"share those of cluster.learner_ranks={ranks}; at most {ranks // width} replicas do, or "
                "cluster.colocate=false"
            )
        return
    if cluster.backend == "local" and config.engine.name != "torch":
        raise PlanError(
            f"cluster.colocate=false places engines of engine.name=torch, or of Ray; {config.engine.name} chooses its "
            "GPUs by itself here: use cluster.backend=ray, or leave cluster.colocate out"
        )
    by_ipc = isinstance(config.engine, ServedEngineSection) and config.engine.weight_transport == "ipc"
    if ranks and by_ipc and not config.engine.base_urls:
        raise PlanError(
            "engine.weight_transport=ipc: with cluster.colocate=false the servers compute on other GPUs than the "
            "learner, so they share no memory; take process_group"
        )
    if not ranks and engines > total:
        raise PlanError(
            f"{totals}, and engine.replicas={replicas} of {width} GPUs each need {engines}; at most {total // width} "
            "replicas do"
        )
    if ranks + engines > total:
        raise PlanError(
            f"{totals}; cluster.learner_ranks={ranks} and engine.replicas={replicas} of {width} GPUs each need "
            f"{ranks + engines} with cluster.colocate=false; share them (cluster.colocate=true), or take fewer"
        )


def _check_in_flight(config: PPOConfig) -> None:
    """Refuse more requests at a time than one event loop can have tasks for."""
    if (requests := episodes(config) + futures(config)) > _MOST_IN_FLIGHT:
        rollout, ahead = config.rollout, config.multiturn_reward.enable
        raise PlanError(
            f"rollout.groups_per_batch={rollout.groups_per_batch}, rollout.n={rollout.n} and rollout.staleness="
            f"{rollout.staleness} mean {requests} requests in flight at a time; at most {_MOST_IN_FLIGHT} do: lower "
            f"these, or give rollout.max_running{' and multiturn_reward.concurrency' if ahead else ''}"
        )


def _check_workers(key: str, section: RewardModelSection, config: PPOConfig, device: str, width: int) -> None:
    cluster, count = config.cluster, section.workers
    ranks = cluster.learner_ranks
    if section.spans:
        if device == "cpu" and cluster.backend == "local":
            raise PlanError(f"{key}.learner_spans_pool has no effect without GPUs and without Ray: no places")
        engines = config.engine.engines * (width if device == "cuda" else 1)
        if engines + count > ranks:
            raise PlanError(
                f"{key}.learner_spans_pool: engines take {engines} of the places of "
                f"cluster.learner_ranks={ranks}, and {key}.n_gpus_per_node times nnodes is {count}; together "
                f"they must be at most {ranks}: more ranks, or fewer of the others"
            )
        return
    if count > ranks and not section.own_pool and cluster.backend == "ray":
        raise PlanError(
            f"{key}.classifier.replicas={count} share the places of cluster.learner_ranks={ranks}; at most "
            f"{ranks} do, or a pool of their own: {key}.enable_resource_pool=true"
        )


def _check_cut(config: PPOConfig, machine: Machine, shape: ModelShape | None) -> int:
    """Check the parallel sizes of `trainer` against ranks and model; return the ranks that it is sharded over."""
    from trainers.learner.parallel import check_sizes, shape_of

    run = config.trainer
    try:
        _, shards = shape_of(run, _ranks(config, machine))
        if shape is not None:
            check_sizes(shape.heads, shape.kv_heads, shape.intermediate, run)
    except ValueError as error:
        raise PlanError(
            f"the learner with cluster.learner_ranks={config.cluster.learner_ranks}, trainer.fsdp_size="
            f"{run.fsdp_size}, trainer.tensor_parallel_size={run.tensor_parallel_size} and "
            f"trainer.ulysses_sequence_parallel_size={run.ulysses_sequence_parallel_size}: {error}"
        ) from error
    return shards


def _ranks(config: PPOConfig, machine: Machine) -> int:
    return config.cluster.learner_ranks if config.cluster.learner_ranks > 1 else machine.world


def _pools(seats: Sequence[Seat]) -> Iterator[Pool]:
    for name in dict.fromkeys(seat.pool for seat in seats):
        own = [seat for seat in seats if seat.pool == name]
        places = tuple(
            Place(
                sum(seat.cpus for seat in own if seat.place == number),
                sum(seat.gpus for seat in own if seat.place == number),
            )
            for number in range(max(seat.place for seat in own) + 1)
        )
        yield Pool(name, places, "SPREAD" if name == "environments" else "PACK")


def _cpus_in_words(plan: Plan) -> str:
    parts = []
    if plan.backend == "ray":
        ranks = f"{len(plan.learner)} learner ranks and " if plan.learner else ""
        cpus = (*plan.learner, *plan.engines)[0].cpus
        parts += [f"{ranks}{len(plan.engines)} engines with cluster.cpus_per_actor={cpus:g} take"]
    if plan.backend == "ray" and plan.rewards:
        seats = [seat for workers in plan.rewards for seat in workers.seats]
        parts.append(f"{plural(len(seats), 'worker')} of reward models {seats[0].cpus:g} each")
    if plan.environments:
        one = f"{len(plan.environments)} environments (env.workers, for training and for validation) take"
        parts.append(f"{one} {plan.environments[0].cpus:g} each")
    return " and ".join(parts) + ", together"


def _notes(config: PPOConfig, shared: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """Yield the plan's disadvantages; ``shared`` are the ranks whose GPUs each engine uses."""
    ranks, trainer = config.cluster.learner_ranks, config.trainer
    episodes = episodes_per_batch(config.rollout) // config.actor.mini_batches
    together = trainer.tensor_parallel_size * trainer.ulysses_sequence_parallel_size
    if episodes < ranks // together:
        shares = f", each of which {together} compute" if together > 1 else ""
        yield f"a mini-batch has {episodes} episodes{shares}, and cluster.learner_ranks={ranks}: some ranks will idle"
    if any(section.workers for section in config.reward_models.values()):
        yield "the memory of reward models is not estimated"
    key, section = _own_pool(config) or ("", None)
    if section is not None and not section.spans and not config.rollout.staleness:
        yield (
            "on-policy, the reward model's own pool waits while the learner learns; with "
            f"{key}.learner_spans_pool=true the learner uses its GPUs too"
        )
    idle = ranks - sum(map(len, shared))
    if any(shared) and idle and section is None:
        yield f"{plural(idle, 'GPU')} of the learner will generate nothing: leave engine.replicas out, to use all"
    if ranks > 1 and config.cluster.nnodes > 1:
        yield "trainer.default_local_dir must be on a file system that all machines share"


# ------------------ description


def describe(plan: Plan) -> str:
    gpus = f"{plan.nnodes} x {plan.gpus_per_node} GPUs" if plan.device == "cuda" else "CPU"
    lines = [f"The plan: cluster.backend={plan.backend}, {gpus}."]
    ranks, engines = len(plan.learner), len(plan.engines)
    if plan.backend == "local":
        lines.append("learner: in this process")
        if engines:
            lines.append(f"engine: in (or started by) this process, {plural(engines, 'replica')}")
    for pool in plan.pools:
        counted = {place: pool.places.count(place) for place in dict.fromkeys(pool.places)}
        places = ", ".join(f"{count} x ({_place(place)})" for place, count in counted.items())
        lines.append(f"pool {pool.name}: {places}, {pool.strategy}")
    if plan.backend == "ray" and plan.learner:
        lines.append(f"learner: {plural(ranks, 'rank')} in pool {plan.learner[0].pool}")
    if not engines:
        lines.append("engine: servers that run already")
    elif plan.backend == "ray":
        shared = any(plan.engine_gpus)
        lines.append(
            f"engine: {plural(engines, 'replica')} in pool {plan.engines[0].pool}"
            + (f", on the GPUs of ranks {', '.join('+'.join(map(str, g)) for g in plan.engine_gpus)}" if shared else "")
        )
    lines += [_rewards_in_words(workers, plan) for workers in plan.rewards]
    for who in dict.fromkeys(who for who, _, _ in plan.memory if plan.device == "cpu"):
        rows = [(what, size) for w, what, size in plan.memory if w == who]
        parts = ", ".join(f"{what} {_bytes(size)}" for what, size in rows)
        where = "in this process" if who == SERVED else "each process"
        lines.append(f"memory of the {who}, {where}, estimated: {_bytes(sum(s for _, s in rows))} ({parts})")
    lines += [text for line in plan.timelines for text in table(line)]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _rewards_in_words(workers: Workers, plan: Plan) -> str:
    count, pool = plural(len(workers.seats), "worker"), workers.seats[0].pool
    who = "reward model" if workers.model == "reward_model" else f"reward model {workers.model}"
    if plan.backend == "local":
        return f"{who}: {count} in this process"
    ranks = ", ".join(str(*its or (seat.place,)) for seat, its in zip(workers.seats, workers.gpus, strict=True))
    return f"{who}: {count} in pool {pool}" + ("" if pool == "rewards" else f", in the places of ranks {ranks}")


def _place(place: Place) -> str:
    return f"{place.cpus:g} CPU" + (f", {place.gpus} GPU" if place.gpus else "")


def _bytes(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / 2**20:.1f} MiB"
