"""Shells in other trainers that need tokens, one package a host; environments: :mod:`textenvs.integrations`."""
