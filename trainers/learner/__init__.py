"""The learner: models, log-probabilities, updates, weights, checkpoints; the same code on one rank and on many."""

from trainers.learner.learner import Learner as Learner
