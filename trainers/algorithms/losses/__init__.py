"""Policy losses: a class each, by the name that ``actor.policy_loss`` gives it; and the critic's, in ``value.py``.

Another package adds its own by an entry point of the group ``textenvs.policy_losses``: its name is the loss's, its
value a subclass of :class:`.base.PolicyLoss` with ``policy_loss`` of that name.
"""

from trainers.algorithms.losses.base import ClippedLoss, PolicyLoss, TokenLoss, token_weights
from trainers.algorithms.losses.cispo import CISPO
from trainers.algorithms.losses.clip_cov import ClipCov
from trainers.algorithms.losses.dppo import DPPOKL, DPPOTV
from trainers.algorithms.losses.geo_mean import GeoMean
from trainers.algorithms.losses.gspo import GSPO, GSPOToken
from trainers.algorithms.losses.kl_cov import KLCov
from trainers.algorithms.losses.ppo import PPO
from trainers.algorithms.losses.sapo import SAPO
from trainers.algorithms.plugins import with_plugins

__all__ = [
    "CISPO",
    "DPPOKL",
    "DPPOTV",
    "GSPO",
    "LOSSES",
    "PPO",
    "SAPO",
    "ClipCov",
    "ClippedLoss",
    "GSPOToken",
    "GeoMean",
    "KLCov",
    "PolicyLoss",
    "TokenLoss",
    "token_weights",
]

_OWN: tuple[type[PolicyLoss], ...] = (*(PPO, GSPO, GSPOToken, CISPO, GeoMean, SAPO, DPPOTV, DPPOKL, ClipCov, KLCov),)
#: Policy losses by name.
LOSSES: dict[str, type[PolicyLoss]] = with_plugins("textenvs.policy_losses", "policy_loss", PolicyLoss, _OWN)
