"""Reports of a run: metrics of episodes and phases, loggers, curves, sample conversations."""
