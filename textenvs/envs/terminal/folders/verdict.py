"""Results of a task's tests: the reward, as each format defines it, or why there is none."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ....bounded_files import parse_json

#: The line after which pytest lists results, and a line of that list.
_SUMMARY = re.compile(r"=+ *short test summary info *=+", re.IGNORECASE)
_RESULT = re.compile(r"(PASSED|FAILED|SKIPPED|XFAIL|XPASS|ERROR):?\s+(\S.*)")
_GOOD = frozenset(("PASSED", "SKIPPED", "XFAIL"))
#: The most of a file with a reward that is read.
REWARD_BYTES = 1 << 16


@dataclass(frozen=True)
class Verdict:
    """The result of tests.

    Args:
        reward: What they pay; ``None`` where they gave no result.
        why: In words, where there is none.
    """

    reward: float | None
    why: str = ""

    @property
    def is_solved(self) -> bool:
        return self.reward is not None and self.reward >= 1.0

    @property
    def share(self) -> float:
        """The reward from 0 to 1."""
        return 0.0 if self.reward is None else min(max(self.reward, 0.0), 1.0)


def of_pytest(output: str) -> Verdict:
    """Return 1 where all results of pytest's summary are good and at least one passed, else 0 (Terminal-Bench)."""
    parts = _SUMMARY.split(output, maxsplit=1)
    if len(parts) < 2:
        return Verdict(None, "the output of the tests has no 'short test summary info' (pytest -rA prints it)")
    results = dict[str, str]()
    for line in parts[1].splitlines():
        if (match := _RESULT.match(line)) is not None:
            name = match[2].rpartition(" - ")[0] or match[2] if match[1] == "FAILED" else match[2]
            results[name.split("::", maxsplit=1)[-1]] = match[1]
    if not results:
        return Verdict(None, "pytest's summary has no result")
    return Verdict(float({*results.values()} <= _GOOD and "PASSED" in results.values()))


def of_reward_files(json_text: bytes | None, text: bytes | None) -> Verdict:
    """Return the reward of ``reward.json`` (its key ``reward``, or its only one), else of ``reward.txt`` (Harbor)."""
    if json_text is not None:
        try:
            value = parse_json(json_text)
        except ValueError as error:
            return Verdict(None, f"reward.json: {error}")
        if isinstance(value, dict):
            if "reward" not in value and len(value) != 1:
                return Verdict(None, f"reward.json has no key 'reward', and not one key alone: {sorted(value)[:5]}")
            value = value["reward"] if "reward" in value else next(iter(value.values()))
        return _number(value, "reward.json")
    if text is None:
        return Verdict(None, "the tests wrote neither /logs/verifier/reward.json nor /logs/verifier/reward.txt")
    try:
        return _number(float(text.decode("ascii", "replace")), "reward.txt")
    except ValueError:
        return Verdict(None, "reward.txt has no number")


def _number(value: object, name: str) -> Verdict:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return Verdict(None, f"{name} has no finite number")
    return Verdict(float(value))
