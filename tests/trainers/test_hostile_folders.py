"""Model folders with files that are not what they must be: refused in words, whatever the file and the fault."""

import json
import os
import shutil

import pytest

from trainers.chat_template import RendererError
from trainers.config.model import ModelSection, is_language_model
from trainers.models import hub, tiny
from trainers.models.policy import PolicyError, load
from trainers.models.source import ModelSource
from trainers.rollout.renderer import Renderer

JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "added_tokens.json")
#: No words for a person who has only the folder.
NO_WORDS = ("substring not found", "RecursionError", "has no attribute", "not subscriptable", "not iterable")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "good"
    tokenizer = tiny.build_tokenizer(["How many? 12 apples."] * 3, 300)
    tiny.save(folder, tiny.build_model(len(tokenizer), hidden=32, layers=1), tokenizer)
    return folder


def refusal(good, tmp_path, name, content):
    """Return the error for a folder with this file; its words must name what to look at."""
    folder = shutil.copytree(good, tmp_path / "model")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((PolicyError, RendererError)) as caught:
        Renderer(load(ModelSection(path=str(folder)), lambda: [], max_context=64, seed=0).tokenizer)
    words = str(caught.value)
    assert 30 < len(words) < 1500
    assert not [bad for bad in NO_WORDS if bad in words], words
    return words


def changed(good, name, **entries):
    value = json.loads((good / name).read_text())
    return json.dumps({key: item for key, item in {**value, **entries}.items() if item is not ...})


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"a":' * 100_000, "[1]", "7", '"x"', "", '{"a": ', b"\xff\xfe\x00"]
)
@pytest.mark.parametrize("name", JSON_FILES)
def test_file_without_json_object_is_named(good, tmp_path, name, content):
    assert name in refusal(good, tmp_path, name, content)


TOKENIZERS = {
    "no added tokens": {"added_tokens": ...},
    "null": {"added_tokens": None},
    "number": {"added_tokens": 7},
    "number in list": {"added_tokens": [7]},
    "no model": {"model": ...},
    "model null": {"model": None},
    "model text": {"model": "BPE"},
}


@pytest.mark.parametrize("entries", TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokenizer_without_its_parts_says_which(good, tmp_path, entries):
    (key,) = entries
    assert f"'{key}'" in refusal(good, tmp_path, "tokenizer.json", changed(good, "tokenizer.json", **entries))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("tokenizer.json", {"decoder": 7}),
        ("tokenizer_config.json", {"model_max_length": "x"}),
        ("tokenizer_config.json", {"eos_token": "a"}),
        ("tokenizer_config.json", {"eos_token": [7]}),
        ("config.json", {"vocab_size": -1}),
        ("config.json", {"hidden_size": "x"}),
        ("config.json", {"num_attention_heads": 0}),
    ],
)
def test_values_of_another_kind_are_refused(good, tmp_path, name, entries):
    refusal(good, tmp_path, name, changed(good, name, **entries))


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "num_attention_heads", "hidden_size"])
def test_shape_of_no_model_is_refused(good, tmp_path, key):
    assert key in refusal(good, tmp_path, "config.json", changed(good, "config.json", **{key: 10**12}))


INDEX = "model.safetensors.index.json"
INDICES = {
    "deep": "[" * 100_000,
    "deep object": '{"weight_map": ' * 100_000,
    "many values": '{"weight_map": {}, "x": [' + "0," * 2_000_001 + "0]}",
    "list": "[1]",
    "null": "null",
    "no map": '{"weight_map": null}',
    "map in a list": '{"weight_map": [{"a": "model.safetensors"}]}',
    "cut": '{"weight_map": {"a": "mod',
    "bytes": b"\xff\xfe\x00",
    "empty": "",
}


@pytest.mark.parametrize("content", INDICES.values(), ids=INDICES)
def test_index_of_weights_beyond_bounds_is_named(good, tmp_path, content):
    assert INDEX in refusal(good, tmp_path, INDEX, content)
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=INDEX):
        ModelSource(tmp_path / "model").check_files()


@pytest.mark.parametrize("name", [INDEX, "config.json", "adapter_config.json"])
def test_a_huge_file_is_not_read_whole(good, tmp_path, name):
    folder = shutil.copytree(good, tmp_path / "model")
    with (folder / name).open("w") as file:
        file.truncate(1 << 40)
    (folder / "adapter_model.safetensors").touch()
    with pytest.raises(ValueError, match=f"{name} .*has more than [0-9]+ MiB"):
        hub.read_adapter(folder) if name.startswith("adapter") else hub.check_model_files(folder)


def test_infinity_in_config_is_no_fault(good, tmp_path):
    folder = shutil.copytree(good, tmp_path / "model")
    text = changed(good, "config.json", time_step_limit=[0.0, float("inf")])
    assert "Infinity" in text
    (folder / "config.json").write_text(text)
    hub.check_model_files(folder)


REPLY = "{{ '' if m.content == 'zqreplyqz' else m.content }}"
TEMPLATES = {
    "hides one reply": "{% for m in messages %}<|im_start|>" + REPLY + "<|im_end|>\n{% endfor %}",
    "replaces": "{% for m in messages %}{{ m.content | replace('zqreplyqz', 'x') }}<|im_end|>{% endfor %}",
    "cuts": "{% for m in messages %}<|im_start|>{{ m.content[:5] }}<|im_end|>{% endfor %}",
    "calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "divides by zero": "{{ 1 / 0 }}",
    "unfinished": "{% for m in messages %}",
    "deep": "{{ " + "(" * 10_000 + "1",
    "nothing": "x",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_templates_that_show_no_replies_are_refused(good, tmp_path, template):
    assert "template" in refusal(good, tmp_path, "chat_template.jinja", template)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_lack_of_memory_is_not_blamed_on_files(tmp_path, error):
    assert hub.reason(tmp_path, error).startswith("it needs more memory than there is")


@pytest.mark.timeout(60)
def test_shape_is_not_read_from_pipe(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert is_language_model(str(tmp_path))
