"""Does `textenvs prompts` raise a local model's score? Held-out returns with the start's prompt and with the found one.

    python -m benchmarks.prompts [--policies tiny,FOLDER] [--families clarify,collab-math]
                                 [--reflections itself,written] [--folder FOLDER] [--results FILE] [--report]

`tiny`: a policy of a million parameters for each of two small environments of `benchmarks.fork_credit`, from scratch.
It imitates the scripted expert behind one system prompt, and careless replies behind two others and behind none, so its
prompt decides what it does, as that of a large model does. It cannot write prompts: a scripted service proposes four,
the good one last, in the place of a reflection model. This measures the search, not the reflection.

FOLDER: a model of this machine, as SmolLM2-135M-Instruct (`make model`), greedy, on `textenv/gsm8k` and
`textenv/clarify`: with itself as the reflection model (`itself`), and with three prompts that are written by hand,
proposed by the service (`written`).

It resumes where it was stopped: start the same command again. The results are a JSON line for each search.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks import curves
from benchmarks.fork_credit.runs import FAMILIES

KEY = ("policy", "environment", "reflection")  #: of a search, in its line of the results
#: The prompt that brings out the expert's replies, and those behind which the policy learned careless ones.
GOOD = "Ask for what is missing, then answer."
CARELESS = ("Answer at once.", "Be short.")
PROPOSALS = ("Be short.", "Be polite.", "Answer.", GOOD)
EPISODES = 2500
START = ("sft.batch_size=24", "sft.lr=2e-3", "sft.steps=500", "sft.max_context=256")
TINY = ("--train-tasks", "24", "--val-tasks", "24", "--test-tasks", "100", "--budget", "160", "--concurrency", "32")
TINY += ("--max-response-length", "24", "--seed", "1")
#: Of a model of this machine: environments, and settings that fit two slow cores.
MODEL_ENVS = {
    "textenv/gsm8k": ("level=easy", "--max-response-length", "48"),
    "textenv/clarify": ("level=easy", "--max-response-length", "32"),
}
#: Prompts that are written by hand.
WRITTEN = {
    "textenv/gsm8k": (
        "Reply with the answer only, in this form: #### 7",
        "Solve the problem step by step in one line. End with #### and the number, for example: 2 + 3 - 1 = 4 #### 4",
        "You are good at arithmetic. Add what is bought, subtract what is used. Answer: #### and the number.",
    ),
    "textenv/clarify": (
        "If a number, a day or a colour is missing, ask for it. Otherwise answer with #### and the answer.",
        "Reply with one short question.",
        "Reply with the answer only, in this form: #### 7",
    ),
}
MODEL = ("--train-tasks", "8", "--val-tasks", "12", "--test-tasks", "32", "--budget", "60", "--concurrency", "32")
MODEL += ("--temperature", "0", "--reflection-length", "160", "--reflection-tasks", "2")


def rows(family: str, seed: int = 0) -> Iterator[str]:
    """Yield lines of demonstrations: behind each prompt the replies that it brings out; the last one is imitated."""
    env: Any = gymnasium.make(FAMILIES[family].env[0].removeprefix("env.id=")).unwrapped
    for number in range(EPISODES):
        rng = np.random.default_rng((seed, number))
        expert = number % 2 == 0
        prompt = GOOD if expert else (*CARELESS, None)[number // 2 % 3]
        opening = [] if prompt is None else [{"role": "system", "content": prompt}]
        observation, _ = env.reset(seed=int(rng.integers(2**31)))
        done = False
        while not done:
            reply = str(env.demonstration(rng) if expert else env.careless_reply(rng))
            messages = [*opening, *observation, {"role": "assistant", "content": reply}]
            replies = sum(message["role"] == "assistant" for message in messages)
            yield json.dumps({"messages": messages, "weights": [*[0] * (replies - 1), 1]})
            observation, _, terminated, truncated, _ = env.step(reply)
            done = terminated or truncated


def tiny(family: str, folder: Path) -> Path:
    """Return the family's policy, made unless it is there."""
    folder = folder / f"start-{family}"
    if not (folder / "model").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.jsonl").write_text("\n".join(rows(family)), encoding="utf-8")
        common = ("trainer.threads=1", "model.device=cpu", "trainer.logger=[jsonl,console]", *FAMILIES[family].env)
        files = (f"sft.files={folder / 'rows.jsonl'}", f"trainer.default_local_dir={folder}")
        curves.call("trainers.sft", *common, *files, *START)
    return folder / "model"


@contextmanager
def proposing(prompts: tuple[str, ...], memory: Path) -> Iterator[str]:
    """Serve these prompts in turn as chat completions within the block; yield the service's address.

    It is the same after an interruption, by the file ``memory``: a search with another service is another search.
    """
    turn, port = cycle(prompts), int(memory.read_text()) if memory.exists() else 0

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": f"```\n{next(turn)}\n```"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "0", "object": "chat.completion", "created": 0, "model": "script", "choices": [choice]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Service)
    memory.write_text(str(server.server_address[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def search(policy: str, environment: str, reflection: str, folder: Path, results: Path, words: tuple[str, ...]) -> None:
    """Run one search, and save its line of the results."""
    began = time.perf_counter()
    curves.call("textenvs", "prompts", environment, *words, "--out", str(folder))
    summary = json.loads((folder / "candidates.json").read_text())
    names = ("better", "held_out", "episodes", "ended")
    best = next(proposal for proposal in summary["proposals"] if proposal["candidate"] == summary["best"])
    validation = {"start": summary["proposals"][0]["validation"], "found": best["validation"]}
    row = {
        "policy": policy,
        "environment": environment,
        "reflection": reflection,
        **{name: summary[name] for name in names},
    }
    row |= {"proposals": len(summary["proposals"]) - 1, "validation": validation, "prompt": best["prompt"]}
    curves.save(row | {"seconds": round(time.perf_counter() - began)}, results, KEY)


def scripted(
    policy: str, environment: str, folder: Path, results: Path, words: tuple[str, ...], prompts: tuple[str, ...]
) -> None:
    """Run one search in which a service proposes these prompts in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    with proposing(prompts, folder / "port") as address:
        service = ("--reflection-model", "script", "--reflection-base-url", address)
        search(policy, environment, "written", folder, results, (*words, *service))


def report(lines: list[dict[str, Any]]) -> None:
    """Print a line for each search."""
    for row in lines:
        values, place = row["held_out"], f"{row['policy']}, prompts {row['reflection']}: {row['environment']}"
        print(f"{place}, {row['proposals']} proposals, {row['episodes']} episodes")
        if values is None:
            print(f"  nothing better than {row['validation']['start']:+.3f} on the validation tasks")
            continue
        moved = "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**values["difference"])
        shown = "better" if row["better"] else "not shown to be better"
        print(f"  {values['start']['value']:+.3f} -> {values['found']['value']:+.3f}, {moved}, {shown}")
        print(f"  {row['prompt'][:100]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=lambda text: text.split(","), default=["tiny"])
    parser.add_argument("--families", type=lambda text: text.split(","), default=["clarify", "collab-math"])
    parser.add_argument("--reflections", type=lambda text: text.split(","), default=["itself", "written"])
    parser.add_argument("--folder", type=Path, default=Path("outputs/prompts"))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "prompts.jsonl")
    parser.add_argument("--report", action="store_true", help="print what the file of results has, and run nothing")
    options = parser.parse_args()
    for policy in () if options.report else options.policies:
        if policy == "tiny":
            for family in options.families:
                model, environment = tiny(family, options.folder), FAMILIES[family].env[0].removeprefix("env.id=")
                folder = options.folder / f"tiny-{family}"
                scripted("tiny", environment, folder, options.results, ("--local", str(model), *TINY), PROPOSALS)
            continue
        for environment, own in MODEL_ENVS.items():
            name, words = Path(policy).name, ("--local", policy, *own, *MODEL)
            folder = options.folder / f"{name}-{environment.partition('/')[2]}"
            if "itself" in options.reflections:
                search(name, environment, "itself", folder, options.results, words)
            if "written" in options.reflections:
                written = folder.with_name(f"{folder.name}-written")
                scripted(name, environment, written, options.results, words, WRITTEN[environment])
    report(curves.saved(options.results))


if __name__ == "__main__":
    main()
