"""Clones for tests: a small one of our own in the leaderboard's layout, and a real one that BFCL_CLONE names."""

import json
import os
from pathlib import Path

import pytest

REAL = os.environ.get("BFCL_CLONE", "")
needs_clone = pytest.mark.skipif(not REAL, reason="BFCL_CLONE names no clone of ShishirPatil/gorilla")

_CONFIG = """
PREFIX = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
CLASS_FILE_PATH_MAPPING = {
    "Shelf": f"{PREFIX}.shelf", "Adder": f"{PREFIX}.adder", "Absent": f"{PREFIX}.absent", "Other": f"{PREFIX}.shelf",
    "Trap": f"{PREFIX}.trap",
}
MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Shelf": "shelf.json", "Adder": "adder.json", "Trap": "trap.json"}
STATELESS_CLASSES = ["Adder"]
"""
_CHECKER = """
def public(instance):
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}

def state_checker(model_instances, ground_truth_instances):
    same = all(public(model_instances[name]) == public(ground_truth_instances[name]) for name in ground_truth_instances)
    return {"valid": same}

def response_checker(model_response_list, ground_truth_response_list, turn_index):
    rest = list(model_response_list)
    for result in ground_truth_response_list:
        if result not in rest:
            return {"valid": False}
        rest.remove(result)
    return {"valid": True}
"""
_SHELF = """
class Shelf:
    def __init__(self):
        self._looks = 0

    def _load_scenario(self, scenario, long_context=False):
        if "broken" in scenario:
            raise KeyError("no such shelf")
        self.books = list(scenario.get("books", []))

    def look(self):
        self._looks += 1
        return {"books": self.books, "looks": self._looks}

    def put(self, title, place=0):
        self.books.insert(place, title)

    def take(self, title):
        self.books.remove(title)
        return {"taken": title}
"""
_TRAP = """
import os, time

class Trap:
    def _load_scenario(self, scenario, long_context=False):
        self.doors = ["open"]

    def wait(self):
        self.doors.append("shut")
        time.sleep(3600)

    def burn(self):
        self.doors.clear()
        os._exit(7)
"""
_ADDER = """
class Adder:
    def add(self, a, b):
        return a + b
"""


def _document(name, required=(), optional=(), kind="string"):
    properties = {part: {"type": kind, "description": f"The {part}."} for part in (*required, *optional)}
    parameters = {"type": "dict", "properties": properties, "required": list(required)}
    return {"name": name, "description": f"The function {name}.", "parameters": parameters}


SHELF = {"Shelf": {"books": ["Emma"]}}
TASKS = {
    "base": [
        {
            "id": "multi_turn_base_0",
            "question": [
                [{"role": "user", "content": "Put 'Ulysses' on the shelf."}],
                [{"role": "user", "content": "What is 2 + 3? And take 'Emma'."}],
            ],
            "initial_config": SHELF,
            "involved_classes": ["Shelf", "Adder"],
        },
        {
            "id": "multi_turn_base_1",
            "question": [
                [{"role": "user", "content": "What is on the shelf?"}],
                [{"role": "user", "content": "Thanks."}],
            ],
            "initial_config": SHELF,
            "involved_classes": ["Shelf"],
        },
    ],
    "miss_func": [
        {
            "id": "multi_turn_miss_func_0",
            "question": [[{"role": "user", "content": "Take 'Emma'."}], []],
            "initial_config": SHELF,
            "involved_classes": ["Shelf"],
            "missed_function": {"1": ["take"]},
        }
    ],
    "miss_param": [
        {
            "id": "multi_turn_miss_param_0",
            "question": [
                [{"role": "user", "content": "Take a book."}],
                [{"role": "user", "content": "I mean 'Emma'."}],
            ],
            "initial_config": SHELF,
            "involved_classes": ["Shelf", "Trap"],
        }
    ],
}
GOLD = {
    "multi_turn_base_0": [["put('Ulysses')"], ["add(a=2.0, b=3.0)", "take(title='Emma')"]],
    "multi_turn_base_1": [["look()"], []],
    "multi_turn_miss_func_0": [[], ["take(title='Emma')"]],
    "multi_turn_miss_param_0": [[], ["take(title='Emma')"]],
}


def _lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_clone(folder: Path) -> Path:
    """Write a clone with three classes, and four tasks in three categories."""
    package = folder / "berkeley-function-call-leaderboard" / "bfcl_eval"
    checker, data = package / "eval_checker" / "multi_turn_eval", package / "data"
    files = {
        package / "constants" / "executable_backend_config.py": _CONFIG,
        checker / "multi_turn_checker.py": _CHECKER,
        checker / "func_source_code" / "shelf.py": _SHELF,
        checker / "func_source_code" / "adder.py": _ADDER,
        checker / "func_source_code" / "trap.py": _TRAP,
        data / "multi_turn_func_doc" / "shelf.json": _lines(
            [_document("look"), _document("put", ["title"], ["place"]), _document("take", ["title"])]
        ),
        data / "multi_turn_func_doc" / "trap.json": _lines([_document("wait"), _document("burn")]),
        data / "multi_turn_func_doc" / "adder.json": _lines([_document("add", ["a", "b"], kind="float")]),
    }
    for category, tasks in TASKS.items():
        name = f"BFCL_v4_multi_turn_{category}.json"
        files[data / name] = _lines(tasks)
        files[data / "possible_answer" / name] = _lines(
            {"id": task["id"], "ground_truth": GOLD[task["id"]]} for task in tasks
        )
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder
