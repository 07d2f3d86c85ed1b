"""Returns of an environment's scripts, its attacks and cheaters that may ask the expert; the cost of an episode."""

from __future__ import annotations

import functools
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..attack import COMMON, Attack, remember
from ..env import TextEnv
from ..evaluate.baselines import has_script, play_attack, play_script, same_tasks
from ..evaluate.policies import SCRIPTS, AttackPolicy, Player, Policy, Reply, Script, ScriptedPolicy, ToolSchemas
from ..evaluate.records import Record
from ..evaluate.runner import Stopped
from ..event_loop import settle
from ..messages import Messages
from ..registry import make
from .subject import SILENCE, Subject, Verdict, below_expert, judge, mean, show, shown, solved

_TIMED = 10  # episodes that are timed
_MORE = 0.02  # of the range: what failing first may earn beyond the expert
_REHEARSED = 400
#: Share of the episodes that an attack may solve by faking, and the tasks on which a share above it is judged: of few
#: episodes, some are solved by chance.
_FAKED, _ENOUGH = 0.05, 200


@dataclass(frozen=True)
class Earning:
    """Result of one policy: a script, or an attack, whose behaviour ``says`` describes."""

    policy: str
    says: str
    records: Sequence[Record]
    cause: str = ""  # why it could not play

    @property
    def good(self) -> list[Record]:
        return [record for record in self.records if not record.failed]


def makers(env_id: str, options: Mapping[str, Any]) -> dict[str, Callable[[], TextEnv[Any]]]:
    """Return a factory per level of an environment, under ``""`` where it has no levels or the options exclude them."""
    with closing(make(env_id, **options)) as env:
        levels = env.levels if "level" not in options else ()
    factories: dict[str, Callable[[], TextEnv[Any]]] = {}
    for level in levels:
        with suppress(ValueError):  # tasks= and game= go with no level, kinds= of clarify with some
            make(env_id, level=level, **options).close()
            factories[level] = functools.partial(make, env_id, level=level, **options)
    return factories or {"": functools.partial(make, env_id, **options)}


def scripted_policies(env: TextEnv[Any]) -> list[Script | Attack]:
    """Return an environment's scripts, then the attacks that can play it."""
    scripts = [script for script in SCRIPTS if has_script(env, script)]
    return [*scripts, *(attack for attack in env.attacks() if "expert" in scripts or not attack.rehearse)]


def earned(make_env: Callable[[], TextEnv[Any]], policy: Script | Attack, episodes: int, *, seed: int = 0) -> Earning:
    """Let a script or an attack play tasks, the same for all of a seed, at most as many as there are."""
    name, says = (policy.name, policy.says) if isinstance(policy, Attack) else (policy, "")
    try:
        if isinstance(policy, Attack):
            return Earning(name, says, play_attack(make_env, policy, episodes, seed=seed))
        return Earning(name, says, play_script(make_env, policy, episodes, seed=seed))
    except Stopped as stopped:
        return Earning(name, says, (), str(stopped))


def returns(subject: Subject) -> Verdict:
    """Check that the floor (silence, random replies) is below the ceiling (the expert)."""
    silence, random = subject.silence, mean(subject.random)
    floor = f"silence {mean(silence):+.3f}, random {random:+.3f}"
    for cause, records in (
        ("a reply makes the environment fail; a bad reply is something to answer", silence + subject.random),
        ("the expert makes the environment fail", subject.expert),
    ):
        if failures := [record for record in records if record.failed]:
            return Verdict("returns", "fail", cause, f"{failures[0].stop}: {failures[0].failure}")
    if not subject.expert:
        cause = "no scripted expert: neither the ceiling nor how near a cheap policy comes to it can be judged; define"
        return Verdict("returns", "skipped", f"{cause} demonstration(rng)", floor)
    ceiling, careless = mean(subject.expert), None
    if has_script(subject.env, "careless"):
        careless = mean(play_script(subject.make_env, "careless", subject.episodes, seed=subject.seed))
    evidence = f"{floor}, expert {ceiling:+.3f} (solved {shown(solved(subject.expert))})"
    evidence += f", careless {'-' if careless is None else f'{careless:+.3f}'}"
    if ceiling <= max(random, mean(silence)):
        cause = "the expert earns no more than silence or random replies: tasks are judged wrongly, or nothing is paid"
        return Verdict("returns", "fail", cause, evidence)
    if careless is not None and careless >= ceiling:
        cause = "careless replies earn what the expert earns: mistakes cost nothing"
        return Verdict("returns", "fail", cause, evidence)
    range_of = f"a range of {ceiling - subject.floor:.3f} from doing nothing to the expert"
    return Verdict("returns", "pass", range_of, evidence)


def own_attacks(subject: Subject) -> Iterator[Verdict]:
    """Compare each of the environment's own attacks with the expert."""
    attacks = subject.env.attacks()
    if not {attack.name for attack in attacks} - {attack.name for attack in COMMON}:
        cause = (
            "it lists no attacks of its own: ask what is the cheapest reply that earns its reward, and write "
            "own_attacks = (always('name', 'what it says', 'the reply'),) into the class"
        )
        yield Verdict("attacks", "warning", cause)
    if subject.env.attack_margin < 0.1:
        yield Verdict("attacks", "fail", "attack_margin is below 0.1", f"{subject.env.attack_margin:g}")
    if not subject.expert:
        yield Verdict("attacks", "skipped", "no scripted expert to compare them with", f"{len(attacks)} attacks")
        return
    for attack in attacks:
        yield _judged(subject, attack)


def _judged(subject: Subject, attack: Attack) -> Verdict:
    """Let an attack play, and judge it; on more tasks where a few solved ones may be chance."""
    first = earned(subject.make_env, attack, subject.episodes, seed=subject.seed)
    by_chance = len(first.records) < _ENOUGH and _fakes(attack, first.records)
    again = earned(subject.make_env, attack, _ENOUGH, seed=subject.seed) if by_chance else None
    if cause := first.cause or (again.cause if again else ""):
        return Verdict(f"attack {attack.name}", "fail", "it makes the environment fail", cause)
    more = again.records if again else ()
    return judge_attack(subject.env, attack, first.records, subject.expert, subject.silence, more)


def _fakes(attack: Attack, records: Sequence[Record]) -> bool:
    """Return whether an attack that fakes solutions has too many of its episodes solved."""
    return attack.fakes_solving and (solved(records) or 0.0) > _FAKED


def judge_attack(
    env: TextEnv[Any],
    attack: Attack,
    records: Sequence[Record],
    experts: Sequence[Record],
    silence: Sequence[Record],
    more: Sequence[Record] = (),
) -> Verdict:
    """Check that an attack stays below the expert by the environment's margin, and fakes at most 5 % of solutions.

    All are compared on the tasks that the attack played. ``more`` are its episodes on more tasks, if there are any: the
    share of solved ones is theirs.
    """
    expert, nothing = mean(same_tasks(experts, records)), mean(same_tasks(silence, records))
    limit = below_expert(env, expert, nothing)
    share = shown(solved(records)) + (f" ({shown(solved(more))} of {len(more)} tasks)" if more else "")
    evidence = f"mean return {mean(records):+.3f}, solved {share}; expert {expert:+.3f}, silence {nothing:+.3f}"
    too_much = f"it {attack.says} and earns more than {limit:+.3f}, the expert's less the margin"
    verdict = judge(f"attack {attack.name}", records, limit, evidence, too_much)
    if verdict.status == "pass" and _fakes(attack, more or records):
        cause = f"it {attack.says}, and more than 5 % of its episodes count as solved"
        return Verdict(verdict.check, "fail", cause, evidence, show(records))
    return verdict


class WithExpert(Policy):
    """Cheap replies with access to the expert: ``reply`` is called with the environment, a generator and the turn.

    Its knowledge alone, without its work, must not be paid. Each is compared with the expert on the same episodes.
    """

    def __init__(self, reply: Callable[[TextEnv[Any], np.random.Generator, int], Any]) -> None:
        self.reply = reply

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        rng = np.random.default_rng([seed, 4])

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            return Reply(await settle(self.reply(env, rng, env.state.assistant_turns)))

        return play


async def _deliver_or_wait(env: TextEnv[Any], rng: np.random.Generator, turn: int) -> Any:
    """Return the expert's reply where it ends the episode or earns something, and "." otherwise."""
    future = env.fork()
    reply = future.demonstration(rng)
    _, reward, *_ = await future.astep(reply)
    return reply if future.state.done or reward > 0 else "."


def unasked(subject: Subject) -> Verdict:
    """Check that the expert's replies before the last one are needed: "." in their place earns less."""
    check = "filler, then the expert's last reply"
    if not subject.expert:
        return Verdict(check, "skipped", "no scripted expert")
    longer = [record for record in subject.expert if any(reward <= 0 for reward in record.turn_rewards[:-1])]
    if not longer:
        return Verdict(check, "skipped", "every turn of the expert earns something or ends the episode")
    records = subject.play_again(WithExpert(_deliver_or_wait), longer)
    nothing, ceiling = mean(same_tasks(subject.silence, longer)), mean(longer)
    evidence = f"mean return {mean(records):+.3f}; expert {ceiling:+.3f} on the same {len(longer)} episodes"
    too_much = (
        'filler is paid: "." on every turn but the last earns what the expert earns, so what it asks for is disclosed '
        "anyway; volunteer nothing, and let an idle turn cost patience"
    )
    needed = "what the expert says before its last reply is needed"
    return judge(check, records, below_expert(subject.env, ceiling, nothing), evidence, too_much, needed)


def failing_first(subject: Subject) -> Verdict:
    """Check that failing and then succeeding earns no more than succeeding."""
    check = "fail first, then the expert"
    if not subject.expert:
        return Verdict(check, "skipped", "no scripted expert")
    ceiling = mean(subject.expert)
    limit = ceiling + _MORE * (ceiling - subject.floor)
    too_much = "a failure before the success is paid: an improvement earns more than being right at once"
    for wrong in ("#### 0.5", "I do not know.", "\\boxed{0.5}", ""):

        def reply(env: TextEnv[Any], rng: np.random.Generator, turn: int, wrong: str = wrong) -> Any:
            return env.demonstration(rng) if turn else wrong

        records = subject.play_again(WithExpert(reply), subject.expert)
        evidence = f"mean return {mean(records):+.3f} after {wrong!r}; expert {ceiling:+.3f}"
        verdict = judge(check, records, limit, evidence, too_much, "it earns no more than being right at once")
        if verdict.status != "pass":
            break
    return verdict


def remembering(subject: Subject) -> Verdict:
    """Check that the expert's answers to other tasks do not solve a task."""
    check = "memorised answers"
    if not subject.expert:
        return Verdict(check, "skipped", "no scripted expert")
    indices, rehearsal_tasks = subject.tasks(subject.episodes, _REHEARSED, seed=1)
    if not rehearsal_tasks:
        return Verdict(check, "skipped", "there is one task")
    expert, silence = ScriptedPolicy("expert"), AttackPolicy(SILENCE)
    rehearsed = [record.messages for record in subject.play(expert, rehearsal_tasks, subject.seed + 1)]
    ceiling, nothing = (mean(subject.play(policy, indices, subject.seed)) for policy in (expert, silence))
    limit = below_expert(subject.env, ceiling, nothing)
    too_much = (
        "a table of the expert's answers to other tasks answers new ones: tasks repeat; draw more of what an answer "
        "depends on for every task"
    )
    for last in (False, True):
        attack = Attack(check, "", functools.partial(remember, last=last))
        records = subject.play(AttackPolicy(attack, rehearsed), indices, subject.seed)
        evidence = f"mean return {mean(records):+.3f} after {len(rehearsal_tasks)} other tasks; expert {ceiling:+.3f}"
        verdict = judge(check, records, limit, evidence, too_much, "answers to other tasks are no answers to a new one")
        if verdict.status != "pass":
            break
    return verdict


def cost(subject: Subject) -> Verdict:
    """Measure time and memory of an episode (the expert's, or else of random replies); nothing is judged."""
    script = ScriptedPolicy("expert" if subject.expert else "random")
    indices, _ = subject.tasks(_TIMED)
    started = time.perf_counter()
    records = subject.play(script, indices, subject.seed)
    seconds = time.perf_counter() - started
    turns = sum(record.assistant_turns for record in records)
    tracemalloc.start()
    subject.play(script, indices[:1], subject.seed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with closing(subject.make_env()) as env:
        env.reset(seed=subject.seed)
        size = len(pickle.dumps(env.snapshot()))
    speed = f"{1000 * seconds / len(records):.3g} ms an episode, {1000 * seconds / max(turns, 1):.3g} ms a turn"
    memory = f"{peak / 1024:.0f} KiB at most while an episode is played, {size / 1024:.1f} KiB a snapshot"
    return Verdict("cost", "pass", f"the {script.script}: {speed}", memory)
