"""Options of textenv/textworld that need no package; what plays games is in tests/hosts/others/test_textworld.py."""

import os

import pytest

from textenvs.envs.textworld import TextWorld
from textenvs.envs.textworld.games import DIALS, LEVELS, Positions, dials_of, named


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
    """And those of a file that has changed."""
    path, played = tmp_path / "game.z8", []
    path.write_bytes(b"")

    def after(*moves):
        def play():
            played.append(moves)
            return moves

        assert positions.after(path, moves, play) == moves

    positions = Positions(2)
    for moves in ("a", "b", "a", "c", "a", "b"):
        after(*moves)
    assert played == [("a",), ("b",), ("c",), ("b",)]
    os.utime(path, ns=(0, 10**9))
    after("b")
    assert played[-1] == ("b",)
    assert len(played) == 5
