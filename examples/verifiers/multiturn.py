"""A text environment in verifiers before 0.4: four rollouts of a ``MultiTurnEnv`` with a model behind a chat service.

    pip install 'verifiers>=0.1.14,<0.4'
    python examples/verifiers/multiturn.py                                  # with a service of the example's own
    python examples/verifiers/multiturn.py http://localhost:8000/v1 MODEL   # with yours

verifiers' own command does the same: ``vf-eval textenvs_verifiers -a '{"env": "textenv/clarify"}'`` (before 0.3).
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import verifiers as vf

from textenvs.integrations.verifiers_multiturn import load_environment


class Service(BaseHTTPRequestHandler):
    """A "model" that asks once, and then says 7."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: D102, N802
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = any(message["role"] == "assistant" for message in body["messages"])
        message = {"role": "assistant", "content": "#### 7" if asked else "Is that all?"}
        answer = {
            "id": "0",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
        sent = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args):  # noqa: D102
        pass


async def main(url, model):
    env = load_environment("textenv/clarify", count=4)
    client = vf.ClientConfig(api_base_url=url, api_key_var="OPENAI_API_KEY")
    results = await env.generate(env.get_dataset(), client, model, state_columns=["textenvs"])
    for output in sorted(results["outputs"], key=lambda output: output["example_id"]):
        record = output["textenvs"]
        print(
            f"row {output['example_id']}: reward {output['reward']:+.2f}, by turns {record['turn_rewards']}, "
            f"truncated {output['is_truncated']}, stop {record['stop']}, error {output['error']}"
        )


if len(sys.argv) == 3:
    asyncio.run(main(*sys.argv[1:]))
else:
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{service.server_port}/v1", "scripted"))
    service.shutdown()
