"""Play many episodes with a policy, record them, and report: the library behind ``textenvs evaluate``."""
