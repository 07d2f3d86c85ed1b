"""Shells in other trainers that need tokens: the environments' own side of them is :mod:`textenvs.adapters`."""
