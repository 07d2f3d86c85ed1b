"""Correctness and speed on one GPU, in one command: ``python -m benchmarks.gpu``; see :mod:`benchmarks.gpu.run`."""
