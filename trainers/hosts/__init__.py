"""Shells in other trainers that need tokens: one package a host; the environments' side is :mod:`textenvs.adapters`."""
