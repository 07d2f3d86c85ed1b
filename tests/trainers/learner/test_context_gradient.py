"""The gradient of a program with two contexts, against the enumeration of all that it can do.

The program asks once in its main context, hands the reply to a sub-agent, and goes on in the main context with the
sub-agent's reply. Each reply is one of two tokens: eight episodes, whose probabilities a small model gives.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from estimating import estimate
from learner_helpers import VOCAB, caught_gradients, naive_scores, sections, small_model
from trajectories import in_contexts, trajectory_of

from trainers.algorithms.batch import ActionBatch
from trainers.learner.learner import Learner
from trainers.learner.packing import action_rows, micro_batches
from trainers.trajectory import Trajectory

CHOICES = (50, 51)  # what the policy samples from
RNG = np.random.default_rng(4)
REWARDS = [RNG.normal(size=(2,) * turn) for turn in (1, 2, 3)]  # of each turn, by the replies up to it


def episode_of(replies: tuple[int, ...]) -> Trajectory:
    """Turns 0 and 2 are in the main context; turn 1, between them, is the sub-agent's, and so stands first."""
    first, second, third = (CHOICES[reply] for reply in replies)
    tokens = [7, 20 + replies[0], second, *(1, 2, 3), first, *(4, 30 + replies[1]), third]
    turns, starts = in_contexts([(0, 3, 1), (1, 2, 1), (0, 2, 1)])
    sampled = np.array(turns) >= 0
    return trajectory_of(
        turns,
        [REWARDS[turn][replies[: turn + 1]] for turn in range(3)],
        token_ids=tokens,
        segment_starts=np.array(starts, np.int32),
        kept_counts=np.where(sampled, 2, 0).astype(np.int32),
        kept_ids=np.tile(CHOICES, 3).astype(np.int32),
        group_id="g",
        episode_id="".join(map(str, replies)),
    )


REPLIES = list(itertools.product((0, 1), repeat=3))
EPISODES = [episode_of(replies) for replies in REPLIES]
#: Of a critic that knows nothing, but is a function of what was played before each turn.
VALUES = [np.array([0.3, -0.7 + replies[0], 0.2 + replies[0] - 2 * replies[1]]) for replies in REPLIES]


@pytest.mark.parametrize("share_prefixes", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("rloo", {}), ("turn_grpo", {"baseline": "group"}), ("gae", {}), ("bilevel_gae", {"turn_gamma": 1.0})],
)
def test_gradient_over_contexts_is_enumerated_gradient(
    name: str, options: dict[str, Any], share_prefixes: bool
) -> None:
    model = small_model()
    logprobs = [naive_scores(model, episode, 1.0)[0] for episode in EPISODES]
    chances = torch.stack([row.sum() for row in logprobs]).exp()
    assert float(chances.detach().sum()) == pytest.approx(1.0, abs=1e-5)
    expected_reward = (chances * torch.tensor([e.total_reward for e in EPISODES], dtype=torch.float32)).sum()
    parameters = dict(model.named_parameters())
    true = torch.autograd.grad(expected_reward, list(parameters.values()))

    # The expected weight of each token's score, over all pairs of episodes that a group can have.
    chance, weights = chances.detach().double().numpy(), [np.zeros(3) for _ in EPISODES]
    for one, other in itertools.product(range(len(EPISODES)), repeat=2):
        values = np.concatenate([VALUES[one], VALUES[other]])
        batch = ActionBatch.from_trajectories([EPISODES[one], EPISODES[other]], values=values)
        advantages = estimate(name, batch, **options).advantages
        weights[one] += chance[one] * chance[other] * advantages[:3] / 2
        weights[other] += chance[one] * chance[other] * advantages[3:] / 2

    def loss(logprobs: Any, entropy: Any, tokens: Any) -> Any:
        return -(tokens["weight"] * logprobs).sum(), {}

    learner = Learner(small_model(), **sections(share_prefixes=share_prefixes))
    gradients, _ = caught_gradients(
        learner.actor_optimizer, lambda: learner.update_actor(EPISODES, {"weight": weights}, loss)
    )
    largest = max(float(gradient.abs().max()) for gradient in true)
    assert largest > 1e-3
    for parameter, gradient in zip(parameters, true, strict=True):
        (own,) = [value for key, value in gradients.items() if key.endswith(parameter)]
        assert float((own + gradient).abs().max()) < 1e-5 * max(1.0, largest), parameter


def test_contexts_that_branch_off_are_read_once() -> None:
    """A context that begins with another's tokens, replies included, adds its own tokens alone."""
    tokens = [1, 2, 50, 3, 4, 51, *(1, 2, 50, 3, 9, 50)]
    turns = [-1, -1, 0, -1, -1, 1, *(-1, -1, -1, -1, -1, 2)]
    item = trajectory_of(turns, token_ids=tokens, segment_starts=np.array([0, 6], np.int32))
    ((batch,),) = micro_batches(action_rows([item]), 1000, layout="trees")
    assert (batch.num_tokens, batch.real) == (10, 6)  # 1 2 50 3, then 4 and 9; the last replies are not read
    assert max(tokens) < VOCAB
