"""Checks of what is learned beside the reward: observations, users' moves, a teacher."""

from __future__ import annotations

from ..diagnosis import START, History, Symptom
from .base import GAINED, GOOD, check


@check("observation loss", "actor/grad_norm")
def observation_loss(history: History) -> Symptom | None:
    """Detect that the observations' loss drowns the reward, or finds nothing to learn from (where it is on).

    In 5 iterations at least 90 % of the gradient is its, by ``actor/observation_gradient``, and the reward has not
    gained 2 standard errors over the first 5; or for 3 iterations there was no observation token.
    """
    weight = history.option("actor.observation_loss", 0.0)
    tokens, shares = (history.latest(f"actor/observation_{name}", START) for name in ("share", "gradient"))
    if len(tokens) >= 3 and tokens[-3:].max() == 0:
        return Symptom(
            "actor.observation_loss has no token to learn from: no message answers a reply with such a role",
            f"no observation token in 3 iterations, actor.observation_loss={weight:g}",
            "See which roles the environment answers with (`textenvs play`) and set actor.observation_roles; episodes "
            "of one reply, or with a new context for every turn, have no observation after a reply: set "
            "actor.observation_loss=0",
        )
    enough = len(shares) == START and len(history.steps) >= START + 3
    if not enough or shares.min() < 0.9 or history.gain(slice(0, START)) >= GAINED or history.solved() >= GOOD:
        return None
    nll = history.latest("actor/observation_nll", 1)
    return Symptom(
        "actor.observation_loss drowns the reward: the policy learns what its environment says, and little else",
        f"{shares[-1]:.0%} of the gradient, actor.observation_loss={weight:g}"
        + (f", cross-entropy {nll[-1]:.3f} nats a token" if nll.size else ""),
        "Lower actor.observation_loss (0.005 to 0.05 were published), or leave a role whose messages cannot be "
        "predicted out of actor.observation_roles; see that rewards tell replies apart (train/groups_tied)",
    )


@check("reaction credit", "actor/reaction_named")
def reaction_credit(history: History) -> Symptom | None:
    """Detect that no user's move is named any more, or that returns contradict the values of the moves.

    No turn has one in 3 iterations; or in 5 iterations the sign test is below one half by its 95 % interval, where the
    credit is no control.
    """
    named, highs = (history.latest(f"actor/reaction_{name}", START) for name in ("named", "agreement_high"))
    if len(named) >= 3 and named[-3:].max() == 0:
        return Symptom(
            "algorithm.reaction_credit has nothing to add: no turn has a move of the user",
            f"no move in 3 iterations, algorithm.reaction_credit.weight="
            f"{history.option('algorithm.reaction_credit.weight', 0.0):g}",
            "The environment has no scripted user, a model plays it and no judge names its moves "
            "(reward_models.NAME.kind=moves), or the policy no longer talks to it: set "
            "algorithm.reaction_credit.weight=0, or read conversations (RUN/conversations)",
        )
    control = history.option("algorithm.reaction_credit.control", "none")
    if len(highs) < START or highs.max() >= 0.5 or control != "none":
        return None
    return Symptom(
        "returns contradict the values of the user's moves: what the table calls good comes before less reward",
        f"the signs agree in {history.latest('actor/reaction_agreement', START).mean():.0%} of the turns",
        "See actor/reaction_advantage/MOVE, the estimator's own advantage of each move, and change the values of "
        "algorithm.reaction_credit.table, or set algorithm.reaction_credit.weight=0",
    )


@check("teacher", "actor/teacher_share")
def teacher(history: History) -> Symptom | None:
    """Detect that a teacher has nothing to teach, or says little but that the policy's tokens are impossible.

    For 3 iterations no token had a teacher; or in 5 at least half of them were at ``actor.distill.clip``, and the
    reward has not gained 2 standard errors over the first 5.
    """
    shares, clipped = (history.latest(f"actor/teacher_{name}", START) for name in ("share", "clipped"))
    context = history.option("actor.distill.context", "none")
    if len(shares) >= 3 and shares[-3:].max() == 0:
        return Symptom(
            "actor.distill has no token to teach: the environment tells the teacher nothing in any state",
            f"no token with a teacher in 3 iterations, actor.distill.context={context}",
            "See what the environment's `privileged` returns, and choose another actor.distill.context",
        )
    enough = len(clipped) == START and len(history.steps) >= START + 3
    if not enough or clipped.min() < 0.5 or history.gain(slice(0, START)) >= GAINED or history.solved() >= GOOD:
        return None
    return Symptom(
        "the teacher finds most of the policy's tokens impossible: both are too far apart to learn from sampled tokens",
        f"{clipped[-1]:.0%} of the tokens at actor.distill.clip, actor.distill.context={context}",
        "Imitate the teacher's episodes first (`python -m trainers.sft`); see that the teacher can use what it is "
        "shown, and that its tokenizer and chat template are the policy's",
    )
