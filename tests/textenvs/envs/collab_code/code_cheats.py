"""Programs that exploit the checker instead of solving the task: each defines ``double``."""

# Programs that passed a row's unit tests when these ran in the program's process, or that target today's process.
CHEATS = {
    "patched assertions": """
import unittest
for name in dir(unittest.TestCase):
    if name.startswith(("assert", "fail")):
        setattr(unittest.TestCase, name, lambda *args, **kwargs: __import__("contextlib").nullcontext())
def double(x): return None
""",
    "the caller's frame": """
import json, os, sys
def double(x):
    frame = sys._getframe()
    while frame:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, int) and 2 < value < 99:
                said = {"token": frame.f_locals.get("token"), "value": None, "error": None}
                try: os.write(value, (json.dumps(said) + "\\n").encode())
                except OSError: pass
        frame = frame.f_back
    os._exit(0)
""",
    "a report to every file": """
import os
def double(x):
    for fd in range(256):
        try: os.write(fd, b'[{"value": null, "error": null}]\\n{"value": null, "error": null}\\n')
        except OSError: pass
    os._exit(0)
""",
    "secrets in memory": """
import gc, re, sys
def double(x):
    seen = [each for each in gc.get_objects() if isinstance(each, (str, bytes, tuple, list, dict))]
    text = " ".join(str(each)[:10_000] for each in seen if "double" in str(each)[:10_000])
    found = re.search(r"assertEqual\\(double\\(21\\), (\\d+)", text)
    return int(found[1]) if found else -1
""",
    "equal to everything": """
class Yes(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    __hash__ = None
def double(x): return Yes(1)
""",
    "patched modules": """
import builtins, json, sys, unittest
json.dumps = json.loads = lambda *args, **kwargs: {"value": None, "error": None}
builtins.print = builtins.repr = lambda *args, **kwargs: "None"
unittest.TestResult.addFailure = unittest.TestResult.addError = lambda *args: None
unittest.main = lambda *args, **kwargs: None
sys.stdout = sys.stderr = None
def double(x): return 0
""",
    "trace functions": """
import sys, threading
def trace(frame, event, argument):
    for name in list(frame.f_locals):
        if name in ("error", "result", "said"):
            frame.f_locals[name] = None
    return trace
sys.settrace(trace); sys.setprofile(trace); threading.settrace(trace)
def double(x): return 1
""",
    "exit handlers": """
import atexit, os
class Last:
    def __del__(self): os._exit(0)
last = Last()
atexit.register(os._exit, 0)
def double(x): raise SystemExit(0)
""",
    "exceptions that skip": """
import unittest
def double(x): raise unittest.SkipTest("not today")
""",
    "exceptions that stop": """
from unittest.case import _ShouldStop
def double(x): raise _ShouldStop
""",
    "modules in the folder": """
for name in ("unittest", "json", "contextlib", "typing", "main", "usercustomize", "sitecustomize"):
    open(name + ".py", "w").write("import os; os._exit(0)")
def double(x): return 1
""",
    "import hooks": """
import sys
class Finder:
    def find_spec(self, *args): import os; os._exit(0)
sys.meta_path.insert(0, Finder())
def double(x): return 1
""",
    "other processes": """
import os
found = []
for pid in range(1, 40):
    for path in (f"/proc/{pid}/mem", f"/proc/{pid}/fd/1", f"/proc/{pid}/environ"):
        try: found.append(open(path, "rb").read(9))
        except OSError: pass
def double(x): return 42 if found else None
""",
    "killed tests": "import os, signal\ndef double(x):\n    os.kill(-1, signal.SIGKILL)",
    "threads that race": """
import os, threading
def race():
    while True:
        for fd in range(3, 12):
            try: os.write(fd, b'{"value": 42}\\n')
            except OSError: pass
for _ in range(3): threading.Thread(target=race, daemon=True).start()
def double(x): return None
""",
    "endless output": "import sys\ndef double(x):\n    sys.stdout.write('x' * 10**7)\n    return 'x' * 10**7",
    "memory that a library trusts": """
class Array:
    __array_interface__ = {"data": (4096, False), "shape": (9,), "typestr": "<i8", "version": 3}
    def __len__(self): return 2
    def __getitem__(self, i): return Array()
def double(x): return Array()
""",
}
