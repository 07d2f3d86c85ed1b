"""The stock clients of OpenAI and Anthropic against the gateway."""

import asyncio
import json

import openai
import pytest
from aiohttp import web
from gateway_kit import answering, echo

from textenvs.gateway.model_call import ModelReply, TokenLogprob, Usage
from textenvs.gateway.server import gateway
from textenvs.messages import assistant, system, tool, user
from textenvs.tools.call_format import call

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHAT_TOOL = {"type": "function", "function": {"name": "double", "description": "Double.", "parameters": PARAMETERS}}
CALLS = (call("double", a=2), {**call("double", a=3), "id": "call_1"})


#: Its import takes seconds: one worker is enough.
uses_anthropic = pytest.mark.xdist_group("anthropic")


def chat_client(channel, **options):
    return openai.OpenAI(base_url=f"{gateway().url}/v1", api_key=channel.key, max_retries=0, **options)


def messages_client(channel, **options):
    import anthropic

    return anthropic.Anthropic(base_url=gateway().url, api_key=channel.key, max_retries=0, **options)


def play_tools(call):
    """Call both tools, then answer."""
    if call.messages[-1]["role"] == "tool":
        return ModelReply(assistant("4 and 6"), usage=Usage(7, 5))
    return ModelReply(assistant("Let me see.", CALLS), "tool_calls", usage=Usage(3, 2))


EXPECTED = (system("Be brief."), user("Twice 2 and 3?"), assistant("Let me see.", CALLS))
RESULTS = (tool("4", "call_0"), tool("6", "call_1"))


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_with_tools(stream):
    with answering(play_tools) as channel:
        client = chat_client(channel)
        messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Twice 2 and 3?"}]
        for _ in range(2):
            if stream:
                with client.chat.completions.stream(
                    model="any", messages=messages, tools=[CHAT_TOOL], stream_options={"include_usage": True}
                ) as events:
                    completion = events.get_final_completion()
            else:
                completion = client.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL])
            choice = completion.choices[0]
            messages.append(choice.message.to_dict())
            for made in choice.message.tool_calls or ():
                value = str(2 * json.loads(made.function.arguments)["a"])
                messages.append({"role": "tool", "content": value, "tool_call_id": made.id})
        assert (choice.message.content, choice.finish_reason) == ("4 and 6", "stop")
        assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (7, 12)
        first, second = channel.observations
        assert (first.begins, second.begins, second.new) == (True, False, RESULTS)
        assert second.call.messages == (*EXPECTED, *RESULTS)
        assert second.call.tools == (CHAT_TOOL,)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("previous", [False, True])
def test_responses_with_tools(stream, previous):
    declared = {
        "type": "function",
        "name": "double",
        "description": "Double.",
        "parameters": PARAMETERS,
        "strict": None,
    }
    with answering(play_tools) as channel:
        client = chat_client(channel)
        items, options = [{"role": "user", "content": "Twice 2 and 3?"}], {}
        for _ in range(2):
            request = {"model": "any", "input": items, "instructions": "Be brief.", "tools": [declared], **options}
            if stream:
                with client.responses.stream(**request) as events:
                    response = events.get_final_response()
            else:
                response = client.responses.create(**request)
            made = [item for item in response.output if item.type == "function_call"]
            values = [(one.call_id, str(2 * json.loads(one.arguments)["a"])) for one in made]
            results = [{"type": "function_call_output", "call_id": key, "output": value} for key, value in values]
            if previous:
                items, options = results, {"previous_response_id": response.id}
            else:
                items = [*items, *(item.to_dict() for item in response.output), *results]
        assert response.output_text == "4 and 6"
        assert response.usage.total_tokens == 12
        first, second = channel.observations
        assert (first.begins, second.begins, second.new) == (True, False, RESULTS)
        assert second.call.messages == (*EXPECTED, *RESULTS)


@uses_anthropic
@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages_with_tools(stream):
    declared = {"name": "double", "description": "Double.", "input_schema": PARAMETERS}
    with answering(play_tools) as channel:
        client = messages_client(channel)
        messages = [{"role": "user", "content": "Twice 2 and 3?"}]
        for _ in range(2):
            request = {
                "model": "any",
                "max_tokens": 9,
                "system": "Be brief.",
                "tools": [declared],
                "messages": messages,
            }
            if stream:
                with client.messages.stream(**request) as events:
                    message = events.get_final_message()
            else:
                message = client.messages.create(**request)
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": str(2 * block.input["a"])}
                for block in message.content
                if block.type == "tool_use"
            ]
            blocks = [block.to_dict() for block in message.content]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        assert (message.content[0].text, message.stop_reason) == ("4 and 6", "end_turn")
        assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 5)
        first, second = channel.observations
        assert (first.begins, second.begins, second.new) == (True, False, RESULTS)
        assert second.call.messages[:2] == EXPECTED[:2]


def test_logprobs_and_token_ids_reach_the_client():
    logprobs = (TokenLogprob("Y", -0.5, (("Y", -0.5), ("N", -1.5))), TokenLogprob("es.", -0.25))
    with answering(echo(logprobs=logprobs, token_ids=(5, 6))) as channel:
        request = {"model": "any", "messages": [user("?")], "logprobs": True, "top_logprobs": 1}
        (choice,) = chat_client(channel).chat.completions.create(**request).choices
        assert [(one.token, one.logprob) for one in choice.logprobs.content] == [("Y", -0.5), ("es.", -0.25)]
        assert [len(one.top_logprobs) for one in choice.logprobs.content] == [1, 0]
        assert choice.token_ids == [5, 6]
        chunks = list(chat_client(channel).chat.completions.create(**request, stream=True))
        assert sum(len(chunk.choices[0].logprobs.content) for chunk in chunks if chunk.choices[0].logprobs) == 2


@uses_anthropic
def test_models_are_listed():
    with answering(echo()) as channel:
        assert [model.id for model in chat_client(channel).models.list()] == ["policy"]
        assert chat_client(channel).models.retrieve("anything").id == "anything"
        assert [model.id for model in messages_client(channel).models.list()] == ["policy"]


#: What stock clients and agents send and the gateway has no use for, and forms that a field may have.
ACCEPTED_CHAT = {
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], "name": "Ann"},
    ],
    "tools": [CHAT_TOOL],
    "tool_choice": {"type": "function", "function": {"name": "double"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "stream_options": {"include_usage": True},
    "metadata": {"run": "1"},
    "reasoning_effort": "low",
    "prompt_cache_key": "a",
    "safety_identifier": "a",
    "service_tier": "auto",
    "store": False,
    "user": "a",
    "verbosity": "low",
}
ACCEPTED_RESPONSES = {
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi\nthere"}]},
    ],
    "tools": [{"type": "function", "name": "double", "parameters": PARAMETERS, "strict": True}],
    "tool_choice": {"type": "function", "name": "double"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"run": "1"},
    "parallel_tool_calls": True,
    "prompt_cache_key": "a",
    "reasoning": {"effort": "low", "summary": "auto"},
    "service_tier": "auto",
    "store": False,
    "stream_options": {"include_obfuscation": False},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "truncation": "auto",
    "user": "a",
}


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_settings_without_effect_are_accepted(protocol):
    with answering(echo(usage=Usage(1, 2))) as channel:
        client = chat_client(channel)
        if protocol == "chat":
            *_, last = client.chat.completions.create(model="any", stream=True, **ACCEPTED_CHAT)
            usage = last.usage
        else:
            *_, last = client.responses.create(model="any", stream=True, **ACCEPTED_RESPONSES)
            usage = last.response.usage
        assert usage.total_tokens == 3
        (observation,) = channel.observations
        messages = [(message["role"], message["content"]) for message in observation.new]
        assert messages == [("system", "Be brief."), ("user", "Hi\nthere")]
        assert observation.call.tool_choice == "function:double"


def test_responses_stream_the_reasoning():
    message = {**assistant("Yes."), "reasoning_content": "Hm."}
    with answering(lambda call: ModelReply(message)) as channel:
        stream = chat_client(channel).responses.stream(model="any", input="?")
        with stream as events:
            deltas = [(event.type, event.delta) for event in events if event.type.endswith("delta")]
            reasoning, _ = events.get_final_response().output
    assert deltas == [("response.reasoning_summary_text.delta", "Hm."), ("response.output_text.delta", "Yes.")]
    assert [part.text for part in reasoning.summary] == ["Hm."]


def test_unknown_usage_is_zero():
    with answering(echo()) as channel:
        client = chat_client(channel)
        assert client.chat.completions.create(model="any", messages=[user("?")]).usage.total_tokens == 0
        assert client.responses.create(model="any", input="?").usage.total_tokens == 0


TRIPLE = {"type": "function", "function": {"name": "triple"}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
REFUSED = {
    "n=2": {"n": 2},
    "response_format": {"response_format": {"type": "json_object"}},
    "the last one is the assistant's": {"messages": [user("?"), assistant("I")]},
    "there is no message": {"messages": []},
    "cannot be shown images": {"messages": [{"role": "user", "content": IMAGE}]},
    "tool_choice names 'triple'": {"tools": [CHAT_TOOL], "tool_choice": TRIPLE},
    "not of the type 'web_search'": {"tools": [{"type": "web_search"}]},
    "there twice": {"tools": [CHAT_TOOL, CHAT_TOOL]},
    "stop must be": {"stop": [""]},
    "temperature must be": {"temperature": "hot"},
    "audio": {"audio": {"voice": "x"}, "modalities": ["text", "audio"]},
    "logit_bias": {"logit_bias": {"5": 100}},
    "role is 'robot'": {"messages": [{"role": "robot", "content": "?"}]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_chat_refuses_in_words(words):
    with answering(echo()) as channel:
        request = {"model": "any", "messages": [user("?")], **REFUSED[words]}
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            chat_client(channel).chat.completions.create(**request)
        assert caught.value.body["type"] == "invalid_request_error"
        assert channel.observations == []


@uses_anthropic
def test_other_protocols_refuse_in_words():
    import anthropic

    with answering(echo()) as channel:
        with pytest.raises(openai.BadRequestError, match=r"text\.format: replies are not constrained"):
            chat_client(channel).responses.create(model="any", input="?", text={"format": {"type": "json_object"}})
        with pytest.raises(openai.NotFoundError, match="has no response 'resp_9'"):
            chat_client(channel).responses.create(model="any", input="?", previous_response_id="resp_9")
        with pytest.raises(anthropic.BadRequestError, match="would be run by the service") as caught:
            messages_client(channel).messages.create(
                model="any", max_tokens=1, messages=[user("?")], tools=[{"type": "bash_20250124", "name": "bash"}]
            )
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.NotFoundError, match="is not offered"):
            messages_client(channel).messages.count_tokens(model="any", messages=[user("?")])


@uses_anthropic
def test_wrong_key_and_ended_session_are_refused():
    import anthropic

    with answering(echo()) as channel:
        url = gateway().url
        stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-textenvs-guess", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="is of no session that is open"):
            stranger.chat.completions.create(model="any", messages=[user("?")])
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=url, api_key="guess", max_retries=0).messages.create(
                model="any", max_tokens=1, messages=[user("?")]
            )
        channel.end()
        with pytest.raises(openai.APIStatusError, match="this episode is over") as caught:
            chat_client(channel).chat.completions.create(model="any", messages=[user("?")])
        assert caught.value.status_code == 410


def test_lost_reply_is_sent_again(monkeypatch, caplog):
    """Its connection breaks while it is written; the client calls again."""
    write, losses = web.Response.write_eof, iter([True])

    async def lose(self, *data):
        if self.body is not None and next(losses, False):
            self._req.transport.abort()
            raise ConnectionResetError
        await write(self, *data)

    monkeypatch.setattr(web.Response, "write_eof", lose)
    with answering(echo("Yes.")) as channel:
        client, request = chat_client(channel), {"model": "any", "messages": [user("?")]}
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(**request)
        assert client.chat.completions.create(**request).choices[0].message.content == "Yes."
        assert len(channel.observations) == 1
    assert caplog.records == []


def openai_call(channel):
    client = openai.AsyncOpenAI(base_url=f"{gateway().url}/v1", api_key=channel.key, max_retries=0)
    return client, lambda: client.chat.completions.create(model="any", messages=[user("?")])


def anthropic_call(channel):
    import anthropic

    client = anthropic.AsyncAnthropic(base_url=gateway().url, api_key=channel.key, max_retries=0)
    return client, lambda: client.messages.create(model="any", max_tokens=9, messages=[user("?")])


def text(reply):
    return reply.content[0].text if hasattr(reply, "content") else reply.choices[0].message.content


@pytest.mark.parametrize("make_call", [openai_call, pytest.param(anthropic_call, marks=uses_anthropic)])
async def test_cancelled_call_is_the_same_turn_again(make_call):
    """The reply is given while nobody waits; the client's retry gets it."""
    arrival, reply = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def policy(call):
        loop.call_soon_threadsafe(arrival.set)
        asyncio.run_coroutine_threadsafe(reply.wait(), loop).result(60)
        return ModelReply(assistant("Late."))

    with answering(policy) as channel:
        client, request = make_call(channel)
        first = asyncio.create_task(request())
        await arrival.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        while channel.session._open[0].connected:
            await asyncio.sleep(0.001)
        again = asyncio.create_task(request())
        reply.set()
        assert text(await again) == "Late."
        assert len(channel.observations) == 1
        assert text(await request()) == "Late."
        assert [observation.begins for observation in channel.observations] == [True, True]
        await client.close()
