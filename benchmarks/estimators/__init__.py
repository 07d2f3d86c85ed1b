"""Advantage estimators, baselines and off-policy corrections, measured against the true policy gradient."""
