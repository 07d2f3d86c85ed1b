"""``python -m benchmarks.trl_grpo key=value ...``: train, and print the last metrics and the model's folder."""

import logging
import sys

from .trainer import TRLGRPOTrainer

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with TRLGRPOTrainer(sys.argv[1:]) as trainer:
        result = trainer.fit()
    for name in ("train/reward", "val/reward", "val/solved"):
        if name in result.metrics:
            print(f"{name:12} {result.metrics[name]:.3f}")
    print(f"model: {result.model}")
