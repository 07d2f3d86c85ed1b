"""The server: ``python -m trainers.engines.vllm.server FILE.json``, under a Python that has vLLM.

The process that started it holds the other end of its standard input; when that closes, whoever it was is gone, and the
server goes too, with all processes of its group.

Processes that vLLM spawns import this module again, so what is slow to import is imported where it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import traceback
from pathlib import Path

from trainers.engines.vllm.server.lifetime import die_with_the_parent, end, follow_the_parent, remove_afterwards


def main() -> None:
    """Run until the engine ends or nobody needs it any more."""
    remove_afterwards(str(Path(sys.argv[1]).parent))
    follow_the_parent()
    from trainers.engines.vllm.server.serving import serve
    from trainers.engines.vllm.server.shared import allow_low_temperatures

    allow_low_temperatures()
    config = json.loads(Path(sys.argv[1]).read_text())
    with contextlib.suppress(KeyboardInterrupt):
        print(f"the server stops: {asyncio.run(serve(config))}", file=sys.stderr)


if __name__ == "__mp_main__":
    die_with_the_parent()

if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    end(1)
