"""Planted faults and healthy runs for :mod:`trainers.doctor`."""
