"""Nothing that is drawn depends on the order of sets, which differs between processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = """
import hashlib, json, random
from textenvs.envs.terminal.templates import TEMPLATES
drawn = {}
for name, draw in TEMPLATES.items():
    project = draw(random.Random(0))
    faults = [(fault.kind, fault.symptom, fault.repair, *fault.looks) for fault in project.faults]
    questions = [(question.text, question.answer, *question.looks) for question in project.questions]
    checks = [(check.command, check.expected, check.inputs) for check in project.checks(random.Random(1))]
    text = repr((project.about, [*project.files.items()], faults, questions, checks))
    drawn[name] = hashlib.sha256(text.encode()).hexdigest()
print(json.dumps(drawn))
"""
ENVIRONMENTS = """
import hashlib, json
import numpy as np
import textenvs
played = {}
for env_id in textenvs.list_environments():
    try:
        env = textenvs.make(env_id)
    except (ImportError, RuntimeError):  # an extra or a sandbox is missing
        continue
    observation, info = env.reset(seed=3)
    steps, rng = [repr((observation, info))], np.random.default_rng(0)
    for _ in range(2):
        try:
            reply = env.demonstration(rng)
        except NotImplementedError:
            break
        observation, *rest = env.step(reply)
        steps.append(repr((reply, observation, rest)))
        if rest[1] or rest[2]:
            break
    env.close()
    played[env_id] = hashlib.sha256("".join(steps).encode()).hexdigest()
print(json.dumps(played))
"""


def printed(program):
    """Run a program under two seeds of the hashes of strings; return what each printed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    return [json.loads(process.communicate(timeout=200)[0]) for process in processes]


def test_projects_are_drawn_alike():
    first, second = printed(TEMPLATES)
    assert len(first) >= 28
    assert [name for name in first if first[name] != second[name]] == []


def test_environments_are_played_alike():
    first, second = printed(ENVIRONMENTS)
    assert len(first) >= 15
    assert [env_id for env_id in first if first[env_id] != second[env_id]] == []
