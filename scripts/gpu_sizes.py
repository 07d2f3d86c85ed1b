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
from trainers.config import PPOConfig

#: Qwen2.5's models, as their published ``config.json`` has them: width, layers, feed-forward width, heads, key and
#: value heads, vocabulary, tied.
MODELS = {
    "0.5B": (896, 24, 4864, 14, 2, 151_936, True),
    "1.5B": (1536, 28, 8960, 12, 2, 151_936, True),
    "3B": (2048, 36, 11_008, 16, 2, 151_936, True),
    "7B": (3584, 28, 18_944, 28, 4, 152_064, False),
    "14B": (5120, 48, 13_824, 40, 8, 152_064, False),
    "32B": (5120, 64, 27_648, 40, 8, 152_064, False),
}
GPUS = (1, 2, 4, 8)
GIBS = (24, 48, 80, 141)
COMMON = (
    "model.device=cuda",
    "model.dtype=bfloat16",
    "model.enable_gradient_checkpointing=true",
    "engine.max_context=4096",
    "actor.max_tokens_per_micro_batch=4096",
)
EMBEDDED = ("engine.kv_cache_gib=2",)
SERVED = ("engine.name=vllm", "engine.vllm.sleep_mode=true", "engine.vllm.gpu_memory_utilization=0.5")
SETTINGS = {
    "all parameters": EMBEDDED,
    "all parameters, offloaded": (*EMBEDDED, "trainer.offload=true"),
    "LoRA": (*EMBEDDED, "model.lora_rank=32"),
    "all parameters, vLLM that sleeps": SERVED,
}
_SHOWN = {"rolling out": "R", "learning": "L", "updating": "U", "waking": "R"}
_PLACE = re.compile(r"<!-- sizes -->\n.*?<!-- end of sizes -->", re.DOTALL)
_GIB = 2**30


def keys_of(gpus: int, setting: str) -> tuple[str, ...]:
    """Return the configuration for a machine: a learner rank on each of its GPUs, and servers across two of them."""
    across = ("engine.tensor_parallel_size=2",) if setting.endswith("sleeps") and gpus > 1 else ()
    return (*COMMON, *SETTINGS[setting], *across, *((f"cluster.learner_ranks={gpus}",) if gpus > 1 else ()))


def cell(model: Path, gpus: int, setting: str) -> str:
    """Return the smallest GPU on which a run fits, and the estimated GiB of the fullest moment there; ``-`` for none.

    ``24: 14 L`` is 14 GiB of 24, while learning.
    """
    config: PPOConfig = load_config([f"model.path={model}", *keys_of(gpus, setting)])[0]
    for gib in GIBS:
        try:
            (line,) = plan_of(config, Machine.described(f"{gpus}@{gib}")).timelines
        except PlanError:
            continue
        peak = line.peak
        if peak.total <= gib * _GIB:
            return f"{gib}: {peak.total / _GIB:.0f} {_SHOWN[peak.name]}"
    return "-"


def tables(models: Mapping[str, tuple[int, int, int, int, int, int, bool]] = MODELS) -> str:
    """Return a table for each setting: a row a model, a column a number of GPUs."""
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = {name: write_config(Path(temporary) / name, *shape) for name, shape in models.items()}
        for setting, keys in SETTINGS.items():
            lines += [f"**{setting[0].upper()}{setting[1:]}** ({', '.join(f'`{key}`' for key in keys)})", ""]
            lines += [f"| Qwen2.5 | {' | '.join(f'{gpus} GPU' + 's' * (gpus > 1) for gpus in GPUS)} |"]
            lines += ["|---|" + "--:|" * len(GPUS)]
            for name, folder in folders.items():
                lines.append(f"| {name} | {' | '.join(cell(folder, gpus, setting) for gpus in GPUS)} |")
            lines.append("")
    return "\n".join(lines)


def write_config(
    folder: Path, width: int, layers: int, intermediate: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> Path:
    """Write a folder with the ``config.json`` of a model, and return it; the plan reads nothing else."""
    folder.mkdir()
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 32_768,
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
