"""The program of a worker process: a classifier that scores the conversations that come on stdin.

Run by its path, with the options as JSON, the number of threads, and the number of the pipe for answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from trainers.rewards.function_worker import RefusedError, serve


def main(options: str, threads: int, answers: int) -> None:
    """Serve until stdin ends."""

    def load() -> Callable[[Any], Mapping[str, Any]]:
        import torch

        from trainers.rewards.backends.classifier import Classifier, ClassifierOptions

        torch.set_num_threads(threads)
        try:
            classifier = Classifier(ClassifierOptions(**json.loads(options)))
        except ValueError as error:
            raise RefusedError(str(error)) from error
        return lambda conversations: {"scores": classifier.score(conversations)}

    serve(load, answers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
