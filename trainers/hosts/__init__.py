"""Adapters of other trainers that need tokens: one module or package a host, which only users of that host import."""
