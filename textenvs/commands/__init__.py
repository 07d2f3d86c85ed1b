"""The commands of ``textenvs``, one a module."""
