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


async def result_of(tool, code):
    call = make_call("python", json.dumps({"code": code}), "call_0")
    (result,) = await Toolbox([tool]).run([call], EpisodeState())
    return result


async def test_model_reads_program_output():
    tool = pickle.loads(pickle.dumps(python_tool(box_of())))
    assert tool.schema["function"]["parameters"]["required"] == ["code"]
    assert (await result_of(tool, "print(2 ** 10)")).content == "1024"
    wrong = await result_of(tool, "print('before')\n1 / 0")
    assert wrong.ok
    assert wrong.content.startswith("before\nTraceback")
    assert wrong.content.endswith("ZeroDivisionError: division by zero")
    assert (await result_of(tool, "x = 1")).content == "[The program printed nothing. Use print() to see a value.]"


async def test_long_output_keeps_end_and_reason():
    tool = python_tool(box_of(), max_chars=100)
    output = (await result_of(tool, "print('x' * 10_000)\nraise ValueError('the end')")).content
    assert "characters left out" in output
    assert output.endswith("ValueError: the end")
    assert len(output) < 700
    assert (await result_of(tool, "while True: print('y')")).content.endswith("Print less.]")


async def test_broken_sandbox_is_no_observation(monkeypatch):
    box = box_of()

    async def broken(code, **options):
        raise SandboxFailure("it broke")

    monkeypatch.setattr(box, "run", broken)
    with pytest.raises(EnvironmentFailure, match="tool_failed: it broke"):
        await result_of(python_tool(box), "print('not run before')")


async def test_cache_keys_do_not_grow_with_programs():
    cache = python._cache
    before = set(cache)
    await result_of(python_tool(box_of()), "#" + "x" * 100_000)
    (key,) = set(cache) - before
    assert isinstance(key, bytes)
    assert len(key) < 100


async def test_replay_uses_cached_output(monkeypatch):
    box = box_of()
    runs = []
    run = box.run

    async def counted(code, **options):
        runs.append(code)
        return await run(code, **options)

    monkeypatch.setattr(box, "run", counted)
    code = "import time; print(time.time_ns())"
    output = [(await result_of(python_tool(box), code)).content for _ in range(3)]
    assert len(set(output)) == len(runs) == 1
    unlike = Sandbox(backend=box.backend, limits=box.limits, seed=None)
    assert len({(await result_of(python_tool(unlike), code)).content for _ in range(2)}) == 2
