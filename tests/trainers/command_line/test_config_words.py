"""Answers to wrong keys, and the text of help."""

import re

import pytest

from trainers.command_line import load_config
from trainers.command_line.unknown import read_synonyms, unknown_key
from trainers.compat.verl.rules import NOTHING, TABLES
from trainers.config import PPOConfig, SFTConfig
from trainers.config.commands import EvaluateConfig, GenerateConfig
from trainers.config.describe import all_keys, help_text

# --- words of other trainers


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("actor.clip_ratio", "actor.clip_ratio_low and actor.clip_ratio_high"),
        ("actor.learning_rate", "actor.lr"),
        ("critic.learning_rate", "critic.lr"),
        ("learning_rate", "actor.lr"),
        ("learning_rat", "actor.lr"),
        ("--learning-rate", "actor.lr"),
        ("trainer.epochs", "trainer.total_iterations"),
        ("num_train_epochs", "trainer.total_iterations"),
        ("max_steps", "trainer.total_iterations"),
        ("actor.epochs", "actor.ppo_epochs"),
        ("beta", "actor.kl_loss_coef"),
        ("num_generations", "rollout.n"),
        ("max_completion_length", "rollout.max_response_length"),
        ("max_prompt_length", "engine.max_context"),
        ("per_device_train_batch_size", "rollout.groups_per_batch"),
        ("ppo_mini_batch_size", "actor.mini_batches"),
        ("actor.ppo_micro_batch_size_per_gpu", "actor.max_tokens_per_micro_batch"),
        ("rollout.tensor_model_parallel_size", "engine.tensor_parallel_size"),
        ("model.lora_r", "model.lora_rank"),
        ("gae_lambda", "algorithm.lam"),
        ("epsilon_high", "actor.clip_ratio_high"),
        ("output_dir", "trainer.default_local_dir"),
    ],
)
def test_words_of_other_trainers_name_key(word, key):
    answer = unknown_key(word, all_keys(PPOConfig), TABLES[PPOConfig])
    assert re.match(rf"unknown key; here it is {re.escape(key)}( \(|$)", answer)


def test_words_follow_command():
    keys = all_keys(SFTConfig)
    for word, key in {
        "learning_rate": "sft.lr",
        "max_steps": "sft.steps",
        "max_seq_length": "sft.max_context",
    }.items():
        assert unknown_key(word, keys, NOTHING).startswith(f"unknown key; here it is {key}")


def test_words_without_counterpart_say_why():
    assert "every iteration is logged" in unknown_key("logging_steps", all_keys(PPOConfig), TABLES[PPOConfig])


def test_synonyms_are_no_keys_and_name_keys():
    schema_keys = {name for schema in (PPOConfig, SFTConfig, GenerateConfig) for name in all_keys(schema)}
    for word, synonym in read_synonyms().items():
        assert word not in schema_keys
        assert {key for together in synonym.keys for key in together} <= schema_keys
        assert synonym.keys or synonym.remark


def test_short_forms_of_verls_keys_are_answered():
    """A key of verl without its first section is answered, too."""
    keys, table = all_keys(PPOConfig), TABLES[PPOConfig]
    for verl_key in table.rules:
        short = verl_key.removeprefix("actor_rollout_ref.")
        if short != verl_key and not verl_key.endswith("*") and short not in keys and not table.rule(short):
            assert unknown_key(short, keys, table) != "unknown key"


# --- help


def test_help_is_by_section(capsys):
    def helped(*words):
        with pytest.raises(SystemExit) as ended:
            load_config(["--help", *words])
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    keys = all_keys(PPOConfig)
    code, out, _ = helped()
    assert code == 0
    assert all(re.search(rf"^  {re.escape(key.section)} ", out, re.MULTILINE) for key in keys.values() if key.section)
    code, out, _ = helped("actor")
    assert code == 0
    assert set(re.findall(r"^  ([\w.]+) = ", out, re.MULTILINE)) == {key for key in keys if key.startswith("actor.")}
    assert set(re.findall(r"^  ([\w.]+) = ", helped("actor.lr")[1], re.MULTILINE)) == {"actor.lr"}
    assert set(re.findall(r"^  ([\w.]+) = ", helped("--all")[1], re.MULTILINE)) == set(keys)
    code, out, err = helped("actr")
    assert (code, out) == (2, "")
    assert "did you mean actor?" in err


@pytest.mark.parametrize("schema", [PPOConfig, SFTConfig, GenerateConfig, EvaluateConfig])
@pytest.mark.parametrize("topic", [None, "all"])
def test_help_has_100_columns(schema, topic):
    assert max(map(len, help_text(schema, "python -m trainers.generate", topic).splitlines())) <= 100
