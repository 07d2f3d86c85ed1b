"""The bridge to TextArena: same games and rewards, reproducible from seed and moves, isolated."""

import copy
import json
import pickle
import random
import socket

import nltk
import numpy as np
import pytest

from textenvs.data import Task, TaskError
from textenvs.envs.textarena.env import TextArena
from textenvs.envs.textarena.players import opponent_move
from textenvs.envs.textarena.tasks import (
    _CORPORA,
    TWO_PLAYER,
    LiveGame,
    _in_textarena,
    _registered,
    _try_out,
    _with_corpora,
    base_of,
    games,
)
from textenvs.global_rng import RandomState
from textenvs.messages import user

RNG = np.random.default_rng(0)
# The first variant of each game that Python can import everywhere and that needs no corpora.
ONE_OF_EACH = sorted({base_of(game): game for game in reversed(games())}.values())
PLAYABLE = [game for game in ONE_OF_EACH if base_of(game) not in {*_CORPORA, "Klondike"}]
# A second for a start.
SLOW = {"RushHour", "Sokoban"}
# Moves that many games take, and some that none does.
MOVES = (
    ["[up]", "[down]", "[left]", "[right]", "[hit]", "[stand]", "[red]", "[blue]", "[accept]", "[continue]", "[roll]"]
    + ["[hold]", "[1]", "[5]", "[8]", "[0 1]", "[2 3]", "[1 2 3 4]", "[6 5 4 3]", "[A B]", "[A C]", "[B C]", "[check]"]
    + ["[bet]", "[rock]", "[col 3]", "[1->4]", "[reveal 1 1]", "hello", ""]
)


def drive(env, moves, seed=0):
    results = [env.reset(seed=seed)]
    for move in moves:
        if env.state.done:
            break
        results.append(env.step(move))
    return results


def legal(env, rng):
    """Return a random allowed move in a two-player game."""
    return opponent_move(base_of(env.tasks.game), env._peek().game, rng)


# ------------------------------------------------------------------ the games


@pytest.mark.parametrize("game", PLAYABLE)
def test_game_leaves_no_trace(game, capsys):
    random.seed(3)
    np.random.seed(3)
    before = RandomState.current()
    env = TextArena(game)
    observation, info = env.reset(seed=1)
    assert len(observation[0]["content"]) > 100
    assert info["data_source"] == f"textarena/{base_of(game)}"
    first = env.step("no move at all")
    assert (first[4]["terms"]["game"], first[2], first[4]["stop"]) == (0.0, False, None)
    assert first[0][-1]["role"] == "user"
    assert first[4]["metrics"] == {"invalid": 1.0}
    second = env.step("nor this")
    assert (second[2], second[4]["stop"], second[4]["metrics"]) == (True, "invalid_move", {"invalid": 2.0})
    assert first[1] + second[1] == second[4]["terms"]["game"] <= 0.0
    after = RandomState.current()
    assert after.python == before.python
    assert pickle.dumps(after.numpy) == pickle.dumps(before.numpy)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("game", [game for game in PLAYABLE if base_of(game) not in TWO_PLAYER | SLOW])
def test_game_equals_textarena_own(game):
    """The same seed and moves give the same messages and reward in the package itself."""
    import textarena

    rng = random.Random(5)
    env = TextArena(game, forfeit=False)
    moves = [rng.choice(MOVES) for _ in range(12)]
    env.reset(options={"task_index": 3})
    results = [env.step(move) for move in moves if not env.state.done]
    seed = env.state.task.extra["seed"]
    with _in_textarena(RandomState.seeded(seed)):
        reference = textarena.make(f"{game}-raw")
        reference.reset(num_players=1, seed=seed)
        observations, rewards = [], []
        for move in moves[: len(results)]:
            observations.append(reference.get_observation()[1])
            done, _ = reference.step(move)
            rewards.append(reference.close()[0] if done else None)
    assert done == results[-1][2]
    texts = [message["content"] for message in results[-1][0] if message["role"] == "user"]
    for text, messages in zip(texts, observations, strict=False):
        for _, message, kind in messages:
            own = kind == textarena.ObservationType.PLAYER_ACTION or not isinstance(message, str)
            assert own or message.strip() in text
    assert all(result[1] == 0.0 for result in results if not result[2])
    if done and not isinstance(rewards[-1][0], str):
        assert results[-1][1] == float(rewards[-1][0])


def test_swapped_reward_and_reason_are_corrected():
    env = TextArena("Cryptarithm-v0", forfeit=False)
    assert [result[1] for result in drive(env, ["?", "?"])[1:]] == [0.0, 0.0]
    env = TextArena("Countdown-v0", forfeit=False)
    assert 0 < drive(env, ["?", "?"])[-1][1] < 1  # this one pays for having done nothing
    assert drive(TextArena("Countdown-v0"), ["?", "?"])[-1][1] == 0.0


@pytest.mark.parametrize("options", [{"options": {"max_number": 20}}, {"game": "GuessTheNumber-v0", "forfeit": False}])
def test_near_guess_in_lost_game_earns_nothing(options):
    """However the game ends: by an invalid move, or because the guesses are used up."""
    for moves in (["{near}", "?", "?"], ["{far}"] * 10 + ["{near}"]):
        env = TextArena(**options)
        env.reset(seed=0)
        number = int(env.secrets()[0])
        near = number + 1 if number < 20 else number - 1
        far = sorted(set(range(1, 21)) - {number, near})
        rewards = []
        for move in moves:
            text = f"[{near}]" if move == "{near}" else f"[{far.pop()}]" if move == "{far}" else move
            rewards.append(env.step(text)[1])
        assert rewards == [0.0] * len(moves)
        assert env.state.stop in ("lost", "invalid_move")


# ------------------------------------------------------------------ experts


@pytest.mark.parametrize(
    "game",
    [
        "GuessTheNumber-v0",
        "GuessTheNumber-v0-hardcore",
        "Mastermind-v0",
        "Mastermind-v0-hard",
        "TowerOfHanoi-v0",
        "TowerOfHanoi-v0-extreme",
        "FrozenLake-v0",
        "FrozenLake-v0-hardcore",
        "Nim-v0",
        "Nim-v0-large",
    ],
)
def test_experts_win(game):
    env = TextArena(game)
    for seed in range(4 if "Hanoi" not in game else 1):
        env.reset(seed=seed)
        while not env.state.done:
            info = env.step(env.demonstration(RNG))[4]
        assert info["stop"] == "solved"
        assert info["metrics"] == {"invalid": 0.0}
        assert env.conversation_score() == {"success": 1.0}
    if "Hanoi" in game:
        assert info["assistant_turns"] == (7 if game == "TowerOfHanoi-v0" else 127)  # 2^disks - 1, the fewest


def test_tower_expert_solves_from_any_state():
    env = TextArena("TowerOfHanoi-v0", options={"max_turns": 30})
    for wandering in (["[A B]"], ["[A B]", "[A C]", "[B C]"], ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]"]):
        drive(env, wandering)
        while not env.state.done:
            info = env.step(env.demonstration(RNG))[4]
        assert info["stop"] == "solved"


def test_games_without_expert():
    env = TextArena("2048-v0")
    env.reset(seed=0)
    for hook in (env.demonstration, env.careless_reply):
        with pytest.raises(NotImplementedError, match="TextArena's 2048 has no scripted"):
            hook(RNG)
    assert env.secrets() == ()
    env = TextArena("Mastermind-v0-extreme")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="6 of 12 numbers has too many codes"):
        env.demonstration(RNG)


# ------------------------------------------------------------------ two players


@pytest.mark.parametrize("game", sorted(f"{name}-v0" for name in TWO_PLAYER))
@pytest.mark.parametrize("seat", [0, 1])
def test_two_players(game, seat):
    """No side makes an invalid move, every game ends, and a random opponent is sometimes beaten."""
    options = {"winning_score": 40} if game == "PigDice-v0" else None
    env = TextArena(game, opponent="random", seat=seat, options=options)
    rng = np.random.default_rng(seat)
    rewards = set()
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        assert f"Player {seat}" in observation[0]["content"]
        total = 0.0
        while not env.state.done:
            assert env._peek().turn == seat
            _, reward, _, _, info = env.step(legal(env, rng))
            total += reward
        assert info["metrics"] == {"invalid": 0.0}
        assert info["stop"] == {1.0: "solved", 0.0: "draw", -1.0: "lost"}[total]
        rewards.add(total)
    assert {1.0, -1.0} <= rewards or game == "Nim-v0"


def test_messages_show_opponent_moves_only():
    env = TextArena("TicTacToe-v0")
    observation = drive(env, ["I take [4]."])[-1][0]
    text = observation[-1]["content"]
    assert "Player 1: [" in text
    assert "I take" not in text
    assert text.count("Current Board") == 2


# ------------------------------------------------------------------ seed and moves determine the game


@pytest.mark.parametrize("game", ["2048-v0", "Bandit-v0", "Blackjack-v0", "KuhnPoker-v0", "PigDice-v0", "Secretary-v0"])
def test_game_survives_fork_restore_and_pickle(game):
    """These games draw random numbers while they are played."""
    rng = random.Random(1)
    for seed in range(2):
        moves = [
            rng.choice(
                ["[up]", "[left]", "[down]", "[right]", "[red]", "[blue]", "[hit]", "[stand]", "[continue]"] * 2
                + ["[roll]"] * 9
                + ["[hold]", "[check]", "[bet]", "[call]", "?"]
            )
            for _ in range(9)
        ]
        env = TextArena(game)
        whole = drive(env, moves, seed)
        for turn in range(len(whole) - 1):
            random.random()
            drive(env, moves[:turn], seed)
            saved = pickle.loads(pickle.dumps(env.snapshot()))
            other = TextArena(game)
            other.restore(saved)
            fork = env.fork()
            fork.step("[a future that did not happen]")
            for copy_of_env in (env.fork(), other, copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env):
                assert [copy_of_env.step(move) for move in moves[turn : len(whole) - 1]] == whole[turn + 1 :]


def test_forks_do_not_share_a_running_game():
    env = TextArena()
    env.reset(seed=0)
    env.step("[3]")
    fork = env.fork()
    assert env._live is not None
    assert fork._live is None
    assert fork._peek() is not env._peek()
    assert len(pickle.dumps(env)) < 20_000


def test_failed_step_can_be_repeated(monkeypatch):
    env = TextArena("TicTacToe-v0")
    env.reset(seed=0)
    expected = env.fork().step("[4]")

    def fail(self, player):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LiveGame, "new_messages", fail)
        with pytest.raises(KeyboardInterrupt):
            env.step("[4]")
    assert env.step("[4]") == expected


# ------------------------------------------------------------------ faults


def test_unreadable_reply_is_answered_once(monkeypatch):
    env = TextArena()
    env.reset(seed=0)
    secret = env.secrets()[0]
    step = type(env._peek().game).step

    def faulty(game, action):
        if action == "boom":
            game.guessed_numbers = None  # half a move
            raise TypeError
        return step(game, action)

    monkeypatch.setattr(type(env._peek().game), "step", faulty)
    wrong = [f"[{number}]" for number in range(1, 21) if str(number) != secret]
    for turn in range(2):
        observation, reward, *_, info = env.step("boom")
        assert observation[-1] == user("The game could not read that. Make a move as its rules say.")
        assert (reward, info["stop"], info["metrics"]) == (0.0, None, {"invalid": turn + 1.0})
        assert "The target number is" in env.step(wrong[turn])[0][-1]["content"]  # the half move left no trace
    env.step("boom")
    assert env.fork().step(f"[{secret}]")[4]["stop"] == "solved"
    _, reward, terminated, truncated, info = env.step("boom")
    assert (reward, terminated, truncated, info["stop"]) == (-1.0, True, False, "invalid_move")


def test_fault_at_opponent_move_fails_episode(monkeypatch):
    env = TextArena("TicTacToe-v0")
    env.reset(seed=0)
    monkeypatch.setattr("textenvs.envs.textarena.env.opponent_move", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.step("[4]")
    monkeypatch.setattr("textenvs.envs.textarena.env.opponent_move", lambda *args: None)
    _, reward, terminated, truncated, info = env.step("[4]")
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert "TicTacToe-v0, at the opponent's move" in info["failure"]


def test_non_numeric_reward_fails_episode(monkeypatch):
    env = TextArena()
    env.reset(seed=0)
    winning = f"[{env.secrets()[0]}]"
    monkeypatch.setattr(type(env._peek().game), "close", lambda game: ({0: "a lot"}, {0: {}}))
    _, reward, terminated, truncated, info = env.step(winning)
    assert (reward, terminated, truncated, info["stop"]) == (0.0, False, True, "tool_failed")
    assert info["failure"] == "GuessTheNumber-v0, at its end: the reward is 'a lot', and not a number"


# ------------------------------------------------------------------ tasks and options


def test_tasks():
    train, test = TextArena().tasks, TextArena(split="test").tasks
    seeds = {split: {tasks[i].extra["seed"] for i in range(50)} for split, tasks in (("a", train), ("b", test))}
    assert not seeds["a"] & seeds["b"]
    assert train[3] == TextArena().tasks[3]
    assert TextArena(seed=1).tasks[3] != train[3]
    with pytest.raises(IndexError, match="index -1 is negative"):
        train[-1]
    env = TextArena()
    assert env.reset(options={"task_index": 4})[0] == TextArena().reset(options={"task": train[4]})[0]
    with pytest.raises(TaskError, match="extra_info.game is 'GuessTheNumber-v0', not 'Nim-v0'"):
        TextArena("Nim-v0").reset(options={"task": train[4]})
    with pytest.raises(TaskError, match="extra_info.seed must be an integer, not 'x'"):
        env.reset(options={"task": Task("k", "s", (), "?", extra={"game": "GuessTheNumber-v0", "seed": "x"})})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "GuessTheNumbers-v0"}, "no game 'GuessTheNumbers-v0' .* Did you mean 'GuessTheNumber-v0'"),
        ({"game": "GuessTheNumber-v0-train"}, "Did you mean 'GuessTheNumber-v0'"),
        ({"game": "TwentyQuestions-v0"}, "language model behind a service"),
        ({"game": "Taboo-v0"}, "is for several players, .*; there are opponents for ConnectFour"),
        ({"options": {"max_numbers": 3}}, "cannot be started with options=.*max_numbers"),
        ({"options": {"f": print}}, "options must be a mapping as in JSON"),
        ({"seat": 1}, "seat must be 0, in a game for one, not 1"),
        ({"opponent": "random"}, "opponent='random' is for a game for two, and GuessTheNumber-v0 is for one"),
        ({"game": "Nim-v0", "opponent": "perfect"}, "opponent"),
        ({"game": "Nim-v0", "seat": 2}, "seat must be 0 or 1, not 2"),
        ({"game": "Nim-v0", "level": "hard"}, "give either game or level"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        TextArena(**options)


@pytest.fixture
def fresh_caches():
    """Clear the caches of games and of the package before and after the test."""
    caches = (_registered, _try_out, _with_corpora)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("game", ["Wordle-v0", "Hangman-v0", "WordSearch-v0", "WordLadder-v0"])
def test_word_games_without_corpora_are_refused(game, fresh_caches, monkeypatch):
    def offline(*_):
        raise AssertionError("a game went to the network")

    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(socket.socket, "connect", offline)
    with pytest.raises(LookupError, match="python -m nltk.downloader words"):
        TextArena(game)


def test_wordle_with_corpora(tmp_path, fresh_caches, monkeypatch):
    """Ten words replace NLTK's."""
    words = ["apple", "grape", "lemon", "melon", "berry", "house", "table", "chair", "plant", "stone"]
    corpora, tagger = tmp_path / "corpora" / "words", tmp_path / "taggers" / "averaged_perceptron_tagger_eng"
    corpora.mkdir(parents=True)
    tagger.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (corpora / name).write_text("\n".join(words) + "\n")
    for part, content in (("weights", {}), ("tagdict", dict.fromkeys(words, "NN")), ("classes", ["NN"])):
        (tagger / f"averaged_perceptron_tagger_eng.{part}.json").write_text(json.dumps(content))
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    env, other = TextArena("Wordle-v0"), TextArena("Wordle-v0", split="test")
    env.reset(seed=1)
    other.reset(seed=2)
    assert env._peek().game is not other._peek().game
    assert env._peek().game.dictionary is other._peek().game.dictionary
    (secret,) = env.secrets()
    wrong = next(word for word in words if word != secret)
    assert "Feedback" in env.step(f"[{wrong}]")[0][-1]["content"]
    assert len(pickle.dumps(env)) < 50_000
    fork = env.fork()
    assert fork.step(f"[{secret}]") == env.step(f"[{secret}]")
    assert env.state.won
    assert other.state.moves == ()
