"""Advantage estimators: a class each, by the name that ``algorithm.adv_estimator`` gives it.

Another package adds its own by an entry point of the group ``textenvs.estimators``: its name is the estimator's, its
value a subclass of :class:`.base.Estimator` (or of one of the classes beside it) with ``adv_estimator`` of that name.
"""

from trainers.algorithms.estimators.base import (
    CriticFreeEstimator,
    Estimator,
    KLControlSection,
    Need,
    UnscaledEstimator,
    normalize,
    restrict,
)
from trainers.algorithms.estimators.bilevel_gae import BilevelGAE
from trainers.algorithms.estimators.critic import CriticEstimator
from trainers.algorithms.estimators.dr_grpo import DrGRPO
from trainers.algorithms.estimators.fork import Fork
from trainers.algorithms.estimators.gae import GAE
from trainers.algorithms.estimators.gagpo import GAGPO
from trainers.algorithms.estimators.gdpo import GDPO
from trainers.algorithms.estimators.gigpo import GiGPO
from trainers.algorithms.estimators.graphgpo import GraphGPO
from trainers.algorithms.estimators.grpo import GRPO
from trainers.algorithms.estimators.grpo_passk import GRPOPassK
from trainers.algorithms.estimators.maxrl import MaxRL
from trainers.algorithms.estimators.opo import OPO
from trainers.algorithms.estimators.passk import PassK
from trainers.algorithms.estimators.rae import RAE
from trainers.algorithms.estimators.reinforce_pp import ReinforcePP
from trainers.algorithms.estimators.reinforce_pp_baseline import ReinforcePPBaseline
from trainers.algorithms.estimators.remax import ReMax
from trainers.algorithms.estimators.rloo import RLOO
from trainers.algorithms.estimators.turn_gae import TurnGAE
from trainers.algorithms.estimators.turn_grpo import TurnGRPO
from trainers.algorithms.plugins import with_plugins

__all__ = [
    "ESTIMATORS",
    "GAE",
    "GAGPO",
    "GDPO",
    "GRPO",
    "OPO",
    "RAE",
    "RLOO",
    "BilevelGAE",
    "CriticEstimator",
    "CriticFreeEstimator",
    "DrGRPO",
    "Estimator",
    "Fork",
    "GRPOPassK",
    "GiGPO",
    "GraphGPO",
    "KLControlSection",
    "MaxRL",
    "Need",
    "PassK",
    "ReMax",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "TurnGAE",
    "TurnGRPO",
    "UnscaledEstimator",
    "normalize",
    "restrict",
]

_OWN: tuple[type[Estimator], ...] = (
    *(GAE, TurnGAE, BilevelGAE, GRPO, DrGRPO, RLOO, OPO, GDPO, GRPOPassK, PassK, MaxRL),
    *(ReinforcePP, ReinforcePPBaseline, ReMax, RAE, TurnGRPO, GiGPO, GAGPO, GraphGPO, Fork),
)
#: Estimators by name.
ESTIMATORS: dict[str, type[Estimator]] = with_plugins("textenvs.estimators", "adv_estimator", Estimator, _OWN)
