"""The page about users and judges: its code runs, and its table has every option with its default."""

import asyncio
import re
from pathlib import Path

import pytest
from fake_service import FakeService

from textenvs.chat import ChatSpec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "users_and_judges.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def model(request):
    """Answers anything in the shape that is asked for."""
    shape = request.get("response_format")
    if shape is None:
        return "a pear"
    texts = {"message": "At eight, please.", "state": "goes_on"}
    if number := re.search(r"^<data (\w+)>$", request["messages"][1]["content"], re.MULTILINE):
        texts["data_code"] = number[1]
    fields = shape["json_schema"]["schema"]["properties"]
    return {name: texts.get(name, "so") if field["type"] == "string" else 1 for name, field in fields.items()}


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(number, tmp_path, monkeypatch, capsys):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    monkeypatch.chdir(tmp_path)  # for the cache
    with FakeService(model) as service:
        code = SNIPPETS[number].replace("http://localhost:8000/v1", service.url)
        names = {"__name__": "page"}
        exec(compile(code, f"users_and_judges.md, snippet {number + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert bool(service.requests) == (service.url in code) == bool(printed)
    if "talk" in names:
        assert asyncio.run(names["talk"]()).text == "On Friday."


def test_the_table_has_every_option_and_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (?:`(.*?)` )?\|", PAGE, re.MULTILINE))
    assert rows == {
        name: "" if field.is_required() else repr(field.get_default(call_default_factory=True))
        for name, field in ChatSpec.model_fields.items()
    }
