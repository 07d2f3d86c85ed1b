"""Runs for the viewer's tests and its benchmark: conversations of a real environment, numbers of a learner made up.

``python tests/textenvs/viewer/synthetic.py FOLDER [EPISODES]`` writes one.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import textenvs
from textenvs.records.schema import EXPLAINED, ITERATION_KEY, PLAYED, arrow_schema

ENVIRONMENT = {"id": "textenv/gsm8k-interact", "options": {"level": "easy"}}
HOSTILE = {
    "html": '<img src=x onerror="window.hacked = 1"><b>bold</b><script>window.hacked = 1</script>',
    "element": "</script></div><script>window.hacked = 1</script><!-- ]]> &lt;",
    "control": "a\x00b\x1b[31mred\x07 \u202egnp.exe\u2066 \U000e0041 end",
    "long": "<i>x</i> " * 125_000,  # more than 1 MB
}


def tokens_of(messages, own):
    """Pieces of a conversation in a chat template; the replies from number ``own`` on are turns."""
    text, mask, turn = [], [], []
    reply = -1
    for message in messages:
        reply += message["role"] == "assistant"
        acts = message["role"] == "assistant" and reply >= own
        pieces = re.findall(r"\s*\S{1,4}|\s+", message["content"])
        for part, action in (
            (["<|im_start|>", message["role"], "\n"], False),
            ([*pieces, "<|im_end|>"], acts),
            (["\n"], False),
        ):
            text += part
            mask += [action] * len(part)
            turn += [reply - own if action else -1] * len(part)
    return text, mask, turn


def played(env, task_index, seed, replies):
    """Messages, rewards, terms and how it ended; ``replies`` is a function of the environment and of the turn."""
    env.reset(seed=seed, options={"task_index": task_index})
    rewards, terms, turn, over, info = [], [], 0, False, {}
    while not over:
        messages, reward, terminated, truncated, info = env.step(replies(env, turn))
        rewards.append(reward)
        terms.append(list(info["terms"].items()))
        over, turn = terminated or truncated, turn + 1
    return {
        "messages": list(messages), "turn_rewards": rewards, "turn_terms": terms, "terminated": terminated,
        "truncated": truncated, "stop": info["stop"], "metrics": list(info["metrics"].items()),
        "status": "completed" if terminated else "truncated_turns", "task_key": info["task_key"],
        "data_source": info["data_source"], "task_index": task_index, "env_seed": seed,
    }  # fmt: skip


def rows_of(iteration, groups, siblings, skill=0.4, thoughts=20, forks=True):
    """Rows of an iteration: groups of siblings, and a fork of the first one of each that has two turns."""
    rng = np.random.default_rng(iteration)
    env = textenvs.make(ENVIRONMENT["id"], **ENVIRONMENT["options"])
    rows = []
    for group in range(groups):
        members = []

        def reply(env, turn):
            words = " ".join(rng.choice(["so", "then", "add", "take", "seven", "coins", "left"], thoughts))
            return f"{words}\n{env.demonstration(rng)}" if rng.random() < skill else f"{words}\n#### {rng.integers(30)}"

        for sibling in range(siblings):
            row = played(env, group, 1000 * group + sibling, reply)
            name = f"i{iteration}-g{group}"
            members.append(
                {**row, "episode_id": f"{name}-s{sibling}", "group_id": name, "forked_from": "", "forked_turn": 0}
            )
        root = next((m for m in members if len(m["turn_rewards"]) > 1), None)
        if forks and root is not None:
            first = next(m for m in root["messages"] if m["role"] == "assistant")["content"]
            row = played(
                env, group, root["env_seed"], lambda env, turn, opener=first: env.demonstration(rng) if turn else opener
            )  # fmt: skip
            for name in ("turn_rewards", "turn_terms"):
                row[name] = row[name][1:]
            origin = {"forked_from": root["episode_id"], "forked_turn": 1, "group_id": root["group_id"]}
            members.append({**row, **origin, "episode_id": f"{root['episode_id']}-f0"})
        rows += learned(members, rng)
    return sorted(rows, key=lambda row: bool(row["forked_from"]))


def learned(members, rng):
    """The same with tokens, and with what a GRPO learner may have made of them; one turn has moved credit."""
    totals = [sum(m["turn_rewards"]) for m in members if not m["forked_from"]]
    mean, std = float(np.mean(totals)), float(np.std(totals))
    rows = []
    for member in members:
        text, mask, turn = tokens_of(member["messages"], member["forked_turn"])
        size, acts = len(text), np.array(mask)

        def column(values, acts=acts, size=size):
            whole = np.full(size, np.nan)
            whole[acts] = values
            return [None if np.isnan(v) else float(np.float32(v)) for v in whole]

        n = int(acts.sum())
        total = sum(member["turn_rewards"])
        advantage = (total - mean) / std if std else 0.0
        logprobs = np.zeros(size)
        logprobs[acts] = -rng.exponential(0.5, n)
        moved = None
        if len(member["turn_rewards"]) > 1:
            moved = [
                reward + (0.1 if k == 0 else -0.1 if k == 1 else 0.0) for k, reward in enumerate(member["turn_rewards"])
            ]
        ratio = np.exp(rng.normal(0, 0.1, n))
        rows.append(
            {
                **member,
                "error": None, "sampling_seed": 7, "token_ids": [len(t) for t in text], "action_mask": mask,
                "logprobs": logprobs.tolist(), "weight_version": [3 if m else -1 for m in mask], "turn_id": turn,
                "segment_starts": [0], "kept_ids": [], "kept_counts": [], "token_text": text,
                "advantage": column(np.full(n, advantage)), "return": column(np.full(n, total)),
                "baseline": column(np.full(n, mean)), "importance_weight": column(rng.uniform(0.8, 1.2, n)),
                "loss_weight": column(np.full(n, 1 / 512)), "mismatch": column(rng.normal(0, 0.01, n)),
                "ratio": column(ratio), "clipped": [None if r is None else r > 1.2 for r in column(ratio)],
                "entropy": column(rng.exponential(0.4, n)), "loss": column(-ratio * advantage),
                "credit_moved": moved, "fork_value": [float(rng.random())] + [None] * (len(member["turn_rewards"]) - 1),
                "group_mean": mean, "group_std": std, "greedy_reward": None, "signal": "signal" if std else "tied",
            }
        )  # fmt: skip
    return rows


def hostile_rows():
    """Episodes whose every text is hostile; of the long one, the tokens are left out."""
    rows = rows_of(1, 1, len(HOSTILE), forks=False)
    for row, (name, text) in zip(rows, HOSTILE.items(), strict=True):
        row["messages"] = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        row |= {"task_key": f"{name} {text[:80]}", "stop": text[:80], "error": text[:80], "data_source": text[:80]}
        row |= {"turn_rewards": [0.5], "turn_terms": [[(text[:40], 0.5)]], "credit_moved": None, "fork_value": None}
        row["episode_id"] = f"{name}/\"'<>&?#{text[:20]}"
        pieces, mask, turn = tokens_of(row["messages"], 0)
        row |= dict.fromkeys(
            ("action_mask", "turn_id", "token_ids", "logprobs", "weight_version", "segment_starts"), []
        )
        row |= {column: None for column in EXPLAINED if isinstance(row.get(column), list)}
        if name != "long":
            row |= {"token_text": pieces, "action_mask": mask, "turn_id": turn, "token_ids": [1] * len(pieces)}
            row |= {
                "logprobs": [0.0] * len(pieces),
                "weight_version": [0 if m else -1 for m in mask],
                "segment_starts": [0],
            }
            row["advantage"] = [0.5 if m else None for m in mask]
    return rows


def several_contexts():
    """An episode whose second turn is a sub-agent's: its context stands first, because it was used last before."""
    (row,) = rows_of(1, 1, 1, forks=False)
    aside = [{"role": "user", "content": "Check it."}, {"role": "assistant", "content": "It is right."}]
    main = [
        {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Perhaps seven."},
        {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "#### 7"},
    ]  # fmt: skip
    row |= {column: None for column in EXPLAINED if isinstance(row.get(column), list)}
    parts = [(tokens_of(aside, 0), [1]), (tokens_of(main, 0), [0, 2])]
    text = [piece for (pieces, _, _), _ in parts for piece in pieces]
    mask = [action for (_, actions, _), _ in parts for action in actions]
    turns = [-1 if own < 0 else numbers[own] for (_, _, owns), numbers in parts for own in owns]
    size, rewards = len(text), [0.25, -0.5, 1.0]
    row |= {
        "messages": main, "turn_rewards": rewards, "turn_terms": [[("right", value)] for value in rewards],
        "episode_id": "several", "token_text": text, "token_ids": [1] * size, "action_mask": mask, "turn_id": turns,
        "logprobs": [0.0] * size, "weight_version": [0 if action else -1 for action in mask],
        "segment_starts": [0, len(parts[0][0][0])], "credit_moved": None, "fork_value": None,
    }  # fmt: skip
    return row


def write_rows(path, rows, **info):
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = arrow_schema(PLAYED, EXPLAINED)
    schema = schema.with_metadata({**schema.metadata, ITERATION_KEY: json.dumps({"environment": ENVIRONMENT, **info})})
    pq.write_table(
        pa.Table.from_pylist([{n: r.get(n) for n in schema.names} for r in rows], schema), path, row_group_size=64
    )


def write_run(folder, iterations=2, groups=4, siblings=4, **options):
    """A run of so many iterations, each followed by a validation."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"env": {"id": ENVIRONMENT["id"]}, "trainer": {"seed": 1}}))
    with (folder / "metrics.jsonl").open("w") as metrics:
        for number in range(1, iterations + 1):
            add_iteration(folder, number, groups, siblings, **options)
            metrics.write(
                json.dumps({"step": number, "train/reward": 0.1 * number, "actor/entropy": 1 / number, "odd": "NaN"})
                + "\n"
            )
    return folder


def add_iteration(folder, number, groups=4, siblings=4, **options):
    for kind, offset in (("train", 0), ("validation", 100)):
        rows = rows_of(number + offset, groups, siblings, **options)
        write_rows(
            folder / "rollouts" / kind / f"{number:06d}.parquet", rows, kind=kind, iteration=number, version=number - 1
        )


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    write_run(sys.argv[1], 1, max(1, count // 16), 8, thoughts=60)
