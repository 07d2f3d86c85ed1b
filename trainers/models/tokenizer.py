"""The tokenizer of a model folder, as its files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textenvs.bounded_files import read_json_object

#: Names of the class that reads any ``tokenizer.json``, in ``tokenizer_config.json``.
_PLAIN = ("TokenizersBackend", "PreTrainedTokenizerFast")


def read_tokenizer(path: str | Path) -> Any:
    """Return the tokenizer of a folder, or of a name in the cache of the Hub.

    Of some families (``qwen2``), ``AutoTokenizer`` puts the family's way to divide a text into words in the place of
    the folder's own. Where the folder declares no class of a family, what its ``tokenizer.json`` says counts.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if _is_plain(Path(path)):
        return PreTrainedTokenizerFast.from_pretrained(path, trust_remote_code=False)
    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _is_plain(folder: Path) -> bool:
    """Return whether a folder declares that its ``tokenizer.json`` is all that there is."""
    file = folder / "tokenizer_config.json"
    name = read_json_object(file).get("tokenizer_class") if file.is_file() else None
    return name in _PLAIN and (folder / "tokenizer.json").is_file()
