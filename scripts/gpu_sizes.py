"""Write docs/gpu-sizes.md: the estimates of `--dry-run --plan-for` for models and machines, in tables.

::

    python scripts/gpu_sizes.py docs/gpu-sizes.md    # what stands between the marks of the page is written anew
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from trainers.builders.engines import plan_of
from trainers.cluster.memory import Machine, PlanError
from trainers.cluster.timeline import table
from trainers.command_line import load_config

#: Qwen3's dense models, as their published ``config.json`` has them: width, layers, feed-forward width, heads, tied.
MODELS = {
    "0.6B": (1024, 28, 3072, 16, True),
    "1.7B": (2048, 28, 6144, 16, True),
    "4B": (2560, 36, 9728, 32, True),
    "8B": (4096, 36, 12288, 32, False),
    "14B": (5120, 40, 17408, 40, False),
    "32B": (5120, 64, 25600, 64, False),
}
MACHINES = ("1@16", "1@24", "1@48", "1@80", "1@141", "4@80", "8@80", "2x8@80")
COMMON = (
    "model.device=cuda",
    "model.dtype=bfloat16",
    "model.enable_gradient_checkpointing=true",
    "engine.max_context=4096",
    "actor.max_tokens_per_micro_batch=4096",
    "engine.kv_cache_gib=2",
)
SETTINGS = {
    "all parameters": (),
    "all parameters, offloaded": ("trainer.offload=true",),
    "LoRA": ("model.lora_rank=32",),
}
#: What the page shows a timeline of: a model, a machine, and the keys.
TIMELINE = (
    "4B",
    "4@80",
    ("cluster.learner_ranks=4", "model.device=cuda", "model.dtype=bfloat16", "model.enable_gradient_checkpointing=true")
    + ("engine.name=vllm", "engine.tensor_parallel_size=2", "engine.vllm.sleep_mode=true", "engine.max_context=4096")
    + ("engine.vllm.gpu_memory_utilization=0.6", "actor.max_tokens_per_micro_batch=4096"),
)
_PLACES = {
    name: re.compile(rf"<!-- {name} -->\n.*?<!-- end of {name} -->", re.DOTALL) for name in ("sizes", "timeline")
}
_GIB = 2**30


def keys_of(machine: str, setting: str) -> tuple[str, ...]:
    """Return the configuration for a machine: a learner rank on each of its GPUs."""
    parsed = Machine.described(machine)
    nodes = parsed.nodes or 1
    ranks = () if parsed.gpus * nodes == 1 else (f"cluster.learner_ranks={parsed.gpus * nodes}",)
    return (*COMMON, *SETTINGS[setting], *((f"cluster.nnodes={nodes}",) if nodes > 1 else ()), *ranks)


def cell(model: Path, machine: str, setting: str) -> str:
    """Return the GiB that the plan estimates on the fullest GPU, and when; ``-`` where that is more than it has."""
    described = Machine.described(machine)
    config = load_config([f"model.path={model}", *keys_of(machine, setting)])[0]
    try:
        plan = plan_of(config, described)
    except PlanError:
        return "-"
    peak = max((line.peak for line in plan.timelines), key=lambda moment: moment.total)
    fits = peak.total <= (described.gpu_bytes or 0)
    return f"{peak.total / _GIB:.0f} {peak.name[0]}" if fits else "-"


def tables(models: Mapping[str, tuple[int, int, int, int, bool]] = MODELS) -> str:
    """Return a table for each setting: a row a model, a column a machine."""
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: write_config(Path(temporary) / name, *shape) for name, shape in models.items()}
        for setting, keys in SETTINGS.items():
            lines += [f"**{setting[0].upper()}{setting[1:]}**{''.join(f' (`{key}`)' for key in keys)}", ""]
            lines += [f"| Qwen3 | {' | '.join(MACHINES)} |", "|---|" + "--:|" * len(MACHINES)]
            for name, folder in folders.items():
                lines.append(f"| {name} | {' | '.join(cell(folder, machine, setting) for machine in MACHINES)} |")
            lines.append("")
    return "\n".join(lines)


def timeline() -> str:
    """Return the command of :data:`TIMELINE`, and the lines about memory that it prints."""
    model, machine, keys = TIMELINE
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_config(Path(temporary) / model, *MODELS[model])
        plan = plan_of(load_config([f"model.path={folder}", *keys])[0], Machine.described(machine))
    command = f"python -m trainers.ppo --dry-run --plan-for {machine} model.path=Qwen/Qwen3-{model}"
    words = textwrap.wrap(" ".join([command, *keys]), 110, break_long_words=False, break_on_hyphens=False)
    printed = [line for part in plan.timelines for line in table(part)]
    return "\n".join(["```sh", " \\\n    ".join(words), "```", "", "```", *printed, "```", ""])


def write_config(folder: Path, width: int, layers: int, intermediate: int, heads: int, tied: bool) -> Path:
    """Write a folder with the ``config.json`` of a model, and return it; the plan reads nothing else."""
    folder.mkdir()
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": tied,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def main() -> None:
    """Write the tables of the page that is named."""
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    for name, content in (("timeline", timeline()), ("sizes", tables())):
        written = f"<!-- {name} -->\n{content}<!-- end of {name} -->"
        text = _PLACES[name].sub(lambda _, written=written: written, text)  # type: ignore[misc]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
