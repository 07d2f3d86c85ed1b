"""Write docs/gpu-sizes.md: the estimates of `--dry-run --plan-for` for models and machines, in tables.

::

    python scripts/gpu_sizes.py docs/gpu-sizes.md    # the tables between the marks of the page are written anew
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trainers.builders.engines import plan_of
from trainers.cluster.memory import Machine, PlanError
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
MACHINES = ("1@16", "1@24", "1@80", "4@80", "8@80", "2x8@80")
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
_PLACE = re.compile(r"<!-- sizes -->\n.*?<!-- end of sizes -->", re.DOTALL)
_GIB = 2**30


def keys_of(machine: str, setting: str) -> tuple[str, ...]:
    """Return the configuration for a machine: a learner rank on each of its GPUs."""
    parsed = Machine.described(machine)
    nodes = parsed.nodes or 1
    ranks = () if parsed.gpus * nodes == 1 else (f"cluster.learner_ranks={parsed.gpus * nodes}",)
    return (*COMMON, *SETTINGS[setting], *((f"cluster.nnodes={nodes}",) if nodes > 1 else ()), *ranks)


def cell(model: Path, machine: str, setting: str) -> str:
    """Return the plan's estimate of GiB on the fullest GPU; ``-`` where that is more than the GPU has."""
    described = Machine.described(machine)
    config = load_config([f"model.path={model}", *keys_of(machine, setting)])[0]
    try:
        plan = plan_of(config, described)
    except PlanError:
        return "-"
    needed = sum(size for _, _, size in plan.memory)
    return f"{needed / _GIB:.0f}" if needed <= (described.gpu_bytes or 0) else "-"


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
    written = f"<!-- sizes -->\n{tables()}<!-- end of sizes -->"
    page.write_text(_PLACE.sub(lambda _: written, text), encoding="utf-8")


if __name__ == "__main__":
    main()
