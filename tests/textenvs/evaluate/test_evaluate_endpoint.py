"""A model behind a service as a policy: what is sent, what is counted, and which errors end what."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from evaluate_envs import Say

pytest.importorskip("openai", reason="needs the extra 'chat'")
sys.path.append(str(Path(__file__).resolve().parents[1] / "chat"))

from fake_service import FakeService, Reply, garbage, status  # noqa: E402

from textenvs.chat import ChatSpec  # noqa: E402
from textenvs.evaluate.plan import Job, jobs  # noqa: E402
from textenvs.evaluate.policies import EndpointPolicy  # noqa: E402
from textenvs.evaluate.runner import Stopped, run  # noqa: E402


def spec(service, **options):
    return ChatSpec.of("tiny", base_url=service.url, **options)


def played(planned, make_env, spec, *, request_seed=True, **options):
    records = []

    async def main():
        policy = EndpointPolicy(spec, request_seed=request_seed)
        try:
            await run(planned, make_env, policy, on_record=records.append, **options)
        finally:
            await policy.aclose()

    asyncio.run(main())
    return sorted(records, key=lambda record: record.place)


def number(request):
    """Return what the first message asks for: "Say 3."."""
    return request["messages"][0]["content"][4:-1]


def test_each_turn_sends_whole_conversation():
    job = Job(0, 0, 3, 50)
    with FakeService() as service:
        service.script("no", Reply("3", finish_reason="length", usage={"prompt_tokens": 20, "completion_tokens": 7}))
        price = {"input": 1.0, "output": 2.0}
        (record,) = played([job], Say, spec(service, temperature=0.5, max_tokens=9, extra={"top_p": 0.5}, price=price))
        first, second = service.requests
    assert first["messages"] == list(record.messages[:2])
    assert second["messages"] == list(record.messages[:4])
    assert (first["temperature"], first["max_completion_tokens"], first["top_p"]) == (0.5, 9, 0.5)
    assert first["seed"] != second["seed"]
    assert "tools" not in first
    assert record.success
    assert (record.prompt_tokens, record.completion_tokens, record.cut_replies) == (30, 12, 1)
    assert record.cost == pytest.approx((30 * 1 + 12 * 2) / 1e6)


def test_episodes_of_one_task_differ():
    """Neither joined nor cached, although the first request may be the same; and their seeds differ."""
    planned = list(jobs([1, 2], 3, 0))
    for request_seed in (True, False):
        with FakeService(lambda request: number(request)) as service:
            records = played(planned, Say, spec(service), request_seed=request_seed)
        assert all(record.success for record in records)
        assert len(service.requests) == len(planned)
        seeds = [request.get("seed") for request in service.requests]
        assert seeds == [None] * 6 if not request_seed else len(set(seeds)) == 6


def test_same_evaluation_sends_same_requests():
    def sent():
        with FakeService(lambda request: number(request)) as service:
            played(jobs([1, 2], 2, 7), Say, spec(service))
        return sorted(map(repr, service.requests))

    assert sent() == sent()


def test_dead_service_stops_evaluation_with_cause():
    with FakeService() as service:
        closed_spec = spec(service, max_retries=1)
    with pytest.raises(Stopped, match=r"3 episodes in a row failed; .*the connection failed"):
        played(jobs(range(6), 1, 0), Say, closed_spec, max_failures=3)


def test_conversation_beyond_context_is_truncated():
    def answer(request):
        if len(request["messages"]) > 2:
            return status(400, "This model's maximum context length is 512 tokens. However, you requested 600 tokens")
        return "no"

    with FakeService(answer) as service:
        (record,) = played([Job(0, 0, 1, 0)], Say, spec(service))
        assert (record.stop, record.failed, record.truncated, record.turn_rewards) == (
            "max_context",
            False,
            True,
            (0.0,),
        )
        service.answer = answer({"messages": [1, 2, 3]})
        (record,) = played([Job(0, 0, 1, 0)], Say, spec(service))
        assert (record.stop, record.failed) == ("policy_failed", True)
        assert "max_tokens (1024) must fit into the model's context" in record.failure


def test_refusals_with_unknown_wording_mean_max_context():
    words = "The input token count (12) exceeds the maximum number of tokens allowed (10)."
    with FakeService(lambda request: status(400, words) if len(request["messages"]) > 2 else "no") as service:
        records = played(jobs([1, 2], 1, 0), Say, spec(service))
    assert [(record.stop, record.failed) for record in records] == [("max_context", False)] * 2


def test_replies_cut_in_reasoning_count():
    cut = garbage(b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}')
    with FakeService() as service:
        service.answer = lambda request: cut if len(service.requests) % 2 else number(request)
        records = played(jobs(range(6), 1, 0), Say, spec(service), concurrency=1)
    assert [record.failure for record in records] == [None] * 6
    assert sum(record.cut_replies for record in records) == len(service.requests) // 2 > 0
    assert {record.success for record in records} == {True}


def thinker(request):
    """It calls a tool, and then wants its reasoning back with the call."""
    calls = [message for message in request["messages"] if "tool_calls" in message]
    if any(message.get("reasoning_content") != "I compute." for message in calls):
        return status(400, "Missing `reasoning_content` field in the assistant message at message index 2")
    message = {"content": "The answer is 4.", "reasoning_content": "It is done."}
    if request["messages"][-1]["role"] != "tool":
        code = {"name": "python", "arguments": json.dumps({"code": "print(2 + 2)"})}
        calls = [{"id": "c", "type": "function", "function": code}]
        message = {"content": None, "reasoning_content": "I compute.", "tool_calls": calls}
    return garbage(json.dumps({"choices": [{"message": message}]}).encode())


def test_a_thinking_service_plays_with_tools():
    from textenvs.envs.math_python import MathPython

    with FakeService(thinker) as service:
        records = played(jobs(range(3), 1, 0), lambda: MathPython(call_format="native"), spec(service, max_retries=0))
    assert [(record.failed, record.assistant_turns > 1) for record in records] == [(False, True)] * 3


@pytest.mark.parametrize("content", ["x" * 2**20, "<think>" * 2**17, "#### " * 2**17], ids=["one", "tags", "marks"])
def test_longest_answer_is_ordinary_reply(content):
    with FakeService(content) as service:
        (record,) = played([Job(0, 0, 1, 0)], Say, spec(service))
    assert not record.failed


def test_native_tools_are_sent_and_called():
    from textenvs import Turn
    from textenvs.tool_env import ToolEnv
    from textenvs.tools import tool

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: One.
            b: Other.
        """
        return a + b

    class Adder(ToolEnv):
        def __init__(self):
            super().__init__(Say().tasks, [add], call_format="native")

        def answer(self, reply):
            return Turn(terminated=True, stop="solved", terms=self.terms())

    def answer(request):
        last = request["messages"][-1]
        if last["role"] == "tool":
            return f"It is {last['content']}."
        return Reply(
            None,
            tool_calls=[{"id": "x1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}],
            finish_reason="tool_calls",
        )

    with FakeService(answer) as service:
        (record,) = played([Job(0, 0, 1, 0)], Adder, spec(service))
    assert [schema["function"]["name"] for schema in service.requests[0]["tools"]] == ["add"]
    assert record.messages[-1]["content"] == "It is 5."
    assert (record.tool_calls, record.tool_errors) == (1, 0)
    assert "tool_calls" not in record.metrics
    assert record.success
