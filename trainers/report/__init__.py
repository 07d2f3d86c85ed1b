"""What a run shows: metrics of episodes and phases, loggers, curves, sample conversations."""
