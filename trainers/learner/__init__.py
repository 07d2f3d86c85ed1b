"""The learner: models, log-probabilities, updates, weights, checkpoints; the same code on one rank and on many."""

from trainers.learner.learner import Learner as Learner
from trainers.learner.lora import LoRASettings as LoRASettings
from trainers.learner.optim import OptimizerSettings as OptimizerSettings
from trainers.learner.parallel import Parallel as Parallel
