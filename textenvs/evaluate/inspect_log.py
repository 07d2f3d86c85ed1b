"""The records of ``textenvs evaluate`` as a log of Inspect, which ``inspect view`` and ``read_eval_log`` read.

Written without ``inspect_ai``, in version 2 of its JSON log format (a model ``inspect_ai.log.EvalLog``). A sample is an
episode: ``id`` is the task's index in its task set, ``epoch`` the number of the task's episode from 1. Its scores are
``success`` (``C`` or ``I``, where an episode can be solved), ``return``, and every reward term and metric; those of all
episodes have means and intervals as the report of ``textenvs evaluate`` has them. Ground truth is not among the
records: ``target`` is empty.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..messages import Message
from ..tools.jsontext import JsonProblem, read_object, write_value
from .records import EPISODES, MANIFEST, Record, read_folder, write_text
from .runner import MAX_CONTEXT
from .summary import summarize

_LIMITS = {"max_assistant_turns": "turn", "max_user_turns": "turn", MAX_CONTEXT: "context"}
_SCORER = "textenvs"


def export(folder: str | Path, out: str | Path) -> Path:
    """Write the episodes of a folder of ``textenvs evaluate --out`` as one log; the file appears whole or not at all.

    Raises:
        FolderError: The folder has no evaluation, or is damaged.
        OSError: The file cannot be written.
    """
    log = eval_log(folder)
    return write_text(Path(out).expanduser(), json.dumps(log, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def eval_log(folder: str | Path) -> dict[str, Any]:
    """Return the log as JSON values; raises ``FolderError`` as :func:`export`."""
    manifest, records = read_folder(folder)
    path = Path(folder).expanduser()
    stamps = (int((path / name).stat().st_mtime) for name in (MANIFEST, EPISODES))
    began, ended = (datetime.fromtimestamp(stamp, UTC).isoformat() for stamp in stamps)
    environment, tasks = manifest["environment"], manifest["tasks"]
    policy = manifest["policy"]
    model = str(
        next((policy[name] for name in ("model", "local", "script", "function") if policy.get(name)), "unknown")
    )
    summary = summarize(records)["all"]
    planned = tasks["count"] * manifest["samples"]
    identity = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:22]
    return {
        "version": 2,
        "status": "success" if len(records) == planned else "cancelled",
        "eval": {
            **dict.fromkeys(("eval_id", "run_id", "task_id"), identity),
            "created": began,
            "task": environment["id"],
            "task_version": environment["version"] or 0,
            "task_args": environment["options"],
            "dataset": {
                "name": tasks["name"],
                "samples": tasks["count"],
                "sample_ids": sorted({record.task_index for record in records}),
            },
            "model": model,
            "model_base_url": policy.get("base_url"),
            "config": {"epochs": manifest["samples"]},
            "packages": {"textenvs": _version()},
            "metadata": {"policy": policy, "seed": manifest["seed"], "fingerprint": tasks["fingerprint"]},
        },
        "results": {
            "total_samples": planned,
            "completed_samples": len(records) - summary["failed"],
            "scores": list(_scores(summary)),
        },
        "stats": {"started_at": began, "completed_at": ended, "model_usage": _usage(model, records)},
        "samples": [_sample(record, model) for record in records],
    }


def _sample(record: Record, model: str) -> dict[str, Any]:
    messages = [_message(message) for message in record.messages]
    opening = next((number for number, entry in enumerate(messages) if entry["role"] == "assistant"), len(messages))
    replies = [message for message in messages if message["role"] == "assistant"]
    sample: dict[str, Any] = {
        "id": record.task_index,
        "epoch": record.sample + 1,
        "input": messages[:opening],
        "target": "",
        "messages": messages,
        "output": {"model": model, "choices": [{"message": reply, "stop_reason": "stop"} for reply in replies[-1:]]},
        "metadata": {
            **{name: getattr(record, name) for name in ("task_key", "data_source", "seed", "stop", "cut_replies")},
            "turn_rewards": list(record.turn_rewards),
            **({"notes": list(record.notes)} if record.notes else {}),
            **({"contexts": [list(map(_message, context)) for context in record.contexts]} if record.contexts else {}),
            **({"context_roles": list(record.context_roles)} if record.context_roles else {}),
        },
        "model_usage": _usage(model, [record]),
        "turn_count": record.assistant_turns,
    }
    if record.failed:
        text = f"{record.stop}: {record.failure}"
        return sample | {"error": {"message": text, "traceback": text, "traceback_ansi": text}}
    numbers = {"return": record.total, **_prefixed("term", record.terms), **_prefixed("metric", record.metrics)}
    numbers |= _prefixed("return", record.role_returns)
    success = {} if record.success is None else {"success": {"value": "C" if record.success else "I"}}
    sample["scores"] = success | {name: {"value": value} for name, value in numbers.items()}
    if record.truncated:
        kind = _LIMITS.get(record.stop or "", "custom")
        sample["limit"] = {"type": kind, "limit": record.assistant_turns, "reason": record.stop}
    return sample


def _scores(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "return" not in summary:  # every episode failed
        return
    estimates = {name: summary[name] for name in ("success", "return") if name in summary}
    estimates |= {**_prefixed("term", summary["terms"]), **_prefixed("metric", summary["metrics"])}
    for name, estimate in estimates.items():
        values = {"accuracy" if name == "success" else "mean": estimate["value"]}
        values |= {f"ci95_{end}": estimate[end] for end in ("low", "high") if estimate[end] is not None}
        metrics = {metric: {"name": metric, "value": value} for metric, value in values.items()}
        yield {"name": name, "scorer": _SCORER, "metrics": metrics}


def _message(message: Message) -> dict[str, Any]:
    content = message["content"]
    parts: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        parts.append({"type": "reasoning", "reasoning": reasoning})
    if not isinstance(content, str):
        for part in content:
            if part["type"] == "text":
                parts.append({"type": "text", "text": part["text"]})
            else:
                parts.append({"type": "image", "image": part["image_url"]["url"]})
    elif parts:
        parts.append({"type": "text", "text": content})
    written: dict[str, Any] = {"role": message["role"], "content": parts or content}
    if message["role"] == "assistant":
        written["source"] = "generate"
    if message["role"] == "tool":
        written |= {"tool_call_id": message.get("tool_call_id"), "function": message.get("name")}
    elif "name" in message:
        written["metadata"] = {"name": message["name"]}
    if calls := message.get("tool_calls"):
        written["tool_calls"] = [
            {"id": call["id"], "function": call["function"]["name"], **_arguments(call["function"]["arguments"])}
            for call in calls
        ]
    return written


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object; invalid text of the model becomes the ``parse_error``."""
    try:
        return {"arguments": json.loads(write_value(read_object(text)))}
    except JsonProblem:
        return {"arguments": {}, "parse_error": text}


def _usage(model: str, records: Sequence[Record]) -> dict[str, Any]:
    counted = [record for record in records if record.completion_tokens is not None]
    if not counted:
        return {}
    read, written = (sum(getattr(record, name) or 0 for record in counted) for name in _TOKENS)
    costs = [record.cost for record in counted if record.cost is not None]
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    return {model: usage | ({"total_cost": sum(costs)} if costs else {})}


_TOKENS = ("prompt_tokens", "completion_tokens")


def _prefixed(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{kind}/{name}": value for name, value in values.items()}


def _version() -> str:
    try:
        return importlib.metadata.version("textenvs")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is only on the path
        return "unknown"
