"""Audit environments that others published: what of their rewards can be had without the task?

    python -m benchmarks.field_audit [--only PREFIX,...] [--openenv FOLDER] [--results FILE] [--limit SECONDS] [--retry]
        [--report]

Every environment that the packages register (:mod:`.sources`) is played as its package publishes it, in a process of
its own, by ``textenvs.audit`` and by the checks of :mod:`.checks`. It resumes: environments that the results have are
left out, a JSON line for each; ``--retry`` plays those again that did not begin or end. ``--report`` plays nothing and
makes the tables of docs/field-audit.md again.

The packages whose environments ``--only`` selects must be installed. OpenEnv publishes its environments in its
repository: ``--openenv`` is a checkout of it, with its requirements installed (``pip install ./OpenEnv``). GEM pins old
versions of what it needs, and the audit needs none of it: ``pip install --no-deps gem-llm``. Nothing is downloaded;
what needs a download, a service or a key does not begin, and the results say so.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.hardware import processor
from textenvs.attack import Attack
from textenvs.audit.contract import determinism, play_episodes, processes, secrets
from textenvs.audit.earnings import judge_attack, remembering, returns
from textenvs.audit.search import search
from textenvs.audit.subject import Subject, Verdict, mean
from textenvs.evaluate.baselines import play_attack
from textenvs.evaluate.runner import Stopped
from textenvs.global_rng import RandomState, contained

from . import checks, page
from .registration import RegisteredEnv, Registration
from .sources import packages

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "field_audit.jsonl"
EPISODES, SEARCH = 30, 60
#: Episodes, on other tasks, that judge a policy which earned too much in the first ones.
CONFIRMING = 300
#: Seconds that an environment may take in all.
LIMIT_S = 600.0


def verdicts_on(registration: Registration, subject: Subject, earned: dict[str, float]) -> Iterator[Verdict]:
    """Yield the verdicts on an environment, named by the kind of finding; puts what attacks earn into ``earned``."""
    for verdict in checks.odd_replies(registration):
        yield verdict
        if verdict.check == "fails to begin":
            return
    yield checks.global_generators(registration)
    if registration.question:
        yield from checks.answers(registration)
    episodes = play_episodes(subject)
    for check in (determinism, processes):
        yield replace(check(subject, episodes), check="another episode")
    yield replace(secrets(subject, episodes), check="shows a secret")
    if registration.players() == 1:
        yield checks.idle(subject, registration.full)
    if registration.solvable:
        yield replace(returns(subject), check="no gain by being right")
        larger = Subject(subject.make_env, CONFIRMING, subject.seed + 1, subject.search)
        yield from attacked(subject, larger, earned)
        yield confirmed(remembering, subject, larger)
        # By the same seed the search arrives at the same policy, and judges it by more episodes.
        yield replace(confirmed(search, subject, replace(larger, seed=subject.seed)), check="cheap policy")


def confirmed(check: Callable[[Subject], Verdict], subject: Subject, larger: Subject) -> Verdict:
    """Return the verdict on a subject, or that on a larger one where it is a failure.

    Answers of yes or no pass a limit by chance in as few as 30 episodes.
    """
    verdict = check(subject)
    return check(larger) if verdict.failed else verdict


def attacked(subject: Subject, larger: Subject, earned: dict[str, float]) -> Iterator[Verdict]:
    """Yield the verdicts on all attacks, and put their mean returns into ``earned``."""
    for attack in subject.env.attacks():
        try:
            yield confirmed(functools.partial(judged, attack, earned), subject, larger)
        except Stopped as stopped:
            cause = f"a policy that {attack.says} makes episode after episode fail"
            yield Verdict("raises", "fail", cause, str(stopped)[:300])


def judged(attack: Attack, earned: dict[str, float], subject: Subject) -> Verdict:
    """Return the verdict on an attack, and put its mean return into ``earned``; ``Stopped`` where episodes fail."""
    records = play_attack(subject.make_env, attack, subject.episodes, seed=subject.seed)
    earned[attack.name] = mean(records)
    verdict = judge_attack(subject.env, attack, records, subject.expert, subject.silence)
    return replace(verdict, check="cheap policy", evidence=f"{attack.name}: {verdict.evidence}")


def audit(registration: Registration) -> dict[str, Any]:
    """Return the result of one environment, as the results have it."""
    started = time.perf_counter()
    row: dict[str, Any] = {"name": registration.name, "package": registration.package}
    try:
        with contained(RandomState.seeded(0)):
            registration.begin(0)
    except (Exception, SystemExit) as error:  # some packages end the process
        return {**row, "began": False, "cause": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    guess = checks.chance(registration)
    make_env = functools.partial(RegisteredEnv, registration, guess)
    subject = Subject(make_env, episodes=EPISODES, search=SEARCH)
    verdicts, earned = list[Verdict](), dict[str, float]()
    try:
        for verdict in verdicts_on(registration, subject, earned):
            print(verdict.check, verdict.status, verdict.evidence[:200], file=sys.stderr)
            verdicts.append(verdict)
    except Stopped as stopped:
        verdicts.append(Verdict("raises", "fail", "episode after episode fails", str(stopped)[:300]))
    return {
        **row,
        "began": True,
        "chance": guess,
        "silence": mean(subject.silence),
        "expert": mean(subject.expert) if registration.solvable else None,
        "earned": earned,
        **checks.timings(registration),
        "seconds": time.perf_counter() - started,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "verdicts": [[v.check, v.status, v.cause[:300], v.evidence[:400]] for v in verdicts],
        "shown": {v.check: v.transcript[:1500] for v in verdicts if v.failed and v.transcript},
    }


def in_a_process(name: str, limit_s: float, openenv: Path | None) -> dict[str, Any]:
    """Audit one environment in a process of its own, which may hang or end."""
    command = [sys.executable, "-m", "benchmarks.field_audit", "--one", name]
    command += [] if openenv is None else ["--openenv", str(openenv)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        last = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
        return {"name": name, "began": True, "unfinished": f"not done in {limit_s:g} s, after {' '.join(last)[:200]}"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:]
        return {"name": name, "began": True, "unfinished": f"exit status {done.returncode}: {' '.join(last)[:300]}"}
    return dict(json.loads(lines[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.field_audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", metavar="PREFIX,...", help="names that begin so", default="")
    parser.add_argument("--openenv", type=Path, metavar="FOLDER", help="a checkout of OpenEnv")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for one environment (%(default)g)"
    )
    parser.add_argument("--retry", action="store_true", help="also those that did not begin or end")
    parser.add_argument("--report", action="store_true", help="play nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        page.write(page.read(options.results))
        return
    prefixes = (options.one or options.only).split(",")
    selected = [package for package in packages(options.openenv) if package.matches(prefixes)]
    try:
        installed = {package.distribution: package.version() for package in selected}
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        parser.exit(2, f"{error}\n")
    environments = {entry.name: entry for package in selected for entry in package.registrations()}
    if options.one:
        print(json.dumps(audit(environments[options.one])))
        return
    rows = {row["name"]: row for row in page.read(options.results)}
    finished = {name for name, row in rows.items() if not options.retry or page.is_whole(row)}
    for name in environments:
        if name in finished or not name.startswith(tuple(prefixes)):
            continue
        row = in_a_process(name, options.limit, options.openenv)
        row |= {"versions": installed, "python": sys.version.split()[0], "machine": processor()}
        options.results.parent.mkdir(parents=True, exist_ok=True)
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row).replace(f"{ROOT}/", "") + "\n")  # errors name files
        outcome = row.get("unfinished") or row.get("cause") or ", ".join(page.findings(row))
        print(f"{name}: {outcome or 'nothing found'}", flush=True)


if __name__ == "__main__":
    main()
