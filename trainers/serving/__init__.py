"""Models of this process for others: as chat completions, and as a policy of `textenvs evaluate`."""
