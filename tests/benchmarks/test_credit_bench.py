"""CreditBench: known truths come back, and its scores do not depend on the noise of the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trajectories import trajectory_of, turns_of

from benchmarks import pages
from benchmarks.credit import __main__ as command
from benchmarks.credit import games, learning, page, score, truth
from benchmarks.credit.policies import Setting
from benchmarks.estimators.enumerated import improved
from benchmarks.estimators.games import Game
from trainers.algorithms.batch import ActionBatch, Advantages, anchor_states
from trainers.algorithms.estimators import RLOO, Estimator, Fork, TurnGRPO
from trainers.algorithms.estimators.fork import fork_values
from trainers.trajectory import Trajectory

TURNS, SIBLINGS, GROUPS = 3, 4, 40


def task(rng: np.random.Generator, forks: int) -> truth.Measured:
    """Play a walk: each turn moves the value by -1, 0 or 1, and the end pays the value, and noise."""
    episodes, rewards = list[Trajectory](), []
    for group in range(GROUPS):
        for _ in range(SIBLINGS):
            moves = rng.integers(-1, 2, TURNS)
            final = moves.sum() + rng.normal()
            turns = turns_of(*[(2, 1)] * TURNS)
            episodes.append(trajectory_of(turns, [0.0] * (TURNS - 1) + [final], group_id=str(group)))
            for turn in range(TURNS):
                remaining = TURNS - turn
                rewards.append(
                    [
                        [0.0] * (remaining - 1) + [moves[:turn].sum() + rng.integers(-1, 2, remaining).sum() + noise]
                        for noise in rng.normal(size=forks)
                    ]
                )
    turns_in_all = TURNS * len(episodes)
    zeros = np.zeros(turns_in_all)
    return truth.Measured(episodes, rewards, np.ones((turns_in_all, forks), int), zeros, np.zeros(len(episodes)))


def exact(measured: truth.Measured) -> np.ndarray:
    """Return the advantages: the moves, but for the noise of the last turn, which is its reward's."""
    advantages = []
    for number, episode in enumerate(measured.episodes):
        before = [np.mean(measured.fork_returns[number * TURNS + turn]) for turn in range(TURNS)]
        advantages += [*np.diff(before), episode.turn_rewards[-1] - before[-1]]
    return np.array(advantages)


def test_advantages_are_differences_of_values() -> None:
    """All forks count where all are asked for; the variance of a turn is that of the two means that it has."""
    measured = task(np.random.default_rng(0), forks=12)
    advantages, variance = measured.advantages(slice(None))
    np.testing.assert_allclose(advantages, exact(measured))
    one = measured.fork_returns.var(1, ddof=1) / 12
    last = np.arange(len(advantages)) % TURNS == TURNS - 1
    expected = one + np.where(last, 0.0, np.roll(one, -1))
    np.testing.assert_allclose(variance.mean(), expected.mean(), rtol=0.12)  # one sample more, of the usual variance


def test_the_variance_is_right_and_never_zero() -> None:
    """Over many truths of the same episodes the errors have the variance that is returned; equal forks leave some."""
    rng = np.random.default_rng(1)
    base = task(rng, forks=8)
    estimates, variances = [], []
    for _ in range(80):
        shape = base.fork_returns.shape
        means = base.fork_returns.mean(1, keepdims=True)
        again = replace(base, fork_rewards=[[[x] for x in row] for row in means + rng.normal(size=shape)])
        advantages, variance = again.advantages(slice(None))
        estimates.append(advantages)
        variances.append(variance)
    ratio = np.mean(variances) / np.var(estimates, axis=0, ddof=1).mean()
    assert 0.9 < ratio < 1.3
    equal = [[[1.0]] * 8 if number % 2 else row for number, row in enumerate(base.fork_rewards)]
    assert (replace(base, fork_rewards=equal).advantages(slice(None))[1] > 0).all()


def test_perfect_opposite_and_silent_estimates() -> None:
    """The truth itself is never wrong, its opposite always is, and 0 is silent; the rank is 1 of any rising map."""
    turns = score.turns_of([task(np.random.default_rng(2), forks=40)], lambda one: one.advantages()[0] ** 3, "all")
    scores = score.scores(turns)
    assert (scores["wrong"][0], scores["silent"][0]) == (0.0, 0.0)
    assert scores["rank"][0] == pytest.approx(1.0)
    opposite = score.scores(replace(turns, estimate=-turns.truth))
    assert opposite["wrong"][0] == 1.0
    assert opposite["rank"][0] == pytest.approx(-1.0)
    assert score.scores(replace(turns, estimate=np.zeros_like(turns.truth)))["silent"][0] == 1.0
    for low, high in (measure[1:] for measure in scores.values()):
        assert low <= high


@pytest.mark.parametrize("forks", [6, 60])
def test_cosine_ignores_noise_of_truth(forks: int) -> None:
    """Few forks and many tell the same cosine of one estimate."""
    rng = np.random.default_rng(4)
    true = rng.normal(size=20_000)
    estimate = true + rng.normal(size=len(true))
    noisy = true + rng.normal(size=len(true)) * 2.0 / np.sqrt(forks)
    turns = score.Turns(noisy, np.full(len(true), 4.0 / forks), estimate, np.arange(len(true)) // 100)
    expected = np.dot(true, estimate) / np.linalg.norm(true) / np.linalg.norm(estimate)
    assert score.scores(turns)["cosine"][0] == pytest.approx(expected, abs=0.02)


def test_more_forks_are_better_than_siblings() -> None:
    """`fork` comes closer to the truth with more forks, and closer than `rloo`, which sees the end alone."""
    measured = task(np.random.default_rng(5), forks=truth.FOR_ESTIMATES + 32)
    cosines = [
        score.scores(score.turns_of([measured], estimate, "all"))["cosine"][0]
        for estimate in (score.by_estimator(RLOO()), score.by_forks(1), score.by_forks(truth.FOR_ESTIMATES))
    ]
    assert cosines == sorted(cosines)


def test_forks_are_those_of_the_estimator() -> None:
    """A turn's value by its forks is the mean of its own reward-to-go and theirs, as `fork` has it."""
    measured = task(np.random.default_rng(6), forks=truth.FOR_ESTIMATES + 2)
    batch = score._with_forks(measured, 2)
    _, values = fork_values(batch)
    count = len(measured.actions.turn_rewards)
    last = np.arange(count) % TURNS == TURNS - 1
    own = measured.actions.turn_rewards
    expected = (own + measured.fork_returns[:, :2].sum(1)) / 3
    np.testing.assert_allclose(values[:count][last], expected[last])
    assert score.by_forks(2)(measured).shape == (count,)
    assert Fork().advantages(batch).advantages.shape == (batch.num_tokens,)


def test_batches_come_back_from_their_file(tmp_path: Path) -> None:
    """A table has the episodes, the forks and the critic's values; several batches are told apart."""
    rng = np.random.default_rng(7)
    written = [task(rng, forks=3) for _ in range(2)]
    setting = Setting("clarify", "imitated")
    for number, measured in enumerate(written):
        table = truth.table_of(measured, number)
        truth.write(table, tmp_path / f"{setting.name}-batch-{number:03d}.parquet")
    truth.joined(setting, tmp_path, tmp_path / "all.parquet")
    for before, after in zip(written, truth.read(tmp_path / "all.parquet"), strict=True):
        assert list(after.episodes) == list(before.episodes)
        np.testing.assert_allclose(after.fork_returns, before.fork_returns, rtol=1e-5)
        np.testing.assert_array_equal(after.values, before.values)


class Twice(Estimator):
    """Somebody's own estimator: twice the reward-to-go."""

    unit = "turn"
    adv_estimator: str = "twice"

    def advantages(self, batch: ActionBatch) -> Advantages:
        plain = RLOO(baseline="group").advantages(batch)
        return replace(plain, advantages=2 * plain.advantages)


def test_another_estimator_is_scored() -> None:
    """A class by its name is scored as it is; a scale changes no score; what is no estimator is refused."""
    measured = task(np.random.default_rng(8), forks=truth.FOR_ESTIMATES + 8)
    ((name, estimate, forks),) = score.estimates(f"{__name__}:Twice")
    own = score.scores(score.turns_of([measured], estimate, forks))
    plain = score.scores(score.turns_of([measured], score.by_estimator(RLOO(baseline="group")), "all"))
    assert name.endswith(":Twice")
    assert own["cosine"] == pytest.approx(plain["cosine"])
    for name, message in ((f"{__name__}:task", "is no estimator"), ("Twice", "as module:Class"), ("no:No", "no")):
        with pytest.raises(ValueError, match=message):
            list(score.estimates(name))


def test_credit_assignment_is_applied() -> None:
    """With all rewards moved to the last turn, turns that paid at once are judged by what followed."""
    rng = np.random.default_rng(9)
    measured = task(rng, forks=truth.FOR_ESTIMATES + 2)
    paid = [replace(one, turn_rewards=rng.normal(size=TURNS)) for one in measured.episodes]
    measured = replace(measured, episodes=paid)
    as_earned, last = (score.by_estimator(TurnGRPO(reward_credit=way))(measured) for way in ("as_earned", "last"))
    moved = [replace(one, turn_rewards=np.array([0.0, 0.0, one.total_reward])) for one in paid]
    np.testing.assert_allclose(last, score.by_estimator(TurnGRPO())(replace(measured, episodes=moved)))
    assert not np.allclose(as_earned, last)


def test_clear_turns_without_effect_are_rare() -> None:
    """A nearly exact estimate is wrong about few of the clear turns, where most turns do nothing."""
    rng = np.random.default_rng(10)
    true = np.where(rng.random(40_000) < 0.1, rng.choice([-1.0, 1.0], 40_000), 0.0)
    error = np.full(len(true), 0.01)
    noisy, estimate = (true + rng.normal(size=len(true)) * size for size in (0.1, 0.01))
    scores = score.scores(score.Turns(noisy, error, estimate, np.arange(len(true)) // 100))
    assert scores["wrong"][0] < 0.02


def test_stored_truth_is_extended_and_missing_one_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    """More turns are made where fewer are there; `--score` without a truth says so, and a wrong class ends with 2."""
    made: list[int] = []

    def make(setting: Setting, folder: Path, turns: int, path: Path) -> None:
        made.append(turns)
        truth.write(truth.table_of(task(np.random.default_rng(0), forks=truth.FOR_ESTIMATES + 2), 0), path)

    monkeypatch.setattr(command, "make", make)
    monkeypatch.setattr(command, "show", lambda *_: None)

    def run(*words: str) -> int:
        places = ["--folder", str(tmp_path), "--data", str(tmp_path / "data")]
        monkeypatch.setattr("sys.argv", ["credit", "--tasks", "clarify", "--policies", "trained", *places, *words])
        return command.main()

    assert run("--report") == 0
    assert "no truth in" in capsys.readouterr().out
    run("--turns", "400")
    run("--turns", "400")
    run("--turns", "4000")
    assert made == [400, 4000]
    with pytest.raises(SystemExit):
        run("--score", "Twice")
    assert "as module:Class" in capsys.readouterr().err


def test_page_orders_estimators_and_names_costs(tmp_path: Path) -> None:
    """The least share of wrong signs comes first, the ceiling last; forks cost their tokens; other text stays."""
    measured = task(np.random.default_rng(11), forks=truth.FOR_ESTIMATES + 8)
    names = {"rloo": score.by_estimator(RLOO()), "fork, 2": score.by_forks(2), page.CEILING: score.again}
    scores = {name: score.scores(score.turns_of([measured], estimate, "all")) for name, estimate in names.items()}
    row = {"task": "walk", "policy": "random", "facts": score.facts([measured]), "estimators": scores}
    text = page.filled(f"# Page\n\n{pages.BEGIN}\nold\n{pages.END}\nlast\n", [row])
    assert text.startswith("# Page\n")
    assert text.endswith("\nlast\n")
    assert "old" not in text
    assert page.filled(text, [row]) == text
    first = [line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.endswith("times |")]
    assert first == page.order([row])
    assert first[-1] == page.CEILING
    wrong = [scores[name]["wrong"][0] for name in first[:-1]]
    assert wrong == sorted(wrong)
    forked = row["facts"]["tokens of one fork at every turn, of those of the episodes"]
    assert page.cost("fork, 2", row) == pytest.approx(1 + 2 * forked)
    assert page.cost("rloo", row) == 1.0
    page.draw([row, row], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="tables stand"):
        page.filled("# Page\n", [row])


def of_game(name: str, seed: int) -> truth.Measured:
    """Play a batch of a game with a random policy and a critic that knows nothing."""
    game, rng = Game.of(games.GAMES[name]), np.random.default_rng(seed)
    return games.batch_of(game, rng.normal(size=game.shape), np.zeros(game.shape[0]), rng)


@pytest.mark.parametrize("name", games.GAMES)
def test_exact_advantages_are_those_of_forks(name: str) -> None:
    """Forks, many of them in all, miss the exact advantages by their own standard error; both scores use the truth."""
    measured = of_game(name, 1)
    by_forks, variance = measured.advantages()
    exact, error = measured.truth()
    assert not error.any()
    assert 0.8 < np.mean((by_forks - exact) ** 2) / variance.mean() < 1.2
    turns = score.turns_of([measured], score.again, "half")
    np.testing.assert_array_equal(turns.truth, exact)
    assert not np.array_equal(turns.estimate, exact)


@pytest.mark.parametrize("name", games.GAMES)
def test_trajectories_of_games_show_the_observations(name: str) -> None:
    """Rewards and their parts agree, a turn's state is its observation, and solved episodes gained something."""
    measured = of_game(name, 2)
    seen = [
        int(episode.token_ids[start - 1])
        for episode in measured.episodes
        for start in np.flatnonzero(np.diff(np.where(episode.action_mask, episode.turn_id, -1), prepend=-1) > 0)
    ]
    states = anchor_states(measured.episodes)
    assert len({*zip(seen, states.tolist(), strict=True)}) == len({*seen}) == len({*states.tolist()})
    for episode in measured.episodes:
        parts = [sum(terms.values()) for terms in episode.turn_terms]
        np.testing.assert_allclose(parts, episode.turn_rewards)
        assert episode.truncated == (not episode.action_mask[-1])
        gain = sum(terms["gain"] for terms in episode.turn_terms)
        assert score.solved(episode) == (episode.terminated and gain > 0)


def test_exact_truth_comes_back_from_its_file(tmp_path: Path) -> None:
    """The file of a game has its exact advantages; a sign is clear from a quarter of their root mean square on."""
    measured = of_game("rooms", 3)
    truth.write(truth.table_of(measured, 0), tmp_path / "game.parquet")
    (again,) = truth.read(tmp_path / "game.parquet")
    assert list(again.episodes) == list(measured.episodes)
    np.testing.assert_array_equal(again.truth()[0], measured.truth()[0])
    values = np.array([1.0, -1.0, 0.01, 0.0])
    turns = score.Turns(values, np.zeros(4), np.array([1.0, 1.0, -1.0, 1.0]), np.arange(4))
    assert score.scores(turns)["wrong"][0] == 0.5


def test_policies_of_games_improve() -> None:
    """The careless policy is between chance and the best one; training raises the exact return."""
    game = Game.of(games.GAMES["ask"])
    start = games.imitated(game)
    after = improved(game, start, 4, np.random.default_rng(0))
    returns = [game.expected_return(logits) for logits in (np.zeros(game.shape), start, after, 1e2 * start)]
    assert returns == sorted(returns)
    assert returns[0] + 0.1 < returns[1] < returns[2] < returns[3]


@pytest.mark.parametrize("name", ["graphgpo", "turn_gae, lam 0.5"])
def test_learning_curves_rise_from_one_seed(name: str) -> None:
    """A few updates raise the exact return; the same seed gives the same curve."""
    game = Game.of(games.GAMES["rooms"])
    start = np.zeros(game.shape)
    curves = [learning.curve(game, start, name, 3, seed=0) for _ in range(2)]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 4
    assert curves[0][-1] > curves[0][0] == game.expected_return(start)


def test_page_has_the_results_that_are_kept() -> None:
    """The tables of the published page are those of the results in the repository."""
    rows = page.results(command.DATA)
    assert rows
    assert page.filled(page.PAGE.read_text(), rows) == page.PAGE.read_text()
