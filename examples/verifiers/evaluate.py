"""A text environment in verifiers: four episodes with a model behind an OpenAI-compatible service.

    pip install 'verifiers>=0.4'
    python examples/verifiers/evaluate.py                                  # with a service of the example's own
    python examples/verifiers/evaluate.py http://localhost:8000/v1 MODEL   # with yours

verifiers' own command does the same: ``vf-eval textenvs_verifiers --env.taskset.env textenv/clarify``.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    import verifiers.v1 as vf
except ImportError as error:
    sys.exit(f"{error}: this example needs verifiers, pip install 'verifiers>=0.4'")

from textenvs.integrations.verifiers import load_environment


class Service(BaseHTTPRequestHandler):
    """A "model" that asks once, and then says 7."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):  # noqa: D102, N802
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        has_asked = any(message["role"] == "assistant" for message in body["messages"])
        message = {"role": "assistant", "content": "#### 7" if has_asked else "Is that all?"}
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
    context = vf.ModelContext(model=model, client=vf.EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY"))
    async with env.serving():
        episodes = await asyncio.gather(*(env.run_episode(task, context) for task in env.taskset))
    for episode in episodes:
        for trace in episode.traces:
            record = trace.info["textenvs"]
            print(
                f"{trace.task.data.name}: reward {trace.reward:+.2f}, by turns {record['turn_rewards']}, "
                f"truncated {trace.is_truncated}, stop {record['stop']}, ok {episode.ok}"
            )


if len(sys.argv) == 3:
    asyncio.run(main(*sys.argv[1:]))
else:
    service = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    asyncio.run(main(f"http://127.0.0.1:{service.server_port}/v1", "scripted"))
    service.shutdown()
