"""The action-only view: what it keeps, how it maps back, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from algorithm_oracles import Episode, Turn, batches, flatten, forall, trajectory
from trajectories import action_batch, trajectory_of

from trainers.algorithms.batch import ActionBatch, anchor_states, episode_terms, gather, shared_anchors
from trainers.trajectory import Status, Trajectory


def episode(**changes: Any) -> Episode:
    turns = (Turn(2, 2, 0.5), Turn(1, 1, 1.0))
    plain = Episode(turns, True, False, "g", ((0.1, 0.2), (0.3,)), ((0.0, 0.0), (0.0,)), 0.0)
    return dataclasses.replace(plain, **changes)


@forall(batches())
def test_rewards_stand_where_trajectory_puts_them(episodes: list[Episode]) -> None:
    trajectories = [trajectory(e) for e in episodes]
    batch = ActionBatch.from_trajectories(trajectories)
    rewards = gather(trajectories, [episode.token_rewards() for episode in trajectories])
    np.testing.assert_array_equal(batch.token_rewards, rewards)


@forall(batches())
def test_gather_takes_action_tokens_in_time(episodes: list[Episode]) -> None:
    trajectories = [trajectory(e) for e in episodes]
    arrays = [np.arange(1.0, len(t.token_ids) + 1) for t in trajectories]
    flat = gather(trajectories, arrays)
    assert len(flat) == sum(turn.reply for e in episodes for turn in e.turns)
    places = [np.flatnonzero(t.turn_id == turn) + 1.0 for t in trajectories for turn in range(t.num_turns)]
    np.testing.assert_array_equal(flat, np.concatenate([np.zeros(0), *places]))


@forall(batches())
def test_turns_start_and_end_where_replies_do(episodes: list[Episode]) -> None:
    batch = ActionBatch.from_trajectories(
        [trajectory(e) for e in episodes], penalty=flatten([e.penalties for e in episodes])
    )
    starts, ends, position = [], [], 0
    for turn in (turn for e in episodes for turn in e.turns):
        starts.append(position)
        position += turn.reply
        ends.append(position - 1)
    assert batch.turn_starts.tolist() == starts
    assert batch.turn_ends.tolist() == ends
    np.testing.assert_allclose(batch.net_turn_rewards, [r for e in episodes for r in e.net_rewards()], atol=1e-12)


def test_terms_are_summed_over_episode() -> None:
    plain = trajectory(episode())
    first = dataclasses.replace(plain, turn_terms=({"right": 0.5}, {"right": 1.0, "format": -0.25}))
    second = dataclasses.replace(plain, turn_terms=({"format": 1.0}, {"late": 2.0}))
    names, terms = episode_terms([first, second])
    assert names == ("format", "late", "right")
    assert terms.tolist() == [[-0.25, 0.0, 1.5], [1.0, 2.0, 0.0]]
    names, terms = episode_terms([first, second], ["right", "format"])
    assert terms.tolist() == [[1.5, -0.25], [0.0, 1.0]]
    assert episode_terms([first, second], ["late", "early"])[1].tolist() == [[0.0, 0.0], [2.0, 0.0]]
    with pytest.raises(ValueError, match="was paid 'rigth' or 'lat'; its terms are format, late, right"):
        episode_terms([first, second], ["rigth", "lat"])
    assert episode_terms([], ["right"])[1].shape == (0, 1)
    with pytest.raises(ValueError, match=r"terms has the shape \(1, 2\), but 2 episodes need \(2, M\)"):
        ActionBatch.from_trajectories([first, second], terms=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="episode 1 has a term that is not finite"):
        ActionBatch.from_trajectories([first, second], terms=[[1.0], [np.nan]])


def test_empty_group_id_is_own_group() -> None:
    group = ActionBatch.from_trajectories([trajectory(episode(group=g)) for g in ("b", "", "a", "b", "")]).group
    assert group[0] == group[3]
    assert len(set(group.tolist())) == 4


def test_no_episodes_are_batch_too() -> None:
    batch = ActionBatch.from_trajectories([])
    assert (batch.num_episodes, batch.num_tokens) == (0, 0)


def test_failed_episode_is_refused_by_name() -> None:
    failed = dataclasses.replace(trajectory(episode()), status=Status.ERROR_ENV, episode_id="e7")
    with pytest.raises(ValueError, match=r"episode 1 \('e7'\) has the status 'error_env'"):
        ActionBatch.from_trajectories([trajectory(episode()), failed])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_numbers_are_refused_by_episode(bad: float) -> None:
    good, sick = trajectory(episode()), trajectory(episode(turns=(Turn(2, 2, bad), Turn(1, 1, 1.0))))
    with pytest.raises(ValueError, match="episode 1 has a turn reward that is not finite"):
        ActionBatch.from_trajectories([good, sick])
    spoiled = np.array([0.0, 0.0, 0.0, 0.0, bad, 0.0])
    with pytest.raises(ValueError, match="episode 1 has a value that is not finite"):
        ActionBatch.from_trajectories([good, good], values=spoiled)
    with pytest.raises(ValueError, match="episode 1 has a penalty that is not finite"):
        ActionBatch.from_trajectories([good, good], penalty=spoiled)
    cut = trajectory(episode(terminated=False, truncated=True))
    with pytest.raises(ValueError, match="episode 1 was truncated and has a bootstrap value that is not finite"):
        ActionBatch.from_trajectories([good, cut], bootstrap=[0.0, bad])
    both = trajectory(episode(truncated=True))
    ActionBatch.from_trajectories([good, cut, both], bootstrap=[bad, 0.0, bad])  # a terminated episode's is never read


def test_turn_without_tokens_is_refused() -> None:
    """A trajectory refuses it first; a batch made by hand is checked as well."""
    with pytest.raises(ValueError, match="episode 0 has a turn without action tokens"):
        action_batch([[1, 0]], [0.0, 0.0])


def test_turn_indices_must_fit_rewards() -> None:
    for turn_id in ([1, 1, 0], [0, 0, 2]):
        broken = trajectory(episode())
        broken.turn_id[broken.action_mask] = turn_id
        with pytest.raises(ValueError, match="episode 0 has turn indices"):
            ActionBatch.from_trajectories([broken])


def test_incomplete_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="episode 0 neither terminated nor was truncated"):
        ActionBatch.from_trajectories([dataclasses.replace(trajectory(episode()), terminated=False)])


def test_states_are_the_policys_observations() -> None:
    """Token ids 1 to 5 are observations, 9 an action."""

    def played(*ids: int, segments: tuple[int, ...] = (0,)) -> Trajectory:
        mask = np.array(ids) == 9
        turn = np.cumsum(np.diff(mask, prepend=False) & mask) - 1
        return trajectory_of(np.where(mask, turn, -1), token_ids=ids, segment_starts=np.array(segments, np.int32))

    episodes = [
        played(1, 2, 9, 9, 3, 9),  # opening 1 2, then 3
        played(1, 2, 9, 3, 9, 3, 9, 4),  # 3 twice, after another reply; 4 has no turn
        played(3, 9, 9, 1, 2, 3, 9, segments=(0, 3)),  # the history was rewritten
    ]
    observation, history = (anchor_states(episodes, kind).tolist() for kind in ("observation", "history"))
    assert observation == [0, 1, 0, 1, 1, 1, 2]
    assert len(set(history)) == 6
    assert history[0] == history[2]
    assert anchor_states([]).tolist() == []

    groups = [dataclasses.replace(e, group_id=g) for e, g in zip(episodes, ("a", "a", "b"), strict=True)]
    batch = ActionBatch.from_trajectories(groups, anchor=observation)
    assert shared_anchors(batch).tolist() == [True, True, True, True, True, False, False]
    with pytest.raises(ValueError, match="episode 0 has a negative anchor"):
        ActionBatch.from_trajectories(groups, anchor=[-1, *observation[1:]])
    with pytest.raises(ValueError, match="episode 1 has a greedy return that is not finite"):
        ActionBatch.from_trajectories(groups, greedy=[0.0, np.nan, 0.0])


@pytest.mark.parametrize("name", ["values", "penalty", "bootstrap", "anchor", "greedy", "side"])
def test_shapes_are_checked_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has the shape \(7,\)"):
        ActionBatch.from_trajectories([trajectory(episode())], **{name: np.zeros(7)})
    with pytest.raises(ValueError, match="array 0 has 3 entries for 6 tokens"):
        gather([trajectory(episode())], [np.zeros(3)])
