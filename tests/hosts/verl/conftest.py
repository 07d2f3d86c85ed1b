import datasets
import pytest
import verl_kit
from verl.utils import hf_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return verl_kit.make_model_folder(tmp_path_factory.mktemp("verl") / "model")


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    return hf_tokenizer(str(model_folder))


@pytest.fixture
def server(tokenizer):
    return verl_kit.ScriptedServer(tokenizer)


@pytest.fixture(scope="session")
def config(model_folder):
    return verl_kit.make_config(model_folder)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
