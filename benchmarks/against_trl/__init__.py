"""One iteration of training against TRL's: ``python -m benchmarks.against_trl``."""
