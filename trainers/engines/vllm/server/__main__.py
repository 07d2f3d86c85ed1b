"""The server: ``python -m trainers.engines.vllm.server FILE.json``, under a Python that has vLLM.

The process that started it holds the other end of its standard input; when that closes, whoever it was is gone, and the
server goes too, with all processes of its group.

vLLM's computing process imports this module again, so what is slow to import is imported where it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn


def follow_the_parent() -> None:
    """End this process, and what it started, when the process that started it is gone."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1 << 12):
            pass
        if os.getpgrp() == os.getpid():  # a group of its own, as it is started by the client
            os.killpg(0, signal.SIGKILL)
        end(1)

    threading.Thread(target=watch, daemon=True).start()


def end(code: int) -> NoReturn:
    """End at once. vLLM's process may not notice that this one is gone, or not soon."""
    for child in multiprocessing.active_children():
        child.kill()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Run until the engine ends or nobody needs it any more."""
    follow_the_parent()
    from trainers.engines.vllm.server.serving import serve
    from trainers.engines.vllm.server.shared import allow_low_temperatures

    allow_low_temperatures()
    config = json.loads(Path(sys.argv[1]).read_text())
    with contextlib.suppress(KeyboardInterrupt):
        print(f"the server stops: {asyncio.run(serve(config))}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    end(1)
