"""The Python of docs/adapters/trl.md and docs/trainers-registry.md, with a tiny model in place of the named ones."""

import re
from pathlib import Path

import pytest
import torch
import trl
from trl.chat_template_utils import qwen3_chat_template
from trl_runs import tiny_policy

import trainers
from trainers import registry
from trainers.models import tiny

DOCS = Path(__file__).parents[2] / "docs"


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", [0, 1])
def test_snippet_about_trl_trains(number, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    model, tokenizer = tiny_policy()
    if number:
        tokenizer.chat_template = qwen3_chat_template
    tiny.save(tmp_path / "model", model, tokenizer)
    code = re.sub('"Qwen/[^"]*"', repr(str(tmp_path / "model")), snippets("adapters/trl.md")[number])
    code = code.replace(", 1000", ", 2").replace("max_completion_length=1024", "max_completion_length=48")
    usual = {"use_cpu": True, "bf16": False, "max_steps": 1, "report_to": "none", "save_strategy": "no"}
    made = trl.GRPOConfig

    def config(folder, **kwargs):
        return made(str(tmp_path / folder), disable_tqdm=True, gradient_checkpointing=False, **usual, **kwargs)

    monkeypatch.setattr(trl, "GRPOConfig", config)
    names = {"__name__": "docs"}
    exec(compile(code, f"docs/adapters/trl.md, snippet {number + 1}", "exec"), names)
    assert names["trainer"].state.global_step == 1


def test_trainer_of_page_is_one():
    names = {"__name__": "docs"}
    exec(compile(snippets("trainers-registry.md")[1], "docs/trainers-registry.md", "exec"), names)
    made = names["Mine"](())
    assert isinstance(made, trainers.Trainer)
    assert isinstance(made.fit(), trainers.Result)


def test_page_has_every_name():
    page = (DOCS / "trainers-registry.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(registry.BUILT_IN)
