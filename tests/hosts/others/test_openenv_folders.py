"""The field audit plays an environment of an OpenEnv checkout as its server would."""

import pytest

from benchmarks.field_audit.openenv_folders import registrations

APP = """
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Guess(Action):
    number: int

class Answer(Observation):
    text: str = ""

class Game(Environment):
    def reset(self, seed=None):
        self.seed = seed
        return Answer(text=f"Guess {seed}.")

    def step(self, action):
        if action.number < 0:
            raise ValueError("below 0")
        return Answer(text="Over.", reward=float(action.number == self.seed), done=True)

    @property
    def state(self):
        return State()

app = create_app(Game, Guess, Answer, env_name="guessing_env")
"""


@pytest.fixture
def game(tmp_path):
    folder = tmp_path / "envs" / tmp_path.name / "server"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "app.py").write_text(APP)
    (registration,) = registrations(tmp_path)
    assert registration.name == f"openenv/{tmp_path.name}"
    return registration.begin(7)


@pytest.mark.parametrize("reply", ['{"number": 7}', "7"])
def test_action_is_json_or_value(game, reply):
    assert "Guess 7." in game.opening
    step = game.reply(reply)
    assert (step.reward, step.done) == (1.0, True)


def test_refused_action_continues_the_episode(game):
    step = game.reply("seven")
    assert not step.done
    assert "valid integer" in step.text


def test_exception_of_environment_is_raised(game):
    with pytest.raises(ValueError, match="below 0"):
        game.reply("-1")
