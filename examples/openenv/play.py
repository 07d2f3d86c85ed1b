"""A text environment behind an OpenEnv server: the server in a process of its own, and clients of all sorts.

    pip install openenv
    python examples/openenv/play.py

The server alone: ``python -m textenvs.integrations.openenv textenv/clarify --port 8000``.
"""

import subprocess
import sys
import time
import urllib.request

try:
    from openenv.core import GenericEnvClient
except ImportError as error:
    sys.exit(f"{error}: this example needs OpenEnv, pip install openenv")

from textenvs.integrations.importers.openenv import OpenEnv
from textenvs.integrations.openenv import TextEnvClient

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
URL = f"http://127.0.0.1:{PORT}"


def wait_for(server):
    while server.poll() is None:
        try:
            return urllib.request.urlopen(f"{URL}/health").close()
        except OSError:
            time.sleep(0.1)
    sys.exit("the server did not start")


command = [sys.executable, "-m", "textenvs.integrations.openenv", "textenv/clarify", "--port", str(PORT)]
server = subprocess.Popen(command)
try:
    wait_for(server)

    with TextEnvClient(base_url=URL).sync() as client:
        observation = client.reset(seed=3).observation
        print("opening:", observation.text)
        for reply in ("Is that all?", "#### 7"):
            result = client.step(reply)
            print(f"{reply!r}: reward {result.reward:+.2f}, done {result.done}, stop {result.observation.info['stop']}")

    with GenericEnvClient(base_url=URL).sync() as client:  # which knows nothing of textenvs
        client.reset(seed=3)
        print("generic client:", client.step({"text": "Is that all?"}).reward)

    env = OpenEnv(URL)  # the server as a text environment again: with forks, for our own trainer
    conversation, info = env.reset(seed=0)
    fork = env.fork()
    same = fork.step("Is that all?") == env.step("Is that all?")
    print("imported again:", info["data_source"], "- a fork goes the same way:", same)
    fork.close()
    env.close()
finally:
    server.terminate()
    server.wait()
