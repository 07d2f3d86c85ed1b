"""Options of textenv/textworld that need no package; what plays games is in tests/hosts/others/test_textworld.py."""

import os

import pytest

from textenvs.envs.textworld import TextWorld
from textenvs.envs.textworld.games import DIALS, LEVELS, GameFile, Positions, dials_of, named


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "chess"}, "game should be 'cooking', 'custom' or 'coin'"),
        ({"dials": {"recipes": 2}}, "cooking games have no 'recipes'; there are recipe, take"),
        ({"dials": {"go": 2}}, r"go must be one of \[1, 6, 9, 12\], not 2"),
        ({"dials": {"recipe": True}}, "recipe must be an integer from 1 to 5, not True"),
        ({"dials": {"take": 3}}, "take=3 of a recipe with 1 ingredients"),
        ({"games": "/nowhere"}, "games='/nowhere' is not a folder"),
        ({"games": "/nowhere", "level": "easy", "seed": 0}, "leave out level, seed"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        TextWorld(**options)


def test_folders_without_playable_games_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no game of TextWorld"):
        TextWorld(games=str(tmp_path))
    (tmp_path / "a.ulx").touch()
    with pytest.raises(ValueError, match=r"does not play \.ulx files any more"):
        TextWorld(games=str(tmp_path))


def test_levels_are_valid_and_uniquely_named():
    names = [named(kind, dials_of(kind, level, {})) for kind in LEVELS for level in LEVELS[kind]]
    assert names[0] == "cooking-recipe1-take1-go1-cook-cut"
    assert len(set(names)) == 9
    for kind in LEVELS:
        assert list(dials_of(kind, "hard", {})) == list(DIALS[kind])


def test_least_recently_used_positions_are_dropped(tmp_path):
    path = tmp_path / "game.z8"
    path.write_bytes(b"")
    file, positions = GameFile.of(path), Positions(2)
    for moves in ("a", "b", "a", "c"):
        if positions.get(file, (moves,)) is None:
            positions.keep(file, (moves,), moves)
    assert [positions.get(file, (moves,)) for moves in "abc"] == ["a", None, "c"]


def test_other_file_of_same_name_is_told(tmp_path):
    path, beside = tmp_path / "game.z8", tmp_path / "game.json"
    files = []
    for part, text in ((path, b"1"), (beside, b"1"), (beside, b"12"), (path, b"2")):
        new = tmp_path / "new"
        new.write_bytes(text)
        os.utime(new, ns=(0, 0))  # as copies that keep the time
        new.replace(part)
        files.append(GameFile.of(path))
    assert len(set(files)) == 4
    assert GameFile.of(path) == files[-1]
