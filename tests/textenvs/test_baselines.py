"""Episodes of scripts and attacks: which tasks they play, and what stops them."""

import dataclasses

import pytest

import textenvs
from textenvs.attack import always
from textenvs.evaluate.baselines import has_script, play_attack, play_script, same_tasks, split_tasks
from textenvs.evaluate.runner import Stopped
from textenvs.messages import user


def test_the_same_seed_gives_the_same_records():
    def once(seed):
        return play_script(lambda: textenvs.make("textenv/gsm8k-interact"), "careless", 5, seed=seed)

    assert once(3) == once(3)
    assert once(3) != once(4)


def test_episodes_limited_to_tasks_and_scripts():
    class Bare(textenvs.TextEnv):
        def __init__(self):
            super().__init__(textenvs.make("textenv/gsm8k").tasks, max_assistant_turns=1)

        def respond(self, reply):
            return textenvs.Turn(terminated=True, stop="heard", reward=0.0)

    for script in ("expert", "careless"):
        assert not has_script(Bare(), script)
        with pytest.raises(Stopped, match="NotImplementedError"):
            play_script(Bare, script)
    assert len(play_script(Bare, "random", 7)) == 7


@pytest.mark.parametrize(
    ("episodes", "rehearsals", "played"), [(10, 4, 6), (10, 300, 5), (6, 6, 5), (3, 2, 3), (1, 1, 1)]
)
def test_rehearsals_and_played_tasks_differ(episodes, rehearsals, played):
    class Ten(textenvs.TextEnv):
        def __init__(self):
            tasks = [textenvs.Task(str(index), "ten", (user("Say it."),), ground_truth=index) for index in range(10)]
            super().__init__(tasks, max_assistant_turns=1)

        def respond(self, reply):  # tasks differ in what they pay
            return textenvs.Turn(terminated=True, stop="heard", reward=float(self.state.task.ground_truth))

        def demonstration(self, rng):
            return "it"

    indices, rehearsed = split_tasks(Ten(), episodes, rehearsals, seed=3)
    assert len(indices) == played
    assert not set(indices) & set(rehearsed)
    attack = dataclasses.replace(always("say", "says it", "it"), rehearse=rehearsals)
    expert, attacked = play_script(Ten, "expert", episodes, seed=3), play_attack(Ten, attack, episodes, seed=3)
    compared = same_tasks(expert, attacked)
    assert [record.task_index for record in compared] == indices
    assert [record.total for record in compared] == [record.total for record in attacked]
    assert [record.seed for record in compared] == [record.seed for record in attacked]
