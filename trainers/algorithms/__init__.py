"""Advantages, losses, KL and aggregation: pure functions, each tested against a loop written from its formula."""
