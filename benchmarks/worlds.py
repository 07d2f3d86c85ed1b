"""Are generated worlds sound, and fast? Every seed is played by the expert and by the attacks; the parts are timed.

    python -m benchmarks.worlds [--levels easy,medium,hard] [--seeds 1000] [--attacked 200] [--scripted 300]
                                [--results FILE] [--pages | --report]

For each level: of so many test tasks, each in a world of its own, the share that the expert solves, its calls, how many
facts are proven by seven twins, and how often the rules forbid; how many ends are right for who keeps no rules, all
but the prohibitions, all prohibitions as if they held always, or takes copies for right where they are not, and the
other way round; of the first tasks, what the best attack earns and solves, and
what a script of keywords solves (:mod:`benchmarks.world_script`), which knows the phrases of the training split alone:
in test tasks, and in training tasks for comparison.
Then the times: to draw a world, to draw a task in one, to reset, to make a call, to fork (medians, in milliseconds of
one core). Last, the same worlds as text pages (`textenv/worlds-web`): a step and a fork, and the mean CPU time of an
action of the scripted expert's, `finish` left out; `--pages` measures these alone. An exception ends it: no seed is
passed over. The results of other levels are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import textenvs
from benchmarks.hardware import processor
from benchmarks.world_script import reply_maker
from textenvs.attack import Attack
from textenvs.envs.worlds.goals import NotMeantError, evaluate
from textenvs.envs.worlds.rules import Rule, authorities, obligations, unconditional, with_copies_reversed
from textenvs.envs.worlds.story import Story
from textenvs.envs.worlds.tasks import WorldTasks, story_of, task_of
from textenvs.envs.worlds.view import View
from textenvs.envs.worlds.world import draw_world

LEVELS = ("easy", "medium", "hard")


def episode(env: Any, reply: Callable[[], Any]) -> float:
    """Play an episode that was reset; return its return."""
    total = 0.0
    while not env.state.done:
        total += env.step(reply())[1]
    return total


#: What somebody takes for the rules who reads a part of them.
VIEWS: dict[str, Callable[[Sequence[Rule]], Sequence[Rule]]] = {
    "no rules": lambda rules: (),
    "no prohibitions": lambda rules: (*obligations(rules), *authorities(rules)),
    "prohibitions always": unconditional,
    "copies mistaken": with_copies_reversed,
}


def right_with(story: Story, rules: Sequence[Rule]) -> bool:
    """Return whether the end is the right one by other rules."""
    try:
        return evaluate(story.goal, View(story.world.schema, story.store), rules, story.user) == story.ends[0]
    except NotMeantError:
        return False


def soundness(level: str, seeds: int, attacked: int, scripted: int) -> dict[str, Any]:
    """Play the expert on all seeds, and the attacks and the keyword script on some."""
    env: Any = textenvs.make("textenv/worlds", level=level, split="test").unwrapped
    solved, calls, facts, refusals, returns = 0, [], [], 0, []
    right = dict.fromkeys(VIEWS, 0)
    for number in range(seeds):
        env.reset(seed=number, options={"task_index": number})
        returns.append(episode(env, lambda: env.demonstration(np.random.default_rng(0))))
        solved += env.state.stop == "solved"
        calls.append(env.state.calls_made)
        facts.append(len(env.story.facts))
        for name, view in VIEWS.items():
            right[name] += right_with(env.story, view(env.story.world.rules))
        refusals += bool(env.story.ends[0].refused)
    best = max(
        (attack_result(env, attack, attacked, returns) for attack in env.attacks() if not attack.rehearse),
        key=lambda result: float(result["return"]),
    )
    return {
        "seeds": seeds,
        "expert": solved / seeds,
        "return": statistics.mean(returns),
        "calls": [min(calls), statistics.mean(calls), max(calls)],
        "facts": [min(facts), statistics.mean(facts), max(facts)],
        "views": {name: count / seeds for name, count in right.items()},
        "refused": refusals / seeds,
        "best attack": best,
        "keyword script": {"tasks": scripted, **keyword_script(level, scripted)},
    }


def keyword_script(level: str, tasks: int) -> dict[str, float]:
    """Return the share of tasks that the keyword script solves, by split."""
    solved = {}
    for split in ("test", "train"):
        env: Any = textenvs.make("textenv/worlds", level=level, split=split).unwrapped
        stops = []
        for number in range(tasks):
            conversation, _ = env.reset(seed=number, options={"task_index": number})
            reply = reply_maker(conversation)
            episode(env, lambda env=env, reply=reply: reply(env.state.messages))
            stops.append(env.state.stop)
        solved[split] = stops.count("solved") / max(1, tasks)
    return solved


def attack_result(env: Any, attack: Attack, episodes: int, expert: Sequence[float]) -> dict[str, Any]:
    """Return the mean return of an attack, as a share of the expert's on the same tasks, and what it solves."""
    returns, solved = [], 0
    for number in range(episodes):
        env.reset(seed=number, options={"task_index": number})
        cheat = attack.start(np.random.default_rng(number), ())
        returns.append(episode(env, lambda cheat=cheat: cheat(env.state.messages)))
        solved += env.state.stop == "solved"
    mean, best = statistics.mean(returns), statistics.mean(expert[:episodes])
    return {"name": attack.name, "return": mean, "share": mean / best, "solved": solved / episodes}


def timed(work: Callable[[int], Any], count: int) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        work(number)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def speed(level: str) -> dict[str, float]:
    """Return medians of milliseconds."""
    env: Any = textenvs.make("textenv/worlds", level=level, worlds=1).unwrapped
    env.reset(seed=0, options={"task_index": 0})
    story, tasks = env.story, WorldTasks(level, worlds=1)  # type: ignore[arg-type]
    world = story.world
    person = world.schema.entities["personnel.person"]
    words = [
        env.format.write("", [textenvs.tools.call(world.skin.tool(person, "get"), id=number)])
        for number in world.ids(person.key)[:50]
    ]
    calls = [env.format.parse(text).calls for text in words]
    resets = {number: task_of(tasks[number].key) for number in range(20)}
    return {
        "world": timed(lambda number: draw_world(level, f"speed/{number}"), 40),
        "task": timed(lambda number: story_of(f"{level}/train/1/0/{number}"), 40),
        "reset": timed(lambda number: env.reset(seed=number, options={"task": resets[number % 20]}), 200),
        "step": timed(lambda number: env.step(words[number % len(words)]), 50),
        "call": timed(lambda number: env.toolbox.run_now(calls[number % len(calls)], env.state), 50),
        "fork": timed(lambda number: env.snapshot(), 200),
    }


def pages(level: str, worlds: int | None, episodes: int = 20) -> dict[str, Any]:
    """Return times of text pages, in milliseconds: of an action the mean CPU time, else medians.

    There are so many ``worlds``; ``None``: each of the scripted expert's ``episodes`` is in a new one, whose tables the
    first views draw.
    """
    env: Any = textenvs.make("textenv/worlds-web", level=level, worlds=worlds).unwrapped
    actions, steps, forks, size = [], [], [], []
    for number in range(episodes):
        env.reset(seed=number, options={"task_index": number})
        while not env.state.done:
            reply = env.demonstration(np.random.default_rng(0))
            fork = env.fork()
            for call in fork.format.parse(reply).calls:
                began = time.process_time()
                (result,) = fork.toolbox.run_now([call], fork.state)
                if result.name != "finish":
                    actions.append(1000 * (time.process_time() - began))
                    size.append(len(result.content))
            steps.append(timed(lambda _, reply=reply: env.step(reply), 1))
            forks.append(timed(lambda _: env.snapshot(), 1))
    return {
        "action": statistics.mean(actions),
        "step": statistics.median(steps),
        "fork": statistics.median(forks),
        "actions": len(actions) / episodes,
        "replies": len(steps) / episodes,
        "characters": statistics.mean(size),
    }


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print the tables."""
    names = "  ".join(VIEWS)
    print(
        f"level   seeds  expert  calls  proven facts  {names}  forbidden  best attack (of the expert, solved)  script"
    )
    for row in rows:
        calls, facts, best = row["calls"], row["facts"], row["best attack"]
        views = "  ".join(f"{row['views'][name]:>{len(name)}.1%}" for name in VIEWS)
        print(
            f"{row['level']:<6}  {row['seeds']:>5}  {row['expert']:>6.1%}  {calls[0]} to {calls[2]} ({calls[1]:.1f})  "
            f"{facts[0]} to {facts[2]} ({facts[1]:.1f})  {views}  {row['refused']:>9.1%}  "
            f"{best['name']} ({best['share']:.1%}, {best['solved']:.1%})  "
            f"{row['keyword script']['test']:.1%} (training tasks: {row['keyword script']['train']:.1%})"
        )
    print("\nmilliseconds (medians)")
    for row in rows:
        print(f"{row['level']:<6}  " + "  ".join(f"{name} {value:.2f}" for name, value in row["ms"].items()))
    print("\ntext pages (milliseconds; actions and replies of an episode, characters of a result)")
    for row in rows:
        for worlds, times in row.get("pages", {}).items():
            values = "  ".join(f"{name} {value:.3g}" for name, value in times.items())
            print(f"{row['level']:<6}  {worlds}: {values}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=lambda text: text.split(","), default=[*LEVELS], metavar="easy,...")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--attacked", type=int, default=200, help="of these, so many are played by each attack")
    parser.add_argument("--scripted", type=int, default=300, help="tasks that the keyword script plays")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/worlds.json"))
    parser.add_argument("--pages", action="store_true", help="the times of text pages alone, of results that are there")
    parser.add_argument("--report", action="store_true", help="print the results that are there")
    options = parser.parse_args(arguments)
    if unknown := set(options.levels) - set(LEVELS):
        parser.error(f"--levels: {', '.join(sorted(unknown))}; there are {', '.join(LEVELS)}")
    rows = {row["level"]: row for row in json.loads(options.results.read_text())} if options.results.exists() else {}
    for level in () if options.report else options.levels:
        if not options.pages:
            times = speed(level)
            played = soundness(level, options.seeds, min(options.attacked, options.seeds), options.scripted)
            rows[level] = {"level": level, "machine": processor(), **played, "ms": times}
        elif level not in rows:
            parser.error(f"--pages: {options.results} has no results of the level {level}; measure it whole first")
        rows[level]["pages"] = {"one world": pages(level, 1), "new worlds": pages(level, None)}
        options.results.write_text(json.dumps([rows[name] for name in LEVELS if name in rows], indent=1) + "\n")
    report([rows[name] for name in LEVELS if name in rows])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
