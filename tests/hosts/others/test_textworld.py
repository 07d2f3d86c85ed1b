"""textenv/textworld with the real package: generated games, a folder's, and planned ones as ALFWorld's are."""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

import textenvs
from textenvs.envs.textworld import TextWorld, games
from textenvs.envs.textworld import env as textworld_env
from textenvs.envs.textworld.games import LiveGame, dials_of, game_file, games_in
from textenvs.evaluate.baselines import play_attack
from textenvs.task import Task, TaskError

ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cooking game, that of the page, which all tests share: it takes two seconds to make."""
    return str(tmp_path_factory.mktemp("cache"))


def make(cache, **options):
    return textenvs.make("textenv/textworld", **{"cache": cache, "count": 1, "split": "test", **options})


def drive(env, replies=None, seed=0):
    """Play these replies, or the expert's, to the end; what was seen."""
    seen, remaining = [env.reset(seed=seed, options={"task_index": 0})], iter(replies or ())
    while not env.state.done:
        seen.append(env.step(next(remaining) if replies else env.demonstration(RNG)))
    return seen


def commands_of(env):
    return [message["content"] for message in env.state.messages if message["role"] == "assistant"]


def test_walkthrough_earns_whole_score_turn_by_turn(cache):
    env = make(cache)
    seen = drive(env)
    rewards = [step[1] for step in seen[1:]]
    assert env.state.stop == "solved"
    assert sum(rewards) == pytest.approx(1.0)
    assert sum(reward > 0 for reward in rewards) >= 3  # taken, prepared, eaten; and cooked, where it is raw
    assert all(step[1] == step[-1]["terms"]["score"] for step in seen[1:])
    assert env.conversation_score() == {"score": 1.0}
    assert "$$" not in seen[0][0][0]["content"]
    assert not any("\n\n" in m["content"] or "RESTART" in m["content"] for m in env.state.messages)


def test_copies_continue_alike_from_every_turn(cache):
    env, other = make(cache), make(cache)
    seen = drive(env)
    actions = commands_of(env)
    for turn in range(len(actions)):
        env.reset(seed=0, options={"task_index": 0})
        for action in actions[:turn]:
            env.step(action)
        saved, fork, moved = env.snapshot(), env.fork(), pickle.loads(pickle.dumps(env))
        other.restore(pickle.loads(pickle.dumps(saved)))
        fork.fork().step("look")
        for copy in (fork, moved, other, env):
            assert [copy.step(action) for action in actions[turn:]] == seen[turn + 1 :]
    assert len(pickle.dumps(env)) < 50_000


def test_turn_is_one_command(cache):
    env = make(cache)
    expert = drive(env)
    commands = commands_of(env)
    for joint in (". ", ", ", " then ", " and ", "; "):
        env.reset(seed=0, options={"task_index": 0})
        *_, reward, _, _, info = env.step(joint.join(commands))
        assert (reward, info["metrics"]["invalid"], env.state.moves) == (0.0, 1.0, ())
    # The page's game has two red things and more than one in the fridge. Inform reads nine letters of a word.
    for several in ("take every", "take both", "take everythinx", "take two red", "take 2 from fridge"):
        held, invalid, moves = env.step("inventory")[0][-1], env.state.invalid, env.state.moves
        assert env.step(several)[1] == 0.0, several
        assert (env.state.invalid, env.state.moves) == (invalid + 1, moves), several
        assert env.step("inventory")[0][-1] == held, several
    hostile = ("", "undo", "restart", "save", "restore", "script", "again", "tw-extra-infos score", "print_state", "é")
    for reply in hostile:
        before = env.state.moves
        assert env.step(reply)[1] == 0.0
        assert env.state.moves == before
    # A list's last line alone is a command, and a prompt before it is no part of it.
    env.reset(seed=0, options={"task_index": 0})
    env.step("I could do many things:\n" + "\n".join(f"> {command}" for command in commands[:2]) + "\n")
    assert env.state.moves == (commands[1],)
    assert drive(env, [f"Thinking aloud.\n> {command}." for command in commands])[-1][1:] == expert[-1][1:]


def test_ruined_meal_ends_game_with_what_was_earned(cache):
    env = make(cache)
    drive(env)
    take = next(command for command in commands_of(env) if command.startswith("take "))
    food = take.removeprefix("take ").partition(" from ")[0]
    seen = drive(env, [take, f"cook {food} with oven", f"cook {food} with stove", f"cook {food} with oven"])
    assert env.state.stop == "lost"
    assert env.state.return_so_far == pytest.approx(env.state.share)
    assert 0 < env.state.return_so_far < 1
    assert seen[-1][2]


def test_expert_comes_back_after_detour(cache):
    env = make(cache)
    env.reset(seed=0, options={"task_index": 0})
    for _ in range(3):
        env.step(env.careless_reply(np.random.default_rng(5)))
    while not env.state.done:
        env.step(env.demonstration(RNG))
    assert env.state.stop == "solved"
    assert any(command.startswith("examine cookbook") for command in commands_of(env))


def test_get_is_take(cache):
    """Check that TextWorld tracks it, so the expert continues from there."""
    env, other = make(cache), make(cache)
    drive(env)
    take = next(command_ for command_ in commands_of(env) if command_.startswith("take "))
    short = f"get {take.removeprefix('take ').partition(' from ')[0]}"
    for game, command in ((env, take), (other, short)):
        game.reset(seed=0, options={"task_index": 0})
        game.step(command)
    assert env._now().commands == other._now().commands
    assert other.state.share > 0
    while not other.state.done:
        other.step(other.demonstration(RNG))
    assert other.state.stop == "solved"


def test_siblings_share_what_was_played(cache, monkeypatch):
    """Random walks of an environment that remembers nothing and of two that share: equal, and the second plays none."""
    starts: list[Path] = []

    class Counted(LiveGame):
        def __init__(self, path):
            starts.append(path)
            super().__init__(path)

    monkeypatch.setattr(textworld_env, "LiveGame", Counted)
    for walk in range(2):
        talks = []
        for remembered in (games.Positions(0), shared := games.Positions(), shared):
            monkeypatch.setattr(textworld_env, "_POSITIONS", remembered)
            env, rng, before = make(cache), np.random.default_rng(walk), len(starts)
            env.reset(seed=0, options={"task_index": 0})
            for _ in range(8):
                if env.state.done:
                    break
                fork = env.fork()
                env.step(env.careless_reply(rng))
                assert fork.state.moves == env.state.moves[:-1]
                fork.step("look")  # a sibling that goes another way in between
            talks.append(env.state.messages)
        assert len(starts) == before
        assert talks[0] == talks[1] == talks[2]


def test_replaced_file_is_another_game(cache, tmp_path):
    """An episode in it goes on in the old one, which it runs; what it remembers is not the new game's."""
    files = [game_file(Path(cache), "cooking", dials_of("cooking", "easy", dials), 1) for dials in ({}, {"cut": False})]

    def put(source):
        for suffix in (".json", ".z8"):
            shutil.copy2(source.with_suffix(suffix), tmp_path / "new")
            os.replace(tmp_path / "new", tmp_path / f"game{suffix}")

    put(files[0])
    before, again, after = (TextWorld(games=str(tmp_path)) for _ in range(3))
    before.reset(seed=0)
    walkthrough = before._now().facts.walkthrough
    before.step("look")
    put(files[1])
    before.step("inventory")
    after.reset(seed=0)
    assert after._now().facts.walkthrough != walkthrough
    for file in tmp_path.glob("game.*"):
        file.unlink()
    before.step("look")
    assert before._now().facts.walkthrough == walkthrough
    with pytest.raises(OSError, match="game"):
        again.reset(seed=0)


def test_admissible_commands_are_those_that_do_something(cache):
    env = make(cache, admissible=True)
    conversation, _ = env.reset(seed=0, options={"task_index": 0})
    text, _, listed = conversation[0]["content"].rpartition("\nCommands: ")
    assert text == make(cache).reset(seed=0, options={"task_index": 0})[0][0]["content"]
    for command in listed.split(", "):
        fork = env.fork()
        assert "can't" not in fork.step(command)[0][-1]["content"]


def test_attacks_earn_share_at_most(cache):
    """Check that taking things or reading the recipe earns a part, and talking to the interpreter nothing."""
    part = {"grab", "cook-all", "juggle", "recipe-lines", "menu", "wander"}
    for attack in make(cache).attacks():
        if not attack.rehearse:  # what does would be shown the one game that there is
            (record,) = play_attack(lambda: make(cache), attack, 1)
            assert record.total <= 0.4 * (attack.name in part) + 1e-9, attack.name


def test_seed_is_game_and_splits_differ(cache):
    sets = [make(cache, split=split, seed=seed, count=None).tasks for split in ("train", "test") for seed in (0, 1)]
    seeds = {tasks[index].extra["seed"] for tasks in sets for index in range(50)}
    assert len(seeds) == 200
    row = make(cache).tasks[0].to_row()
    env = make(cache)
    assert env.reset(options={"task": row})[0] == env.reset(options={"task_index": 0})[0]
    for wrong in ({"dials": "{}"}, {"seed": "../x"}):
        bad = {**row, "extra_info": {**row["extra_info"], **wrong}}
        with pytest.raises(TaskError, match=r"extra_info\."):
            env.reset(options={"task": bad})
    with pytest.raises(ValueError, match="has 1 task"):
        env.reset(options={"task_index": 1})


@pytest.mark.slow  # one more game; test_attacks_earn_share_at_most has the same walk in the game that the tests share
def test_random_walk_wins_no_game_of_exploration(cache):
    """Nor do commands that do something, in the commands that there are by default."""
    limits = {game: make(cache, game=game).max_assistant_turns for game in ("cooking", "custom", "coin")}
    assert limits == {"cooking": 50, "custom": 6, "coin": 8}
    assert make(cache, game="coin", max_assistant_turns=None).max_assistant_turns is None
    wander = next(attack for attack in make(cache).attacks() if attack.name == "wander")
    (record,) = play_attack(lambda: make(cache, game="coin"), wander, 1)
    assert record.total == 0.0


@pytest.mark.slow  # a large game; the walkthrough of the one that the tests share is played, too
def test_quest_takes_commands_that_it_says(cache):
    """TextWorld's own game of this seed is won by its last command alone."""
    assert len(LiveGame(game_file(Path(cache), "custom", dials_of("custom", "hard", {}), 6)).position.policy) == 8


def test_game_made_twice_at_once_is_whole(tmp_path, monkeypatch):
    """Two makers that share no lock, as two processes, are in the middle of it at the same time."""
    both = Barrier(2)

    def generate(folder, kind, dials, seed):
        (folder / "game.z8").write_bytes(b"begun")
        both.wait(60)
        for suffix in (".json", ".z8"):
            (folder / f"game{suffix}").write_bytes(b"whole")
        both.wait(60)

    monkeypatch.setattr(games, "_generating", contextlib.nullcontext())
    monkeypatch.setattr(games, "_generate", generate)
    with ThreadPoolExecutor(2) as pool:
        made = set(pool.map(lambda _: game_file(tmp_path, "custom", dials_of("custom", "easy", {}), 3), range(2)))
    (game,) = made
    assert sorted(tmp_path.iterdir()) == [game.with_suffix(".json"), game]
    assert game.read_bytes() == b"whole"


@pytest.mark.slow  # two more games; the one above shows it without
def test_two_processes_make_same_game_at_once(tmp_path):
    """They end with one game, whole, and leave nothing beside it."""
    code = (
        "import sys, pathlib\n"
        "from textenvs.envs.textworld.games import dials_of, game_file\n"
        "game_file(pathlib.Path(sys.argv[1]), 'custom', dials_of('custom', 'easy', {}), 3)\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(100) for process in both] == [0, 0]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".z8"]
    game = LiveGame(game_file(tmp_path, "custom", dials_of("custom", "easy", {}), 3))
    assert len(game.position.facts.walkthrough) == 3
    env = TextWorld(games=str(tmp_path))
    drive(env)
    assert env.state.stop == "solved"
    (tmp_path / "other.z8").write_bytes(b"")
    with pytest.raises(ValueError, match=r"other\.z8 has no \.json beside it"):
        games_in(str(tmp_path))


def test_games_are_started_in_several_threads(cache):
    """TextWorld's parser is one for the process, and keeps where it is."""
    from textworld.logic import GameLogic

    env = make(cache)
    drive(env)  # so that the game is there
    path = game_file(env.tasks.folder, "cooking", env.tasks.dials, env.tasks[0].extra["seed"])
    GameLogic.parse.cache_clear()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            started = list(pool.map(LiveGame, [path] * 4))
    finally:
        sys.setswitchinterval(before)
    assert {game.position.facts.walkthrough for game in started} == {tuple(commands_of(env))}


DOMAIN = """(define (domain d) (:requirements :adl :typing) (:types agent place thing)
 (:predicates (at ?a - agent ?p - place) (in ?o - thing ?p - place) (held ?o - thing))
 (:action go :parameters (?a - agent ?from - place ?to - place)
  :precondition (at ?a ?from) :effect (and (not (at ?a ?from)) (at ?a ?to)))
 (:action take :parameters (?a - agent ?o - thing ?p - place)
  :precondition (and (at ?a ?p) (in ?o ?p)) :effect (and (held ?o) (not (in ?o ?p)))))"""
PROBLEM = """(define (problem p) (:domain d) (:objects me - agent hall kitchen - place
  mug_bar__plus_1 mug_bar__plus_2 - thing)
 (:init (at me hall) (in mug_bar__plus_1 kitchen) (in mug_bar__plus_2 hall)) (:goal (held mug_bar__plus_1)))"""
RULES = {"intro": [{"rhs": "Find the mug."}], "go.feedback": [{"rhs": "You are in the {to.name}."}]}
RULES |= {"take.feedback": [{"rhs": "You have the {o.name}."}]}
GRAMMAR = f'''grammar :: """{json.dumps(RULES)}""";
action go {{ template :: "go to {{to}}"; feedback :: "#go.feedback#"; }}
action take {{ template :: "take {{o}}"; feedback :: "#take.feedback#"; }}
'''


@pytest.mark.slow  # its planner is compiled first (`make planner`)
def test_planned_game_has_planner_as_expert(tmp_path):
    (tmp_path / "one").mkdir()
    data = {"pddl_domain": DOMAIN, "grammar": GRAMMAR, "pddl_problem": PROBLEM, "walkthrough": None, "solvable": True}
    (tmp_path / "one" / "game.tw-pddl").write_text(json.dumps(data))
    env = TextWorld(games=str(tmp_path), admissible=True)
    opening = env.reset(seed=0)[0][0]["content"]
    assert opening.startswith("Find the mug.\nCommands: ")
    assert "mug 1" in opening  # the last of its kind has the number 1
    assert env.step("dance")[0][-1]["content"].startswith("Nothing happens.")
    while not env.state.done:
        env.step(env.demonstration(RNG))
    assert env.state.stop == "solved"
    assert commands_of(env)[-1] == "take mug 2"
    assert isinstance(env.tasks[0], Task)


def test_conversation_on_page(cache):
    page = (ROOT / "docs" / "environments" / "textworld.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("python - <<'END'\n")
    script, _, rest = rest.partition("END\n```\n\n```text\n")
    environ = {**os.environ, "TEXTENVS_CACHE": cache}
    ran = subprocess.run([sys.executable, "-"], input=script, env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == rest.partition("```")[0]
