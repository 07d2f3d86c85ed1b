"""Environments of GEM, the real package, as text environments."""

import logging
import pickle
import random
import sys

import gem
import gymnasium
import pytest
from gem.utils.constants import TERMINAL_STATE
from gymnasium.utils.env_checker import check_env

import textenvs.integrations.importers.gem as bridge
from textenvs.global_rng import RandomState, contained
from textenvs.integrations.importers.gem import Gem
from textenvs.messages import assistant

GAMES = ("game:GuessTheNumber-v0-easy", "game:Mastermind-v0-random", "game:Minesweeper-v0-easy", "rg:leg_counting")


class Odd(gem.Env):
    """Somebody's own: it ends in every way, and breaks."""

    open = 0

    def __init__(self, unopenable=False, **options):
        super().__init__()
        self.unopenable = unopenable

    def reset(self, seed=None):
        super().reset(seed)
        Odd.open += 1
        if self.unopenable:
            raise OSError("no board")
        return "", {}

    def step(self, action):
        if action == "break":
            raise OSError("broken")
        return f"heard {action!r}", 0.25, action in ("end", "both"), action in ("cut", "both"), {"suffix": "Go on."}

    def close(self):
        Odd.open -= 1


gem.register("test:Odd", Odd)


def direct(game, seed):
    """An episode by GEM alone, with moves in the game's own form: replies, what was said, rewards, how it ended."""
    state, mover = RandomState.seeded(seed), RandomState.seeded(seed + 1)
    with contained(state):
        env = gem.make(game)
        opening, _ = env.reset(seed=seed)
    replies, said, rewards, over = [], [opening.strip()], [], (False, False)
    while not any(over):
        with contained(mover):
            replies.append(env.sample_random_action() if game.startswith("game:") else "\\boxed{4}")
            if random.random() < 0.05:
                replies[-1] = "no move"
        with contained(state):
            observation, reward, *over, _ = env.step(replies[-1])
        said.append(observation.strip())
        rewards.append(float(reward))
    return replies, said, rewards, over


@pytest.mark.parametrize("game", GAMES)
def test_an_episode_is_gems(game):
    lengths = set()
    for index in range(6):
        env = Gem(game)
        replies, said, rewards, over = direct(game, env.tasks[index].extra["seed"])
        conversation, _ = env.reset(seed=0, options={"task_index": index})
        assert conversation[0]["content"].startswith(said[0])
        for number, (reply, heard, reward) in enumerate(zip(replies, said[1:], rewards, strict=True), start=1):
            conversation, earned, terminated, truncated, _ = env.step(reply)
            assert earned == reward
            assert (terminated or truncated) == (number == len(replies))
            if heard == TERMINAL_STATE:
                assert conversation[-1]["content"] == reply  # a word between programs, not for a player
            else:
                assert conversation[-1]["content"].startswith(heard)
        assert (terminated, truncated) == (over[0], over[1] and not over[0])
        lengths.add(len(replies))
    assert len(lengths) > 1 or game.startswith("rg:")


@pytest.mark.parametrize("game", GAMES)
def test_seeds_forks_and_copies(game):
    check_env(Gem(game), skip_render_check=True)
    env = Gem(game)
    env.reset(seed=0)
    first = [env.reset(seed=7)]
    random.seed(1)  # nothing reads the global generators
    assert [env.reset(seed=7)] == first
    outside = random.getstate()
    if game.startswith("rg:"):  # over after one reply
        return
    replies = next(found for found in (direct(game, seed)[0] for seed in range(0, 100, 2)) if len(found) > 3)
    env.reset(seed=0)
    env.step(replies[0])
    assert not env.state.done
    fork, saved, moved = env.fork(), env.snapshot(), pickle.loads(pickle.dumps(env))
    fork.fork().step("another future")
    results = [each.step(replies[1]) for each in (fork, moved, env)]
    env.restore(saved)
    assert results == [env.step(replies[1])] * 3
    assert random.getstate() == outside


def test_all_ways_to_end_and_to_break():
    env = Gem("test:Odd")
    for reply, ends, stop in (
        ("end", (True, False), "done"),
        ("cut", (False, True), "truncated"),
        ("both", (True, False), "done"),
    ):
        conversation, _ = env.reset(seed=0)
        assert conversation == ({"role": "user", "content": ""},)
        conversation, reward, *over, info = env.step("<think>end</think>on")
        assert (conversation[-1]["content"], reward, over) == ("heard 'on'\n\nGo on.", 0.25, [False, False])
        conversation, reward, *over, info = env.step(reply)
        assert (conversation[-1]["content"], tuple(over), info["stop"]) == (f"heard {reply!r}", ends, stop)
        assert not info["failed"]
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("more")
    env.reset(seed=0)
    *_, info = env.step(assistant("break"))
    assert (info["stop"], info["failed"]) == ("tool_failed", True)
    assert "broken" in info["failure"]


def test_making_one_leaves_nothing_open():
    before = Odd.open
    env = Gem("test:Odd")
    assert Odd.open == before
    env.reset(seed=0)
    env.close()
    assert Odd.open == before
    with pytest.raises(ValueError, match="OSError: no board"):
        Gem("test:Odd", options={"unopenable": True})
    assert Odd.open == before


def test_another_seed_is_another_sequence():
    openings = [
        [Gem("rg:leg_counting", seed=seed).reset(seed=0, options={"task_index": index})[0] for index in range(4)]
        for seed in (0, 1)
    ]
    assert all(one != other for one, other in zip(*openings, strict=True))


def test_what_is_refused():
    with pytest.raises(ValueError, match="game:GuessTheNumber-v0 not found"):
        Gem("game:GuessTheNumber-v0")
    with pytest.raises(ValueError, match="cannot be started with options={'min_number': 'x'}"):
        Gem(options={"min_number": "x"})
    with pytest.raises(ValueError, match="as in JSON"):
        Gem(options={"min_number": object()})


def test_importing_gem_leaves_the_logging_alone(monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    for name in [name for name in sys.modules if name.partition(".")[0] == "gem"]:
        monkeypatch.delitem(sys.modules, name)
    level = root.level
    assert bridge._import_gem() is not gem
    assert (root.handlers, root.level) == ([], level)
