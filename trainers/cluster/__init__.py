"""Placement of a run: the plan, a learner of many ranks, and Ray."""
