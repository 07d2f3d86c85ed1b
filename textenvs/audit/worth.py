"""What an environment pays: its scripts, its own attacks, and what an episode takes."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from collections.abc import Iterator

from ..attack import COMMON
from ..evaluate.baselines import has_script, play_attack, play_script
from ..evaluate.policies import ScriptedPolicy
from ..evaluate.runner import Stopped
from .subject import Subject, Verdict, judge_attack, mean, solved

_TIMED = 10  # episodes that are timed


def returns(subject: Subject) -> Verdict:
    """The floor (silence, random replies) is below the ceiling (the expert)."""
    floor = f"silence {mean(subject.silence):+.3f}, random {subject.floor:+.3f}"
    if failures := [record for record in (*subject.silence, *subject.random) if record.failed]:
        cause = "a reply makes the environment fail; a bad reply is something to answer"
        return Verdict("returns", "fail", cause, f"{failures[0].stop}: {failures[0].failure}")
    if subject.expert is None:
        cause = "no scripted expert: neither the ceiling nor how near a cheap policy comes to it can be judged; define"
        return Verdict("returns", "skipped", f"{cause} demonstration(rng)", floor)
    ceiling = mean(subject.expert)
    careless = "-"
    evidence = f"{floor}, expert {ceiling:+.3f} (solved {solved(subject.expert):.1%})"
    if failures := [record for record in subject.expert if record.failed]:
        cause = "the expert makes the environment fail"
        return Verdict("returns", "fail", cause, f"{failures[0].stop}: {failures[0].failure}")
    if ceiling <= max(subject.floor, mean(subject.silence)):
        cause = "the expert earns no more than silence or random replies: tasks are judged wrongly, or nothing is paid"
        return Verdict("returns", "fail", cause, evidence)
    if has_script(subject.env, "careless"):
        earned = mean(play_script(subject.make_env, "careless", subject.episodes, seed=subject.seed))
        careless = f"{earned:+.3f}"
        if earned >= ceiling:
            cause = "careless replies earn what the expert earns: mistakes cost nothing"
            return Verdict("returns", "fail", cause, f"{evidence}, careless {careless}")
    range_of = f"a range of {ceiling - subject.floor:.3f} from random replies to the expert"
    return Verdict("returns", "pass", range_of, f"{evidence}, careless {careless}")


def own_attacks(subject: Subject) -> Iterator[Verdict]:
    """The environment's own attacks, each against the expert."""
    attacks = subject.env.attacks()
    common = {attack.name for attack in COMMON}
    if not {attack.name for attack in attacks} - common:
        cause = (
            "it lists no attacks of its own: ask what is the cheapest reply that earns its reward, and return "
            "(*COMMON, always('name', 'what it says', 'the reply')) from attacks()"
        )
        yield Verdict("attacks", "warning" if subject.imported else "fail", cause)
    if subject.env.attack_margin < 0.1:
        yield Verdict("attacks", "fail", "attack_margin is below 0.1", f"{subject.env.attack_margin:g}")
    if subject.expert is None:
        yield Verdict("attacks", "skipped", "no scripted expert to compare them with", f"{len(attacks)} attacks")
        return
    for attack in attacks:
        try:
            records = play_attack(subject.make_env, attack, subject.episodes, seed=subject.seed)
        except Stopped as stopped:
            yield Verdict(f"attack {attack.name}", "fail", "it makes the environment fail", str(stopped))
        else:
            yield judge_attack(subject.env, attack, records, subject.expert, subject.random)


def cost(subject: Subject) -> Verdict:
    """Time and memory of an episode, reported and not judged: the expert's, or else of random replies."""
    script = ScriptedPolicy("random" if subject.expert is None else "expert")
    indices, _ = subject.tasks(_TIMED)
    started = time.perf_counter()
    records = subject.play(script, indices, subject.seed)
    seconds = time.perf_counter() - started
    turns = sum(record.assistant_turns for record in records)
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    subject.play(script, indices[:1], subject.seed)
    peak = tracemalloc.get_traced_memory()[1] - before
    if not tracing:
        tracemalloc.stop()
    env = subject.make_env()
    env.reset(seed=subject.seed)
    size = len(pickle.dumps(env.snapshot()))
    env.close()
    speed = f"{1000 * seconds / len(records):.3g} ms an episode, {1000 * seconds / max(turns, 1):.3g} ms a turn"
    memory = f"{peak / 1024:.0f} KiB at most while an episode is played, {size / 1024:.1f} KiB a snapshot"
    return Verdict("cost", "pass", f"the {script.script}: {speed}", memory)
