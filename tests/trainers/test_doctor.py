"""The doctor: what it measures, its statistics, planted faults that it names, and noise that it does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import trajectory_of

from trainers.doctor import main
from trainers.report.checks import CHECKS
from trainers.report.diagnosis import Doctor, Finding, shifts, trend, wilson
from trainers.report.loggers import JsonlLogger, read_jsonl
from trainers.report.metrics import health_metrics, task_found
from trainers.trajectory import Status, Trajectory

DATA = Path(__file__).parents[1] / "data" / "doctor"  # of `python -m benchmarks.doctor`, seed 0: what the checks read


def diagnosed(path: Path) -> list[Finding]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    doctor = Doctor(CHECKS, rows[0]["config"])
    for row in rows[1:]:
        doctor.observe(row.pop("step"), {name: float(value) for name, value in row.items()})
    return doctor.findings


# ------------------ planted faults: metrics of real runs


@pytest.mark.parametrize(
    ("fault", "check", "begins"),
    [
        ("openings-lost-their-task", "template", 8),
        ("the-engine-samples-hotter", "mismatch", 8),
        ("environments-raise", "dead environments", 8),
        ("a-training-reward-grows-by-itself", "held-out check", 8),
        ("one-reward-is-huge", "gradient", 8),
        ("a-learning-rate-of-0", "policy stands still", 8),
        ("silence-is-paid", "null policy", 0),
    ],
)
def test_planted_fault_is_named_within_five_iterations(fault, check, begins):
    findings = diagnosed(DATA / f"{fault}.jsonl")
    assert [f.step for f in findings if f.check == check and begins <= f.step <= begins + 5], findings
    assert begins == 0 or not [f for f in findings if f.step <= begins]


def test_healthy_run_has_no_verdict():
    assert diagnosed(DATA / "healthy.jsonl") == []


# ------------------ noise


def simulated(rng: np.random.Generator, iterations: int, gain: float) -> list[dict[str, float]]:
    """Metrics of a run that learns at a constant rate: noise of the size that 64 episodes an iteration have."""
    rows = []
    for i in range(iterations):
        reward = 0.2 + gain * i / iterations
        rows.append(
            {
                "train/reward": reward + rng.normal(0, 0.06),
                "train/reward_se": 0.05 * rng.gamma(9, 1 / 9),
                "train/reward_std": 0.4,
                "train/solved": reward / 2,
                "train/episodes": 64.0,
                "train/turns": 1.5,
                "train/groups_tied": rng.binomial(8, 0.3) / 8,
                "train/turn_tokens": 20 * math.exp(rng.normal(0, 0.05)),
                "train/cut_paid": rng.binomial(96, 0.02) / 96,
                "train/task_found": rng.binomial(64, 0.7) / 64,
                "train/task_chance": 0.125,
                "actor/entropy": 0.5 * math.exp(-i / iterations + rng.normal(0, 0.1)),
                "actor/approx_kl_k3": 0.003 * math.exp(rng.normal(0, 0.5)),
                "actor/rollout_kl": 0.001 * math.exp(rng.normal(0, 0.5)),
                "actor/grad_norm": 0.5 * math.exp(rng.standard_t(5) * 0.2),
                "rollout/episodes_completed": 64.0,
                "rollout/episodes_error_env": float(rng.random() < 0.1),
                "rollout/env_made": 64.0,
            }
        )
        if i % 5 == 4:
            rows[-1] |= {"val/reward": reward + rng.normal(0, 0.05), "val/reward_se": 0.05}
    return rows


def test_runs_that_learn_are_healthy():
    """At most 4 % of 25 runs of 60 iterations have any verdict of any check."""
    rng, wrong = np.random.default_rng(0), []
    for _ in range(25):
        doctor = Doctor(CHECKS, {"rollout": {"groups_per_batch": 8}, "actor": {"mini_batches": 2}})
        for step, row in enumerate(simulated(rng, 60, 0.5), 1):
            doctor.observe(step, row)
        wrong += doctor.findings[:1]
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize(("kept", "tied", "verdict"), [(1, 23, True), (4, 4, False)])
def test_groups_dropped_from_batches_count_as_tied(kept: int, tied: int, verdict: bool):
    """In each iteration so many groups have no difference; all that the filter of the variance keeps have one."""
    doctor = Doctor(CHECKS, {"rollout": {"groups_per_batch": 8, "filter_variance_top_p": 0.9}})
    for step, row in enumerate(simulated(np.random.default_rng(0), 12, 0.0), 1):
        totals = {"groups_delivered": kept * step, "groups_dropped_zero_variance": tied * step}
        metrics = {f"rollout/{name}": float(total) for name, total in totals.items()}
        doctor.observe(step, row | metrics | {"train/groups_tied": 0.0})
    assert ("no signal" in [finding.check for finding in doctor.findings]) is verdict


@pytest.mark.parametrize(("solved", "verdict"), [(23, False), (0, True)])
def test_groups_that_are_all_solved_are_no_fault(solved: int, verdict: bool):
    """From the 7th iteration on, a filter leaves one group of 24: the others are all solved, or none is."""
    doctor = Doctor(CHECKS, {"rollout": {"groups_per_batch": 1, "filter_zero_variance": True}})
    for step, row in enumerate(simulated(np.random.default_rng(0), 12, 0.0), 1):
        tied = max(0, step - 6)
        totals = {"delivered": step, "dropped_zero_variance": 23 * tied, "zero_variance_solved": solved * tied}
        metrics = {f"rollout/groups_{name}": float(total) for name, total in totals.items() if total}
        doctor.observe(step, row | metrics | {"train/groups_tied": 0.0, "train/solved": 0.5})
    assert ("no signal" in {finding.check for finding in doctor.findings}) is verdict
    assert doctor.history.solved() == (23.5 / 24 if solved else 0.5)


def test_flat_reward_verdict_has_an_interval():
    verdicts = []
    for seed in range(10):
        doctor = Doctor(CHECKS, {})
        for step, row in enumerate(simulated(np.random.default_rng(seed), 60, 0.0), 1):
            doctor.observe(step, row)
        verdicts += [finding for finding in doctor.findings if finding.check == "learns nothing"][:1]
    assert len(verdicts) >= 9
    assert all("95 % interval" in finding.evidence and finding.step >= 20 for finding in verdicts)


def test_falling_validation_is_reported_noise_is_not():
    def verdicts(after: list[float]) -> list[str]:
        doctor = Doctor(CHECKS, {})
        for step, (row, held) in enumerate(zip(simulated(np.random.default_rng(0), 20, 0.0), after, strict=False), 1):
            doctor.observe(step, {**row, "val/reward": held, "val/reward_se": 0.03})
        return [finding.check for finding in doctor.findings]

    assert "reward falls" in verdicts([0.5, 0.55, 0.2])
    assert verdicts([0.5, 0.55, 0.45]) == []  # 2.4 standard errors
    assert verdicts([0.2, 0.3, 0.55]) == []


@pytest.mark.parametrize(
    ("share", "gradient", "gain", "words"),
    [
        (0.8, 0.95, 0.0, "drowns the reward"),
        (0.8, 0.95, 2.0, None),  # it learns all the same
        (0.8, 0.4, 0.0, None),
        (0.0, 0.0, 0.0, "no token to learn from"),
        (None, None, 0.0, None),  # the loss is off
    ],
)
def test_drowned_reward_is_reported(share, gradient, gain, words):
    doctor = Doctor(CHECKS, {"actor": {"observation_loss": 0.05}})
    for step, row in enumerate(simulated(np.random.default_rng(0), 15, gain), 1):
        more = {} if share is None else {"actor/observation_share": share, "actor/observation_gradient": gradient}
        doctor.observe(step, row | more)
    causes = [finding.cause for finding in doctor.findings if finding.check == "observation loss"]
    assert len(causes) == (words is not None)
    assert words is None or words in causes[0]


@pytest.mark.parametrize(
    ("named", "high", "control", "words"),
    [
        (0.5, 0.4, "none", "returns contradict the values"),
        (0.5, 0.4, "reversed", None),  # a control
        (0.5, 0.6, "none", None),
        (0.0, None, "none", "no turn has a move of the user"),
        (None, None, "none", None),  # it is off
    ],
)
def test_useless_reactions_are_reported(named, high, control, words):
    doctor = Doctor(CHECKS, {"algorithm": {"reaction_credit": {"weight": 0.5, "control": control}}})
    for step, row in enumerate(simulated(np.random.default_rng(0), 10, 0.0), 1):
        more = {"named": named, "agreement_high": high, "agreement": high}
        more = {f"actor/reaction_{name}": value for name, value in more.items() if value is not None}
        doctor.observe(step, row | more)
    causes = [finding.cause for finding in doctor.findings if finding.check == "reaction credit"]
    assert len(causes) == (words is not None)
    assert words is None or words in causes[0]


@pytest.mark.parametrize(
    ("share", "clipped", "gain", "words"),
    [
        (0.0, None, 0.0, "no token to teach"),
        (1.0, 0.6, 0.0, "finds most of the policy's tokens impossible"),
        (1.0, 0.6, 2.0, None),  # it learns all the same
        (0.5, 0.1, 0.0, None),
        (None, None, 0.0, None),  # there is none
    ],
)
def test_useless_teacher_is_reported(share, clipped, gain, words):
    doctor = Doctor(CHECKS, {"actor": {"distill": {"context": "goal"}}})
    for step, row in enumerate(simulated(np.random.default_rng(0), 15, gain), 1):
        numbers = {"actor/teacher_share": share, "actor/teacher_clipped": clipped}
        doctor.observe(step, row | {name: value for name, value in numbers.items() if value is not None})
    causes = [finding.cause for finding in doctor.findings if finding.check == "teacher"]
    assert len(causes) == (words is not None)
    assert words is None or words in causes[0]


def test_withdrawn_episodes_do_not_hide_failed_ones():
    """They are a total since the run began, of episodes that did not end."""
    doctor = Doctor(CHECKS, {})
    for step, row in enumerate(simulated(np.random.default_rng(0), 20, 0.0), 1):
        ended = {"rollout/episodes_completed": 115.0, "rollout/episodes_error_env": 13.0}
        doctor.observe(step, {**row, **ended, "rollout/env_made": 8.0, "rollout/episodes_withdrawn": 60.0 * step})
    (verdict,) = (finding for finding in doctor.findings if finding.check == "dead environments")
    assert verdict.evidence.startswith("13 of 128 episodes")


def test_old_hang_does_not_hide_new_failures():
    doctor = Doctor(CHECKS, {})
    for step, row in enumerate(simulated(np.random.default_rng(0), 30, 0.0), 1):
        failed = 40.0 if step >= 25 else 0.0
        ended = {"rollout/episodes_completed": 128.0 - failed, "rollout/episodes_error_env": failed}
        doctor.observe(step, {**row, **ended, "rollout/env_made": 8.0, "rollout/env_hung": float(step >= 5)})
    verdicts = [(finding.step, finding.cause) for finding in doctor.findings if finding.check == "dead environments"]
    assert verdicts == [(5, "some hang for good"), (25, "episodes fail, and are lost to training")]


@pytest.mark.parametrize(("broken", "found"), [(40.0, True), (14.0, False), (None, False)])
def test_programs_that_end_by_errors_are_reported(broken, found):
    doctor = Doctor(CHECKS, {})
    for step, row in enumerate(simulated(np.random.default_rng(0), 10, 0.0), 1):
        ended = {} if broken is None else {"rollout/cause_completed_program_error": broken}
        doctor.observe(step, {**row, **ended, "rollout/episodes_completed": 128.0})
    assert ("broken programs" in {finding.check for finding in doctor.findings}) == found


# ------------------ statistics


@given(st.integers(0, 60), st.integers(1, 60), st.floats(1.0, 4.0))
def test_score_interval_is_z_deviations_wide(hits, misses, z):
    count = hits + misses
    for bound in wilson(hits, count, z):
        if 1e-9 < bound < 1 - 1e-9:
            deviation = math.sqrt(bound * (1 - bound) / count)
            assert abs(hits / count - bound) == pytest.approx(z * deviation, rel=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(8, 40), st.floats(-3, 3))
def test_trend_interval_covers_true_change(seed, count, change):
    values = change * np.arange(count) / (count - 1) + np.random.default_rng(seed).normal(0, 0.1, count)
    slope, error = trend(values)
    assert slope == pytest.approx(np.polyfit(np.arange(count), values, 1)[0] * (count - 1))
    assert abs(slope - change) < 8 * error


def test_outlier_neither_makes_nor_hides_shift():
    def last(values: list[float], count: int) -> float:
        return max((abs(shift.z) for shift in shifts(values, count)), default=0.0)

    calm = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0]
    assert last([*calm, 9.0, 1.0], 2) < 2
    assert last([*calm, 9.0, 9.0], 2) > 5
    assert last([*calm[:3], 99.0, *calm, 9.0, 9.0], 2) > 5


# ------------------ what is measured of episodes


def episode(task: str, tokens: list[int], reward: float = 0.0, status: Status = Status.COMPLETED) -> Trajectory:
    return trajectory_of([0] * len(tokens), [reward], token_ids=tokens, logprobs=0, status=status, task_key=task)


def test_task_dependent_replies_are_detected():
    rng = np.random.default_rng(0)
    tasks = [f"t{i}" for i in range(8)]
    own = [
        [episode(t, [10 * i, 10 * i + 1, *rng.integers(500, 600, 3)]) for _ in range(6)] for i, t in enumerate(tasks)
    ]
    assert task_found(own) == (1.0, 1 / 8)
    same = [[episode(t, [1, 2, 3]) for _ in range(6)] for t in tasks]
    assert task_found(same) == (pytest.approx(1 / 8), 1 / 8)
    shares = []
    for _ in range(20):
        noise = [[episode(t, rng.integers(0, 20, 6).tolist()) for _ in range(6)] for t in tasks]
        share, chance = task_found(noise) or (math.nan, math.nan)
        shares.append(share - chance)
    assert abs(np.mean(shares)) < 4 * np.std(shares) / math.sqrt(len(shares)), "diverse, and of no task: chance"
    assert task_found(own[:1]) is None


def test_rewarded_cut_replies_are_counted():
    full, short = [1] * 8, [1, 2]
    group = [episode("a", full, 1.0), episode("a", full, 0.0), episode("a", short, 1.0)]
    assert health_metrics([group], 8)["train/cut_paid"] == pytest.approx(1 / 3)
    late = episode("a", short, 1.0, Status.TRUNCATED_CONTEXT)
    assert health_metrics([[*group, late]], 8)["train/cut_paid"] == pytest.approx(2 / 4)
    ended = episode("a", [1] * 7 + [9], 1.0)
    assert health_metrics([[*group, late, ended]], 8, stop_token_ids=(2, 9))["train/cut_paid"] == pytest.approx(1 / 5)


# ------------------ live, resumed, and from the folder


def test_folder_and_live_verdicts_agree_after_resume(tmp_path, capsys):
    rows = simulated(np.random.default_rng(3), 20, 0.3)
    for row in rows[12:]:
        row["actor/rollout_kl"] = 0.5
    (tmp_path / "config.yaml").write_text("rollout: {staleness: 0}\n")
    live, logger = Doctor(CHECKS, {}), JsonlLogger(tmp_path / "metrics.jsonl")
    for step, row in enumerate(rows, 1):
        logger.log(step, row)
        live.observe(step, row)
    logger.close()
    (finding,) = live.findings
    assert (finding.check, finding.step) == ("mismatch", 14)
    resumed = Doctor(CHECKS, {})
    before = {step: row for step, row in read_jsonl(tmp_path / "metrics.jsonl") if step < 16}
    for step, row in before.items():
        resumed.observe(step, row)
    assert not [verdict for step, row in enumerate(rows[15:], 16) for verdict in resumed.observe(step, row)]
    assert main([str(tmp_path), "--checks"]) == 1
    output = capsys.readouterr().out
    for words in ("iteration 14: mismatch", finding.cause, finding.evidence, finding.advice, "not checked: expert"):
        assert words in output
    assert all(check.says in output for check in CHECKS)


def test_folder_without_metrics_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "has no metrics.jsonl" in capsys.readouterr().err


def test_checks_describe_metrics_and_thresholds():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.says, check.name
        assert len((check.find.__doc__ or "").split()) > 20, check.name


# ------------------ curricula: what is played gets harder as the policy gets better

LEVELS = {"easy": {"weight": 1.0}, "medium": {"weight": 1.0}, "hard": {"weight": 2.0}}
MOVING = {"env": {"mixture": LEVELS, "curriculum": {"kind": "signal"}}, "rollout": {"groups_per_batch": 16}}


def of_levels(rng: np.random.Generator, iterations: int, slope: float) -> list[dict[str, float]]:
    """Levels whose success changes by ``slope``, while the share moves to the hard one, which costs 1."""
    rows = []
    for i, base in enumerate(simulated(rng, iterations, 0.0)):
        at = i / iterations
        shares = {"easy": 0.8 - 0.7 * at, "medium": 0.1, "hard": 0.1 + 0.7 * at}
        row, total = base, 0.0
        for (name, share), start in zip(shares.items(), (0.5, 0.45, 0.4), strict=True):
            count = round(share * 128)
            solved = rng.binomial(count, start + slope * (at - (slope < 0))) / count
            reward = solved - float(name == "hard")
            row |= {f"train/mixture/{name}/reward": reward, f"train/mixture/{name}/solved": solved}
            total += reward * share
        row |= {"train/reward": total, "train/solved": 0.5}
        rows.append({key: value for key, value in row.items() if not key.startswith("val/")})
    return rows


def checks_of(config: dict[str, object], rows: list[dict[str, float]]) -> set[str]:
    doctor = Doctor(CHECKS, config)
    return {finding.check for step, row in enumerate(rows, 1) for finding in doctor.observe(step, row)}


@pytest.mark.parametrize("seed", range(5))
def test_curriculum_whose_levels_improve_is_healthy(seed):
    rows = of_levels(np.random.default_rng(seed), 60, 0.45)
    assert checks_of(MOVING, rows) == set()
    assert "reward falls" in checks_of({}, rows), "the same numbers of tasks that stay the same are a failure"


@pytest.mark.parametrize("seed", range(5))
def test_curriculum_whose_levels_get_worse_is_not(seed):
    assert "reward falls" in checks_of(MOVING, of_levels(np.random.default_rng(seed), 60, -0.45))


@pytest.mark.parametrize("seed", range(3))
def test_stagnant_levels_are_reported(seed):
    assert "learns nothing" in checks_of(MOVING, of_levels(np.random.default_rng(seed), 60, 0.0))


def test_constant_reward_of_self_play_is_healthy():
    rows = [{k: v for k, v in row.items() if k[:4] != "val/"} for row in simulated(np.random.default_rng(0), 60, 0.0)]
    assert "learns nothing" in checks_of({}, rows)
    roles = {f"train/player-{number}/episodes": 64.0 for number in (0, 1)}
    assert "learns nothing" not in checks_of({}, [row | roles for row in rows])


def test_with_starts_in_middle_openings_count():
    config = {"env": {"curriculum": {"kind": "fixed", "reverse_share": 0.5}}}
    rows = simulated(np.random.default_rng(0), 60, 0.5)
    for i, row in enumerate(rows):
        row["train/begun/opening/reward"] = row["train/reward"]
        row["train/reward"] = 0.9 - 0.8 * i / 60  # starts move back to the opening
        row.pop("val/reward", None)
    assert "reward falls" in checks_of({}, rows)
    assert checks_of(config, rows) == set()


def test_validations_decide_with_skipped_tasks():
    config = {"env": {"curriculum": {"kind": "signal"}}}
    rows = simulated(np.random.default_rng(0), 60, 0.5)
    for i, row in enumerate(rows):
        row["train/reward"] = 0.9 - 0.8 * i / 60  # what is solved is not played again
        row["rollout/curriculum/tasks_passed"] = float(i)
    assert checks_of(config, rows) == set()
    for row in rows:
        if "val/reward" in row:
            row["val/reward"] = 1.0 - row["val/reward"]
    assert "reward falls" in checks_of(config, rows)


def test_unplayed_levels_carry_their_value():
    doctor = Doctor(CHECKS, MOVING)
    for step, easy, hard in ((1, 0.2, None), (2, None, 0.4), (3, 0.8, None)):
        parts = {"easy": easy, "hard": hard}
        row = {f"train/mixture/{name}/reward": value for name, value in parts.items() if value is not None}
        doctor.observe(step, {"train/reward": 0.0, **row})
    comparable = doctor.history.comparable("reward")
    np.testing.assert_allclose(comparable, [(0.2 + 2 * 0.4) / 3, (0.2 + 2 * 0.4) / 3, (0.8 + 2 * 0.4) / 3])
