"""The sandbox as a tool."""

import json
import pickle

import pytest
from sandbox_boxes import box_of

from textenvs.env import EnvironmentFailure, EpisodeState
from textenvs.sandbox import Sandbox, SandboxFailure
from textenvs.tools import Toolbox, python
from textenvs.tools.formats import make_call
from textenvs.tools.python import python_tool


async def asked(tool, code):
    call = make_call("python", json.dumps({"code": code}), "call_0")
    (result,) = await Toolbox([tool]).run([call], EpisodeState())
    return result


async def test_the_model_reads_what_its_program_prints():
    tool = pickle.loads(pickle.dumps(python_tool(box_of())))
    assert tool.schema["function"]["parameters"]["required"] == ["code"]
    assert (await asked(tool, "print(2 ** 10)")).content == "1024"
    wrong = await asked(tool, "print('before')\n1 / 0")
    assert wrong.ok
    assert wrong.content.startswith("before\nTraceback")
    assert wrong.content.endswith("ZeroDivisionError: division by zero")
    assert (await asked(tool, "x = 1")).content == "[The program printed nothing. Use print() to see a value.]"


async def test_long_output_keeps_its_end_and_the_reason():
    tool = python_tool(box_of(), max_chars=100)
    told = (await asked(tool, "print('x' * 10_000)\nraise ValueError('the end')")).content
    assert "characters left out" in told
    assert told.endswith("ValueError: the end")
    assert len(told) < 700
    assert (await asked(tool, "while True: print('y')")).content.endswith("Print less.]")


async def test_a_box_that_breaks_is_no_observation(monkeypatch):
    box = box_of()

    async def broken(code, **more):
        raise SandboxFailure("it broke")

    monkeypatch.setattr(box, "run", broken)
    with pytest.raises(EnvironmentFailure, match="tool_failed: it broke"):
        await asked(python_tool(box), "print('not run before')")


async def test_what_is_kept_does_not_grow_with_the_programs():
    kept = python._kept
    before = set(kept)
    await asked(python_tool(box_of()), "#" + "x" * 100_000)
    (key,) = set(kept) - before
    assert isinstance(key, bytes)
    assert len(key) < 100


async def test_a_replay_is_told_the_same_without_running_again(monkeypatch):
    box = box_of()
    runs = []
    run = box.run

    async def counted(code, **more):
        runs.append(code)
        return await run(code, **more)

    monkeypatch.setattr(box, "run", counted)
    code = "import time; print(time.time_ns())"
    told = [(await asked(python_tool(box), code)).content for _ in range(3)]
    assert len(set(told)) == len(runs) == 1
    unlike = Sandbox(backend=box.backend, limits=box.limits, seed=None)
    assert len({(await asked(python_tool(unlike), code)).content for _ in range(2)}) == 2
