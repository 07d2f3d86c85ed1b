"""A data folder from elsewhere: each file that is not what it must be is an error that names it."""

import shutil
from pathlib import Path

import pytest

from textenvs.bounded_files import UnreadableFile
from textenvs.envs.tau2.files import Folder

AIRLINE = Path(__file__).parents[3] / "data" / "tau2_airline" / "tau2" / "domains" / "airline"
DAMAGED = ["", '{"a":', "null", "5", '"x"', "NaN", "[1, 2]", "[[1]]", '{"base": 5}', "[" * 5000, '{"a":' * 3000]


def read_all(folder):
    return [list(folder.tasks("base")), folder.text("policy.md"), folder.tables]


@pytest.mark.parametrize("name", ["tasks.json", "split_tasks.json", "db.json"])
@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_file_is_named(tmp_path, name, content):
    shutil.copytree(AIRLINE, tmp_path / "airline")
    folder = Folder(str(tmp_path / "airline"), "airline")
    (tmp_path / "airline" / name).write_text(content, encoding="utf-8")
    with pytest.raises(UnreadableFile, match=name):
        read_all(folder)


def test_whole_folder_is_read():
    assert all(read_all(Folder(str(AIRLINE), "airline")))
