"""A folder with the files that verl's commands name."""

import pytest

from textenvs.data.files import write_parquet
from textenvs.data.word_problems import GeneratedMath
from trainers.models import tiny

#: The files that the commands name, as far as they are read: the classes of tools and interactions, a Hydra base.
FILES = {
    "score.py": "def compute_score(**row): return 1.0\n",
    "weather.yaml": "interaction:\n- class_name: my.WeatherInteraction\n",
    "config/megatron.yaml": "defaults: [ppo_megatron_trainer, _self_]\n",
    "interaction.yaml": "interaction:\n- {class_name: gsm8k_interaction.Gsm8kInteraction, config: {}}\n",
    "tools/gsm8k_tool_config.yaml": "tools:\n- {class_name: verl.tools.gsm8k_tool.Gsm8kTool, config: {type: native}}\n",
    "tools/search_tool_config.yaml": "tools:\n- {class_name: verl.tools.search_tool.SearchTool}\n",
    "tools/sandbox_fusion_tool_config.yaml": "tools:\n- {class_name: retool.CustomSandboxFusionTool}\n",
    "adapter/adapter_config.json": '{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}',
    "adapter/adapter_model.safetensors": "",
    **{
        f"config/{name}.yaml": "hydra: {searchpath: ['file://verl/trainer/config']}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {max_prompt_length: 1024, max_response_length: 1024, train_batch_size: 256}\n"
        "actor_rollout_ref: {rollout: {name: sglang, multi_turn: {enable: true, max_assistant_turns: 5}}}\n"
        for name in (
            *("gsm8k_multiturn_grpo", "gsm8k_multiturn_grpo_server", "gsm8k_multiturn_grpo_w_interaction"),
            "search_multiturn_grpo",
        )
    },
}


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verl")
    tokenizer = tiny.build_tokenizer(["a b"])
    tiny.save(folder / "model", tiny.build_model(len(tokenizer), hidden=16, layers=1, heads=2, kv_heads=1), tokenizer)
    for name, count in (("train", 600), ("test", 20)):
        write_parquet(GeneratedMath("easy", seed=0, split=name), folder / f"{name}.parquet", count=count)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def inside(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    return workplace
