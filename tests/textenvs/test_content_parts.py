"""Contents of parts (texts and images) go through every layer as they are, or are refused in words."""

import asyncio
import json

import pytest
from hypothesis import given
from test_messages import parts

from textenvs import Conversation, Task, TextEnv, TextVectorEnv, ToolEnv, Turn, play, tool, user
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import FunctionPolicy
from textenvs.evaluate.records import Record
from textenvs.evaluate.runner import play as play_record
from textenvs.integrations import EpisodeSpec
from textenvs.integrations.rows import Opening, SpecError
from textenvs.integrations.session import Session
from textenvs.judges.llm import conversation_data
from textenvs.messages import clean_messages, image_part, system, text_of, text_part
from textenvs.threads import Calls
from textenvs.users.llm import leaked

SHOWN = (text_part("What is on"), image_part("https://example.org/a.png"), text_part("this picture?"))
clean_parts = parts.map(lambda content: clean_messages([user(content)])[0]["content"])


class Pictures(TextEnv):
    """Shows a picture, and another after a wrong answer."""

    def opening(self, task):
        return [*task.prompt]

    def respond(self, reply):
        right = text_of(reply) == self.task.ground_truth
        messages = [user([text_part("No."), image_part("data:image/png;base64,AAAA")])]
        return Turn([] if right else messages, float(right), terminated=right, stop="solved" if right else None)


def task(content):
    return Task("a", "pictures", (user(content),), "cat")


def policy(conversation):
    assert all(not isinstance(message["content"], list) for message in conversation)
    return "dog" if len(conversation) == 1 else "cat"


@given(clean_parts)
def test_parts_are_observed_as_they_were_given(content):
    env = Pictures([task(list(content))])
    episode = asyncio.run(play(env, policy, seed=0))
    assert episode.conversation[0]["content"] == content
    assert [message["role"] for message in episode.conversation] == ["user", "assistant", "user", "assistant"]
    space = Conversation()
    assert episode.conversation in space
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([episode.conversation])))) == [
        episode.conversation
    ]
    fork = env.fork()
    assert fork.snapshot().messages == episode.conversation


@given(clean_parts)
def test_task_of_parts_round_trips(content):
    row = json.loads(json.dumps(task(content).to_row()))
    assert Task.from_row(row, key="b") == task(content)


def test_vector_environments_sessions_and_records_keep_them():
    env = Pictures([task(SHOWN)])
    vector = TextVectorEnv.of(env, 2)
    conversations, _ = vector.reset(seed=0)
    assert conversations[1][0]["content"] == SHOWN
    session = Session(Pictures([task(SHOWN)]))
    assert session.start(0)[0]["content"] == SHOWN
    assert session.reply("dog").text == "No."

    calls = Calls(Pictures([task(SHOWN)]))
    record = asyncio.run(play_record(Job(0, 0, 0, 0), calls, FunctionPolicy(policy)))
    assert record.messages[0]["content"] == SHOWN
    assert Record.from_json(record.to_json()) == record


def test_tools_follow_system_prompt_of_parts():
    @tool
    def look() -> str:
        """Look again."""
        return "a cat"

    class Looking(ToolEnv):
        def opening(self, task):
            return [system([text_part("Be"), text_part("brief.")]), *task.prompt]

    conversation, _ = Looking([task(SHOWN)], [look]).reset(seed=0)
    assert conversation[0]["content"].startswith("Be\nbrief.\n\n")
    assert "look" in conversation[0]["content"]


def test_a_prompt_column_takes_texts_and_refuses_images():
    spec = EpisodeSpec("pictures", 0)
    words = Opening(spec, (user([text_part("a"), text_part("b")]),), task(SHOWN))
    assert words.prompt == [{"role": "user", "content": "a\nb"}]
    with pytest.raises(SpecError, match="an image"):
        _ = Opening(spec, (user(SHOWN),), task(SHOWN)).prompt


@given(clean_parts)
def test_judges_read_the_text_parts(content):
    (message,) = conversation_data((user(content),))
    assert message == {"role": "user", "text": text_of(user(content)).strip()}


def test_a_goal_told_in_text_parts_is_leaked():
    goal = "the password of the blue door at the end of the long corridor is swordfish tonight"
    first, second = goal[:40], goal[40:]
    assert leaked((user(goal),), goal) == 1.0
    assert leaked((user([text_part(first), image_part("http://x"), text_part(second)]),), goal) > 0.5
