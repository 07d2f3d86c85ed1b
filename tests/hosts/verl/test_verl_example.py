"""examples/verl, as far as it goes without a GPU: its commands, its configuration and its data, by verl's own code."""

import re
import shlex
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, ToolListWrap, _agent_loop_registry
from verl.trainer.main_ppo import need_critic, need_reference_policy
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

from textenvs.cli import main
from trainers.integrations.verl import TextEnvAgentLoop, textenv_turn_grpo

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "verl"


def test_example(tmp_path, model_folder, tokenizer, server, monkeypatch):
    commands = re.search(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)[1].splitlines()
    *prepare, launch = [shlex.split(line) for line in commands]
    monkeypatch.chdir(tmp_path)
    for words in prepare:
        assert words[0] == "textenvs"
        assert main([{"4096": "12", "256": "4"}.get(word, word) for word in words[1:]]) == 0

    assert launch[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    assert launch[-2:] == ["--config-name", "textenv_grpo"]
    monkeypatch.setenv("PWD", str(ROOT))
    with initialize_config_dir(str(EXAMPLE), version_base=None):
        config = compose("textenv_grpo", overrides=[f"actor_rollout_ref.model.path={model_folder}"])
    OmegaConf.resolve(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    assert not need_critic(config)

    # The rows fit, and are found where the configuration looks.
    for name, size in (("train_files", 12), ("val_files", 4)):
        dataset = RLHFDataset(config.data[name], tokenizer, config.data)
        assert len(dataset) == size
    train, test = (RLHFDataset(config.data[name], tokenizer, config.data) for name in ("train_files", "val_files"))
    questions = [{dataset[i]["raw_prompt"][-1]["content"] for i in range(len(dataset))} for dataset in (train, test)]
    assert not questions[0] & questions[1]

    # verl's worker finds the loop with its options, and the trainer the estimator.
    AgentLoopWorker(config, server)
    loop = hydra.utils.instantiate(
        _agent_loop_registry["textenv"],
        trainer_config=DictConfigWrap(config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap([]),
    )
    assert isinstance(loop, TextEnvAgentLoop)
    assert (loop.max_reply_tokens, loop.attempts) == (512, 2)
    assert get_adv_estimator_fn(config.algorithm.adv_estimator) is textenv_turn_grpo
