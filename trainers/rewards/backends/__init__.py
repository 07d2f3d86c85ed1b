"""What computes scores behind a :class:`~trainers.rewards.RewardService`: classifiers, judges, served models."""
