"""Settings that must hold before the first library is imported, so that `python -m pytest` alone is enough."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test talks to a network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads on tiny models are slower than one
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # and forks after it would warn

from hypothesis import settings  # noqa: E402

settings.register_profile("ours", deadline=None, max_examples=25)  # a slow machine is not a failure
settings.load_profile("ours")
