"""Backends of a :class:`~trainers.rewards.RewardService`: classifiers, judges, served models."""
