"""The state machine of a session: order, retries, contexts, the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from textenvs.gateway.model_call import ModelCall, ModelReply, RequestError, function_schema
from textenvs.gateway.session import Session, SessionEnded, TooManyContexts
from textenvs.messages import assistant, system, tool, user
from textenvs.tools.call_format import make_call


def model_call(*messages, tools=()):
    return ModelCall("openai-chat", "policy", messages, tuple(tools))


class Calls(RuleBasedStateMachine):
    """Clients that call, disconnect, call again and read, beside a policy that answers."""

    def __init__(self):
        super().__init__()
        self.session = Session(most_open=5)
        self.bodies = {}  # by ticket
        self.connected = {}  # by ticket: clients that wait
        self.order = []  # tickets in the order of their turns
        self.answers = {}

    @rule(body=st.sampled_from([b"a", b"b"]), key=st.sampled_from([None, "k"]))
    def arrive(self, body, key):
        try:
            ticket = self.session.arrive(model_call(user(body.decode())), body, key)
        except SessionEnded:
            assert self.session.ended
            return
        except RequestError:
            assert len(self.session._open) >= 5  # a reply that is read again is open beyond the limit
            return
        if ticket in self.bodies:  # a retry: of an equal call, which nobody waits for, or which has a key
            assert self.bodies[ticket] == (body, key)
            assert key is not None or self.connected[ticket] == 0
        self.bodies[ticket] = (body, key)
        self.connected[ticket] = 1

    @rule(data=st.data())
    def disconnect(self, data):
        waiting = sorted(ticket for ticket, count in self.connected.items() if count)
        if waiting:
            ticket = data.draw(st.sampled_from(waiting))
            self.session.disconnect(ticket)
            self.connected[ticket] = 0

    @rule()
    def observe_and_answer(self):
        observation = self.session.observe()
        if observation is None:
            return
        ticket = observation.ticket
        assert self.session.observe() is observation
        assert ticket not in self.order, "a call became two turns"
        assert not self.order or ticket > self.order[-1], "a later call had its turn first"
        reply = ModelReply(assistant(f"reply {ticket}"))
        assert self.session.answer(reply) == ticket
        self.order.append(ticket)
        self.answers[ticket] = reply

    @rule(data=st.data())
    def read(self, data):
        waiting = sorted(ticket for ticket, count in self.connected.items() if count)
        if not waiting:
            return
        ticket = data.draw(st.sampled_from(waiting))
        try:
            reply = self.session.reply_to(ticket)
        except SessionEnded:
            assert self.session.ended
            assert ticket not in self.answers
            return
        assert reply is self.answers.get(ticket)
        if reply is not None:
            self.session.deliver(ticket)
            self.connected[ticket] = 0
            del self.bodies[ticket]

    @rule()
    def end(self):
        if len(self.order) > 5:
            self.session.end()

    @invariant()
    def nothing_becomes_a_turn_after_the_end(self):
        if self.session.ended:
            assert self.session.observe() is None


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=40, stateful_step_count=30)


def turn(session, call, reply):
    session.arrive(call, repr(call).encode())
    observation = session.observe()
    ticket = session.answer(ModelReply(reply))
    session.deliver(ticket)
    return observation


words = st.text(st.characters(codec="utf-8"), max_size=8)
replies = st.builds(
    lambda text, arguments: assistant(text, [make_call("f", arguments, "call_0")] if arguments else ()),
    words,
    st.sampled_from(["", "{}", '{"b": 1, "a":  [2]}', "broken"]),
)


@settings(max_examples=40)
@given(st.lists(st.tuples(words, replies), min_size=1, max_size=5), st.booleans())
def test_extending_calls_stay_in_their_context(turns, hidden):
    """A client may leave out the reasoning, strip the text, and write a call's JSON anew."""
    session, seen = Session(), (system("Be brief."),)
    for number, (text, reply) in enumerate(turns):
        new = (user(text),) if number % 2 == 0 else (tool(text, "call_0"), user("So?"))
        seen = (*seen, *new)
        whole = {**reply, "reasoning_content": "Hm."} if hidden else reply
        observation = turn(session, model_call(*seen), whole)
        assert (observation.begins, observation.context) == (number == 0, 0)
        assert observation.new == (seen if number == 0 else new)
        stripped = {**reply, "content": reply["content"].strip()}
        if reply.get("tool_calls"):
            (made,) = reply["tool_calls"]
            text = made["function"]["arguments"].replace('{"b": 1, "a":  [2]}', '{"a":[2],"b":1}')
            stripped["tool_calls"] = (make_call("f", text, "call_0"),)
        seen = (*seen, stripped)


TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
DEPARTURES = {
    "message 0 (user) was 'One?' (user) and is 'Two?' now": model_call(user("Two?"), assistant("Yes."), user("And?")),
    "message 1 (assistant) was 'Yes.'": model_call(user("One?"), assistant("No."), user("And?")),
    "it ends after message 0 of 2": model_call(user("One?")),
    "its tools are not those": model_call(user("One?"), assistant("Yes."), user("And?"), tools=[TOOL]),
    "it adds a message of the role 'system'": model_call(user("One?"), assistant("Yes."), system("New."), user("And?")),
}


@pytest.mark.parametrize("words", DEPARTURES)
def test_other_calls_begin_a_context(words):
    def begun(most):
        session = Session(max_contexts=most)
        turn(session, model_call(user("One?")), assistant("Yes."))
        return session

    session = begun(None)
    observation = turn(session, DEPARTURES[words], assistant("Well."))
    assert (observation.begins, observation.context) == (True, 1)
    # The policy's reply in what both have in common stays as it is shown in the first context.
    added = "adds" in words
    assert observation.source == ((0, 1) if added else None)
    assert observation.new == DEPARTURES[words].messages[2 if added else 0 :]
    # The first context can still be continued.
    call = model_call(user("One?"), assistant("Yes."), user("And?"))
    if call != DEPARTURES[words]:
        assert not turn(session, call, assistant("So.")).begins
    session = begun(1)
    session.arrive(DEPARTURES[words], b"")
    with pytest.raises(TooManyContexts) as caught:
        session.observe()
    assert words in str(caught.value)


def test_parallel_calls_are_turns_in_order():
    session = Session()
    tickets = [session.arrive(model_call(user(name)), name.encode()) for name in "abc"]
    session.disconnect(tickets[1])
    order = []
    while (observation := session.observe()) is not None:
        order.append(observation.ticket)
        session.answer(ModelReply(assistant("ok")))
    assert order == [tickets[0], tickets[2]]


def test_lost_reply_is_given_again_to_its_key():
    """A reply that was sent may not have arrived; the client's key says that it asks for the same."""
    session, call = Session(), model_call(user("?"))
    first = session.arrive(call, b"body", "k")
    session.observe()
    reply = ModelReply(assistant("Yes."))
    session.answer(reply)
    session.deliver(first)
    again = session.arrive(call, b"body", "k")
    assert (again, session.reply_to(again)) == (first, reply)
    session.deliver(again)
    assert session.arrive(call, b"body", "other") != first
    assert session.arrive(call, b"body", None) != first


@pytest.mark.parametrize("levels", [99, 900])
def test_deep_schema_is_refused(levels):
    schema = {}
    for _ in range(levels):
        schema = {"a": schema}
    if levels < 100:
        assert function_schema("f", "", schema, "tools[0]")["function"]["parameters"] == schema
        return
    with pytest.raises(RequestError, match="more than 100 levels"):
        function_schema("f", "", schema, "tools[0]")


@pytest.mark.parametrize("key", ["k", None])
def test_lost_reply_outlives_a_parallel_call(key):
    """Two clients call; the first is disconnected and calls again when the second has its reply already."""
    session, call = Session(), model_call(user("?"))
    first = session.arrive(call, b"first", key)
    second = session.arrive(model_call(user("Other?")), b"second")
    session.observe()
    session.disconnect(first)
    replies = []
    for ticket in (first, second):
        assert session.observe().ticket == ticket
        replies.append(ModelReply(assistant(str(ticket))))
        session.answer(replies[-1])
    again = session.arrive(call, b"first", key)
    assert (again, session.reply_to(again)) == (first, replies[0])


def test_abandoned_reply_without_a_key_is_forgotten():
    session, call = Session(), model_call(user("?"))
    first = session.arrive(call, b"first")
    session.observe()
    session.disconnect(first)
    session.answer(ModelReply(assistant("Yes.")))
    turn(session, model_call(user("Else?")), assistant("No."))
    assert session.arrive(call, b"first") != first


def test_kept_replies_have_a_limit():
    session, tickets = Session(), []
    for number in range(100):
        tickets.append(session.arrive(model_call(user("?")), b"body", str(number)))
        session.observe()
        session.answer(ModelReply(assistant("Yes.")))
        session.deliver(tickets[-1])
    assert [session.arrive(model_call(user("?")), b"body", str(99)), len(session._kept)] == [tickets[99], 64]
    assert session.arrive(model_call(user("?")), b"body", "0") == 100
