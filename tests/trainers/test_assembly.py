"""From a configuration to the parts of a run: the choices that the configuration leaves open."""

import asyncio
import subprocess
import sys

import pytest

from trainers.assembly import SetupError, engine_of, threads_for
from trainers.config import resolve
from trainers.policy import Policy
from trainers.rollout.renderer import Renderer
from trainers.tiny import build_model, build_tokenizer

SMALL, LARGE = {"hidden": 32, "layers": 1}, {"hidden": 768, "layers": 2}


def policy(**shape: int) -> Policy:
    tokenizer = build_tokenizer(["What is 3 + 4?"], vocab_size=300)
    return Policy(build_model(len(tokenizer), **shape), tokenizer)


@pytest.mark.parametrize(
    ("shape", "wanted", "threads"), [(SMALL, None, 1), (LARGE, None, None), (LARGE, 3, 3), (SMALL, 2, 2)]
)
def test_a_small_model_gets_one_thread_unless_told_otherwise(shape, wanted, threads):
    assert threads_for(policy(**shape), wanted) == threads


def test_a_run_of_a_tiny_model_uses_one_thread(tmp_path):
    program = (
        "import sys, torch; from trainers.sft import main; torch.set_num_threads(2);"
        "code = main(sys.argv[1:]); print('threads', torch.get_num_threads()); sys.exit(code)"
    )
    options = ("sft.steps=1", "sft.demonstrations=4", "trainer.logger=jsonl", f"trainer.default_local_dir={tmp_path}")
    ended = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "threads 1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("engine.vllm.python=/nowhere/python",), "cannot start /nowhere/python"),
        (("engine.vllm.args.quantization=fp8",), r"engine\.vllm\.args\.quantization is decided"),
        (("engine.max_context=2048", "actor.max_tokens_per_micro_batch=4096"), "max_context must be from 2 to"),
    ],
)
def test_an_engine_that_cannot_be_had_says_why(options, said):
    config, _ = resolve(["engine.name=vllm", *options])
    small = policy(**SMALL)
    with pytest.raises(SetupError, match=said):
        asyncio.run(engine_of(config, small, Renderer(small.tokenizer)))
