"""Checks of the environments: those that hang or fail, and those that hold the run up."""

from __future__ import annotations

import numpy as np

from ...trajectory import Status
from ..diagnosis import START, History, Symptom, wilson
from .base import check


@check("dead environments", "rollout/env_made")
def dead_environments(history: History) -> Symptom | None:
    """Detect that environments hang, or episodes fail.

    In 3 iterations one hangs that did not before (``rollout/env_hung`` counts all), or more than 2 % of the episodes
    failed, by the lower end of the 99 % interval.
    """
    names = ("error_env", "error_engine", "error_reward", "truncated_time")
    counts = {s.value: history.latest_sum(f"rollout/episodes_{s.value}", 3) for s in Status if s is not Status.ABORTED}
    failed, total = sum(counts[name] for name in names), sum(counts.values())
    hung = history.latest("rollout/env_hung", 4)
    baseline = hung[0] if len(hung) == 4 and hung[0] <= hung[-1] else 0.0  # a run that resumes counts from 0
    hangs = bool(hung.size) and hung[-1] > baseline
    if not hangs and wilson(failed, total, 2.6)[0] <= 0.02:
        return None
    worst = max(names, key=counts.__getitem__)
    where = {
        "error_env": "The environment raises: its message is above",
        "error_engine": "The engine fails: its message is above",
        "error_reward": "A reward that comes later fails (reward_model, judge, custom_reward_function)",
        "truncated_time": "Steps or replies take too long (rollout.step_timeout_s, generation_timeout_s)",
    }
    return Symptom(
        "some hang for good" if hangs else "episodes fail, and are lost to training",
        f"{failed:.0f} of {total:.0f} episodes of the last iterations failed ({worst}), "
        f"{hung[-1] if hung.size else 0:.0f} environments hang",
        f"{where[worst]}. env.backend=process keeps a broken one apart from the others; play one by hand: "
        "`textenvs play`",
    )


@check("broken programs", "rollout/cause_completed_program_error")
def broken_programs(history: History) -> Symptom | None:
    """Detect that the programs of ``textenv/agent`` end by errors, in more than a tenth of the episodes.

    By the lower end of the 99 % interval over 3 iterations. Such episodes count, with what they had earned
    (:mod:`textenvs.envs.agent.episode`): else a policy that breaks its program would drop the episodes that it loses.
    So a mistake of the program, or of what it needs, is learned from as well, and does not stop the run.
    """
    broken = history.latest_sum("rollout/cause_completed_program_error", 3)
    total = sum(history.latest_sum(f"rollout/episodes_{s.value}", 3) for s in Status if s is not Status.ABORTED)
    if not total or wilson(broken, total, 2.6)[0] <= 0.1:
        return None
    return Symptom(
        "programs end by errors, and the policy learns from episodes that these have cut short",
        f"{broken:.0f} of {total:.0f} episodes of the last iterations ended as program_error",
        "The program's last words are above, and with each episode (`textenvs view`). Where the policy is the cause, "
        "answer such replies with an error message, or isolate its commands (env.kwargs.sandbox=true); where a service "
        "of the program is, raise EnvironmentFailure, and the episode is left out",
    )


@check("slow environments", "rollout/time_step_s", "rollout/time_generate_s")
def slow_environments(history: History) -> Symptom | None:
    """Detect that episodes spend more time in the environment than in the engine.

    In the median of 5 iterations resets and steps take twice as long as generation, and 0.3 s an episode: below that it
    is the event loop that they wait for.
    """
    step, generate, reset = (history.latest(f"rollout/time_{name}_s", START) for name in ("step", "generate", "reset"))
    if not len(step) == len(generate) == len(reset) == START:
        return None
    own = step + reset
    if np.median(own / np.maximum(generate, 1e-9)) <= 2 or np.median(own) < 0.3:
        return None
    return Symptom(
        "episodes wait for them longer than for the engine",
        f"{step[-1]:.2f} s in steps and {reset[-1]:.2f} s in resets an episode, {generate[-1]:.2f} s in the engine",
        "Let them run beside each other (env.backend=thread or process, env.workers), play more episodes at a time "
        "(rollout.max_running, rollout.staleness=1), or find out what the environment waits for",
    )
