"""Observations that begin anew, and conversations that are left and continue later."""

import copy
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from toy_envs import Contexts, ToyTasks

from textenvs import TextVectorEnv, Turn, play
from textenvs.evaluate.baselines import play_policy
from textenvs.evaluate.leaderboard import conversation_of
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import Reply
from textenvs.evaluate.records import Record
from textenvs.event_loop import wait_for
from textenvs.external import Answer, ExternalEnv
from textenvs.lookahead import Lookahead
from textenvs.messages import assistant, system, user
from textenvs.records.reader import _of_record
from textenvs.turn import messages_of_turn
from textenvs.viewer.branches import Branch, BranchError


class Switching(RuleBasedStateMachine):
    """An environment that goes on, begins anew, branches and goes back, beside a model with numbered conversations."""

    @staticmethod
    def make():
        return Contexts(max_assistant_turns=None)

    def __init__(self):
        super().__init__()
        self.env = self.make()
        self.current, self.left = list(self.env.reset(seed=3)[0]), []
        self.actions, self.results = [], [(tuple(self.current), self.env.state.contexts)]
        self.saved = None

    def play(self, action):
        """Play an action; return what is said to it, and check what the turn added."""
        state = self.env.state
        size, contexts = len(state.messages), state.contexts
        observation, *_ = self.env.step(action)
        added, context = messages_of_turn(self.env.state, size, contexts)
        assert added[0] == assistant(action)
        self.current += added
        if context is None:
            assert observation[size:] == added
        self.actions.append(action)
        self.results.append((observation, self.env.state.contexts))
        return observation, context

    def leave(self, conversation):
        self.left.append(tuple(self.current))
        self.current = list(conversation)

    def check(self):
        assert self.env.state.messages == tuple(self.current)
        assert self.env.state.contexts == tuple(self.left)

    @rule()
    def go_on(self):
        assert self.play("more")[1] is None
        self.check()

    @rule(answered=st.booleans())
    def begin(self, answered):
        observation, context = self.play("answered" if answered else "anew")
        assert context == observation
        assert (self.current[-1]["role"] == "user") == answered
        self.leave(observation)
        self.check()

    @rule()
    def branch(self):
        first = self.current[0]
        observation, _ = self.play("branch")
        assert observation[0] == first
        self.leave(observation)
        self.check()

    @precondition(lambda self: self.left)
    @rule(data=st.data(), silent=st.booleans())
    def go_back(self, data, silent):
        number = data.draw(st.integers(0, len(self.left) - 1))
        # Nothing new can be in an observation that the policy has already replied to, unless it was answered.
        silent = silent and self.left[number][-1]["role"] == "user"
        observation, _ = self.play(f"{'silent' if silent else 'back'} {number}")
        old = self.left.pop(number)
        assert observation[: len(old)] == old
        assert len(observation) == len(old) + (not silent)
        self.leave(observation)
        self.check()

    @rule()
    def snapshot(self):
        state = self.env.snapshot()
        assert state.contexts is self.env.state.contexts
        self.saved = state, list(self.current), list(self.left), len(self.actions)

    @precondition(lambda self: self.saved is not None)
    @rule(moved=st.booleans())
    def restore(self, moved):
        """A restored episode, in this environment or in another process, plays the same actions alike."""
        state, current, left, count = self.saved
        env = pickle.loads(pickle.dumps(self.env)) if moved else self.env
        env.restore(pickle.loads(pickle.dumps(state)) if moved else state)
        for action, (observation, contexts) in zip(self.actions[count:], self.results[count + 1 :], strict=True):
            assert (env.step(action)[0], env.state.contexts) == (observation, contexts)
        env.restore(state)
        self.env, self.current, self.left = env, list(current), list(left)
        del self.actions[count:], self.results[count + 1 :]
        self.check()

    @rule()
    def fork(self):
        fork = self.env.fork()
        fork.step("anew")
        self.check()

    def teardown(self):
        again = self.make()
        assert (again.reset(seed=3)[0], again.state.contexts) == self.results[0]
        for action, result in zip(self.actions, self.results[1:], strict=True):
            assert (again.step(action)[0], again.state.contexts) == result


class Elsewhere(ExternalEnv):
    """The same episodes, as ones that run elsewhere: a copy plays the replies again."""

    def begin(self, task):
        return Running(task)


class Running:
    def __init__(self, task):
        self.env = Contexts(max_assistant_turns=None)
        self.opening, _ = self.env.reset(seed=3, options={"task": task})

    def reply(self, message):
        size, contexts = len(self.env.state.messages), self.env.state.contexts
        *_, reward, terminated, _, info = self.env.step(message)
        added, context = messages_of_turn(self.env.state, size, contexts)
        return Answer(messages=added[1:], context=context, reward=reward, terminated=terminated, stop=info["stop"])

    def close(self):
        self.env.close()


class SwitchingElsewhere(Switching):
    @staticmethod
    def make():
        return Elsewhere(ToyTasks())


TestSwitching = Switching.TestCase
TestSwitching.settings = settings(max_examples=30, stateful_step_count=15)
TestSwitchingElsewhere = SwitchingElsewhere.TestCase
TestSwitchingElsewhere.settings = settings(max_examples=15, stateful_step_count=12)


def test_replay_compares_contexts():
    env = Elsewhere(ToyTasks())
    env.reset(seed=0)
    env.step("answered")
    env.step("more")
    saved = env.snapshot()
    saved.digests = (*saved.digests[:1], saved.digests[2], saved.digests[2])
    other = Elsewhere(ToyTasks())
    other.restore(saved)
    *_, info = other.step("more")
    assert "it said something else (turn 1)" in info["failure"]


def test_cut_turn_has_no_context():
    with pytest.raises(ValueError, match="no next observation"):
        Answer(cut="max_turns", context=[user("x")])


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"context": []}, "context has no message"),
        ({"context": [user("x")], "terminated": True, "stop": "solved"}, "no next observation"),
        ({"context": [{"role": "user"}]}, "Turn: context: message 0"),
    ],
)
def test_bad_context_is_refused_in_words(turn, words):
    with pytest.raises(ValueError, match=words):
        Turn(**turn)


def test_context_is_clean_and_copied():
    messages = [system("A \ud800."), user("B.")]
    turn = Turn(context=messages)
    messages[1]["content"] = "changed"
    assert turn.context == (system("A \ufffd."), user("B."))


class Anew(Contexts):
    """Begin anew on every turn."""

    def respond(self, reply):
        return Turn(context=[user("Anew.")])


def test_system_prompt_stands_before_contexts():
    env = Anew(system_prompt="Be brief.")
    env.reset(seed=0)
    assert env.step("x")[0] == (system("Be brief."), user("Anew."))


def test_extension_given_as_context_leaves_nothing():
    class Whole(Contexts):
        def respond(self, reply):
            return Turn([user("Well.")], context=(*self.state.messages, user("Well."), user("And?")))

    env = Whole()
    opening, _ = env.reset(seed=0)
    observation, *_ = env.step("x")
    assert observation == (*opening, assistant("x"), user("Well."), user("And?"))
    assert env.state.contexts == ()


@pytest.mark.parametrize(
    ("actions", "turns"), [(["anew"] * 3, 0), (["more"], 1), (["answered"], 1), (["anew", "back 0"], 1)]
)
def test_openings_of_contexts_count_no_user_turn(actions, turns):
    env = Contexts(max_assistant_turns=None)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    assert env.state.user_turns == turns


def test_spent_user_turns_leave_no_context():
    env = Contexts(max_user_turns=1, max_assistant_turns=None)
    opening, _ = env.reset(seed=0)
    env.step("more")
    observation, _, _, truncated, info = env.step("answered")
    assert (truncated, info["stop"], env.state.contexts) == (True, "max_user_turns", ())
    assert observation[-1] == assistant("answered")
    assert observation[: len(opening)] == opening


def test_last_observation_may_be_another_context():
    env = Contexts(max_assistant_turns=1)
    env.reset(seed=0)
    observation, *_, truncated, info = env.step("anew")
    assert (truncated, info["stop"], len(observation)) == (True, "max_assistant_turns", 1)


def test_rendering_marks_contexts(capsys):
    env = Contexts(render_mode="human")
    env.reset(seed=0)
    for action in ("answered", "back 0"):
        env.step(action)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("[")] == [
        "[a context begins]",
        "[a context of 4 messages continues]",
    ]
    assert lines.count("assistant: answered") == lines.count("assistant: back 0") == 1
    env.render_mode = "ansi"
    assert env.render().count("[context that was left]") == env.render().count("[current context]") == 1
    plain = Contexts(render_mode="ansi")
    plain.reset(seed=0)
    assert "[" not in plain.render()


SCRIPT = ("more", "anew", "branch", "back 0", "end")


def test_vector_environment_gives_the_same_observations():
    vector, single = TextVectorEnv([Contexts(), Contexts()]), Contexts()
    assert vector.reset(seed=[5, 6])[0][0] == single.reset(seed=5)[0]
    for action in SCRIPT:
        assert vector.step([action, "more"])[0][0] == single.step(action)[0]
        assert vector.envs[0].state.contexts == single.state.contexts
    vector.close()


def test_lookahead_refuses_several_contexts():
    env, lookahead = Contexts(), Lookahead(lambda conversation: "anew", samples=1)
    env.reset(seed=0)
    env.step("more")
    with pytest.raises(ValueError, match="one conversation, and this episode has left 2"):
        wait_for(lookahead(env))
    env.step("anew")
    with pytest.raises(ValueError, match="has left 1 of them"):
        lookahead(env)


def test_evaluation_records_all_contexts():
    class Policy:
        def start(self, env, seed):
            actions = iter(SCRIPT)

            async def reply(conversation, tools):
                return Reply(next(actions))

            return reply

    (record,) = play_policy(env := Contexts(), Policy(), [Job(0, 0, 3, 1)])
    assert (record.messages, record.contexts) == (env.state.messages, env.state.contexts)
    assert len(record.contexts) == 2
    assert Record.from_json(record.to_json()) == record
    assert len(conversation_of(record)) == sum(map(len, record.contexts)) + len(record.messages)
    assert "contexts" not in replace(record, contexts=()).to_json()
    with pytest.raises(BranchError, match="several contexts"):
        Branch(_of_record(0, record), 1, Contexts())


class Numbered:
    """A policy whose replies have their numbers as reasoning; it goes back only to what was left."""

    def __init__(self, actions):
        self.actions = actions

    def start(self, env, seed):
        numbers = iter(range(len(self.actions) + 1))

        async def reply(conversation, tools):
            number = next(numbers)
            action = self.actions[number] if number < len(self.actions) else "end"
            if isinstance(action, int):
                left = env.state.contexts
                action = f"back {action % len(left)}" if left else "anew"
            return Reply({**assistant(action), "reasoning_content": str(number)})

        return reply


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["more", "anew", "answered", "branch"]) | st.integers(0, 5), max_size=10))
def test_record_has_the_place_of_each_reply(actions):
    (record,) = play_policy(Contexts(), Numbered(actions), [Job(0, 0, 3, 1)])
    conversations = (*record.contexts, record.messages)
    replies = [conversations[number][place] for number, place in record.reply_places]
    numbers = [int(reply["reasoning_content"]) for reply in replies]
    assert numbers == (list(range(record.assistant_turns)) if record.contexts else [])
    assert Record.from_json(record.to_json()) == record


def test_played_episode_has_all_contexts():
    actions = iter(["anew", "branch", "back 0", "end"])
    episode = wait_for(play(Contexts(ToyTasks(3)), lambda conversation: next(actions), seed=1))
    replies = [m["content"] for context in (*episode.contexts, episode.conversation) for m in context]
    assert {"anew", "branch", "back 0", "end"} <= set(replies)
    assert len(episode.contexts) == 2
    kept = copy.deepcopy(episode.contexts)
    episode.contexts[0][0]["content"] = "changed"
    assert episode.contexts != kept
