"""The form of each message for a chat template.

Templates reject or silently drop some kinds of messages. So each kind is rendered with unique sentinel texts, and a
kind that is not shown exactly once and in order is converted:

===================================  ==================================================================
message                              its form if the template does not show it
===================================  ==================================================================
system, first or later               a user message
tool result behind plain text        a user message, between ``<tool_response>`` tags
tool calls of the assistant          JSON between ``<tool_call>`` tags, at the end of the message's text
two user messages in a row           one message, with an empty line between; always if one was converted
tool schemas                         refused: the environment's own system prompt can describe tools
===================================  ==================================================================

A message's form depends only on the messages between the replies around it, so it is the same in a bridge and in the
whole conversation. Shapes that were not probed on construction are probed on first use (:meth:`MessageForms.check`).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from textenvs.messages import Message, Messages, ToolCall, assistant, has_images, system, text_of, tool, user

from .show import PROBE_TOOLS, RejectedError, Show, Tools

CallForm: TypeAlias = Literal["object", "string", "text"]


_KNOWN_SHAPES = 1024  # maximum in the cache


class MessageForms:
    """The forms that one chat template shows; ``show`` renders with it.

    Attributes:
        joins_users: User messages in a row become one.
        system_as_user: A system message at the start becomes a user message.
        later_system_as_user: So does a later one.
        results_as_user: A tool result after an assistant message without ``tool_calls`` becomes a user message.
        calls: Form of tool calls, in messages without and with a text: with their arguments as an ``object``, as a
            ``string`` of JSON, or at the end of the message's ``text``, with results then as after plain text.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._known: dict[Hashable, str | None] = {}  # the problem with a shape, or none
        self.joins_users = self.system_as_user = self.later_system_as_user = self.results_as_user = False
        self.calls: dict[bool, CallForm] = {False: "text", True: "text"}
        s, u, a = system("x"), user("x"), assistant("x")
        for plain in ((u,), (u, a, u)):
            self.check(plain)
        with_tools: list[Tools] = [None, PROBE_TOOLS] if self._shown((u,), tools=PROBE_TOOLS) else [None]
        self.joins_users = not self._shown((u, u), (u, a, u, u))
        self.system_as_user = not self._shown((s, u), (s, u, a, u), tools=None)
        self.later_system_as_user = not self._shown((u, a, s, u), (u, a, s), (s, u, a, s, u), (s, s, u))
        results = (tool("x", "c"), tool("x", "c", "probe"))
        for tools in with_tools:
            for r in results:
                behind: list[Messages] = [(r,), (r, r), (r, u), (r, a, u), (r, a, r, r, a, u)]
                self.results_as_user |= not self._shown(*((u, a, *talk) for talk in behind), tools=tools)
        for has_text, calling in ((False, assistant("", [_CALL, _CALL])), (True, assistant("x", [_CALL]))):
            count = len(calling["tool_calls"])
            talks = [(u, calling, *[r] * count, *end) for r in results for end in ((), (a, u))]
            for form in _CALL_FORMS:
                self.calls[has_text] = form
                if all(self._shown(*talks, tools=tools) for tools in with_tools):
                    break

    def converted(self) -> list[str]:
        """Return the kinds of messages that are converted."""
        kinds = {
            "two user messages in a row": self.joins_users,
            "system messages": self.system_as_user,
            "later system messages": self.later_system_as_user,
            "tool results behind text": self.results_as_user,
            "tool calls without a text": self.calls[False] == "text",
            "tool calls with a text": self.calls[True] == "text",
        }
        return [kind for kind, is_converted in kinds.items() if is_converted]

    def put(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        forms: list[dict[str, Any]] = []
        was_converted = False  # the last form is a user message that was converted or joined
        native_calls = False  # the previous assistant message has its calls
        for number, message in enumerate(messages):
            role, text = message["role"], _text(message)
            form, converted = {**message, "content": text}, False
            if role == "assistant":
                form, native_calls = self._assistant(form)
            elif role == "tool" and self.results_as_user and not native_calls:
                form = {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
                converted = True
            elif role == "system" and (self.later_system_as_user if number else self.system_as_user):
                form, converted = {"role": "user", "content": text}, True
            joins = form["role"] == "user" and forms and forms[-1]["role"] == "user"
            if joins and (self.joins_users or was_converted or converted):
                both = (forms.pop()["content"], form["content"])
                form = {"role": "user", "content": "\n\n".join(text for text in both if text)}
                converted = True
            was_converted = converted
            forms.append(form)
        return forms

    def check(self, messages: Sequence[Message], tools: Tools = None) -> None:
        """Check with sentinels that the template shows a conversation of this shape, and these tools, once in order.

        (A system message at the start may move.) Cached by shape. RejectedError says what is missing and what to do.
        """
        shape = tuple(
            (
                m["role"],
                bool(_text(m)),
                "name" in m,
                *(_is_object(call["function"]["arguments"]) for call in m.get("tool_calls", ())),
            )
            for m in messages
        )
        key = (shape, None if tools is None else json.dumps(tools))
        if (problem := self._cached(key, lambda: self._problem(messages, tools))) is not None:
            raise RejectedError(problem)

    def around(self, names: Iterable[str]) -> set[str]:
        """Return those of ``names`` that the template writes around messages that are not the assistant's."""
        u, a, names = user("x"), assistant("x"), tuple(names)

        def written(*messages: Message) -> Counter[str]:
            text = self._show(self.put(messages), None, generate=False)
            return Counter({name: text.count(name) for name in names})

        counts = written(system("x"), u)
        for talk in ((u, a, u), (u, a, system("x")), (u, a, tool("x", "c", "probe"))):
            with contextlib.suppress(RejectedError):
                counts += written(*talk) - written(u, a)
        return {name for name, count in counts.items() if count}

    def _assistant(self, form: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the assistant's message, and whether it has its calls as such."""
        calls = form.pop("tool_calls", ())
        if not calls:
            return form, False
        put = self.calls[bool(form["content"])]
        if put == "text" or not all(_is_object(call["function"]["arguments"]) for call in calls):
            written = (
                f'<tool_call>\n{{"name": {json.dumps(call["function"]["name"], ensure_ascii=False)}, '
                f'"arguments": {call["function"]["arguments"]}}}\n</tool_call>'
                for call in calls
            )
            return {**form, "content": "\n".join(text for text in (form["content"], *written) if text)}, False
        form["tool_calls"] = [{**call, "function": dict(call["function"])} for call in calls]
        if put == "object":
            for call in form["tool_calls"]:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return form, True

    def _shown(self, *talks: Messages, tools: Tools = None) -> bool:
        return all(self._problem(talk, tools) is None for talk in talks)

    def _problem(self, messages: Sequence[Message], tools: Tools) -> str | None:
        """Return the problem with the template's rendering of a conversation of this shape, or ``None``."""
        roles = ", ".join(message["role"] for message in messages)
        if tools and (unseen := self._cached(json.dumps(tools), lambda: self._unseen(tools))):
            return (
                f"the chat template does not show the tools ({unseen}): let the environment's system prompt describe "
                "them (tools_in_prompt=true, and a call_format other than native), or use a model whose template "
                "shows tools"
            )
        probe, expected, names = _probe(messages)
        try:
            text = self._show(self.put(probe), tools)
        except RejectedError as error:
            return f"the chat template rejects the conversation ({roles}): {error}"
        end = 0
        for number, (role, texts) in enumerate(expected):
            counts = [text.count(sentinel) for sentinel in texts]
            if any(count != 1 for count in counts):
                how = "shows more than once" if max(counts) > 1 else "does not show"
                what = f"the text of message {number} ({role}) of a conversation ({roles})"
                return f"the chat template {how} {what}: {_WAY_OUT}"
            places = [text.find(sentinel) for sentinel in texts]
            if not (number == 0 and role == "system"):
                if places and min(places) < end:
                    return f"the chat template shows message {number} ({role}) of ({roles}) out of order: {_WAY_OUT}"
                end = max([end, *places])
        if lost := [name for name in names if name not in text]:
            return f"the chat template does not show the name of a tool that is called ({roles}; {len(lost)} lost)"
        return None

    def _cached(self, key: Hashable, find: Callable[[], str | None]) -> str | None:
        if key not in self._known:
            problem = find()
            if len(self._known) >= _KNOWN_SHAPES:
                self._known.clear()
            self._known[key] = problem
        return self._known[key]

    def _unseen(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the parts of these schemas that the template does not show; empty if it shows all."""
        descriptions: dict[str, str] = {}
        words: set[str] = set()
        marked = [_described(schema, "", descriptions, words) for schema in tools]
        try:
            text = self._show([{"role": "user", "content": "x"}], marked)
        except RejectedError as error:
            return f"it rejects them: {error}"
        unseen = [place for mark, place in descriptions.items() if text.count(mark) != 1]
        unseen += [repr(word) for word in sorted(words) if word not in text and json.dumps(word)[1:-1] not in text]
        return "" if not unseen else f"missing: {', '.join(unseen[:3])}{' ...' if len(unseen) > 3 else ''}"


_CALL_FORMS: tuple[CallForm, ...] = ("object", "string", "text")
_CALL: ToolCall = {"id": "zqcall000", "type": "function", "function": {"name": "probe", "arguments": '{"x": "y"}'}}
_WAY_OUT = (
    "use a model whose template shows it, or set tokenizer.chat_template (templates of image models often take no "
    "plain text)"
)


def _probe(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[tuple[str, list[str]]], list[str]]:
    """Return a conversation of the same shape, the texts that it must show by message, and names of called tools."""
    probe: list[dict[str, Any]] = []
    expected: list[tuple[str, list[str]]] = []
    names: list[str] = []
    open_calls: list[tuple[str, str]] = []  # ids and names that results may answer
    for number, message in enumerate(messages):
        form: dict[str, Any] = {"role": message["role"], "content": f"zqtext{number}qz" if text_of(message) else ""}
        texts = [form["content"]] if form["content"] else []
        if message["role"] == "assistant":
            open_calls = []
            for place, tool_call in enumerate(message.get("tool_calls", ())):
                name, value = f"zqname{number}x{place}qz", f"zqvalue{number}x{place}qz"
                call_id = f"zqc{number:03d}{place:03d}"  # nine characters, as in Mistral's ids
                arguments = f'{{"x": "{value}"}}' if _is_object(tool_call["function"]["arguments"]) else value
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                form.setdefault("tool_calls", []).append(call)
                open_calls.append((call_id, name))
                texts.append(value)
                names.append(name)
        elif message["role"] == "tool":
            form["tool_call_id"], name = open_calls.pop(0) if open_calls else ("zqcall000", "probe")
            if "name" in message:
                form["name"] = name
        probe.append(form)
        expected.append((message["role"], texts))
    return probe, expected, names


def _described(value: Any, place: str, descriptions: dict[str, str], words: set[str]) -> Any:
    """Return a copy of a schema with a mark for each description; collect names and choices in ``words``."""
    if isinstance(value, Mapping):
        copy: dict[str, Any] = {}
        for key, item in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key == "description" and isinstance(item, str) and item:
                copy[key] = f"zqabout{len(descriptions)}qz"
                descriptions[copy[key]] = where
            elif key == "properties" and isinstance(item, Mapping):
                words.update(item)
                named = ((name, f"{where}.{name}", part) for name, part in item.items())
                copy[key] = {name: _described(part, inner, descriptions, words) for name, inner, part in named}
            else:
                if key == "name" and isinstance(item, str):
                    words.add(item)
                elif key == "enum" and isinstance(item, Sequence):
                    words.update(choice for choice in item if isinstance(choice, str))
                copy[key] = _described(item, where, descriptions, words)
        return copy
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_described(item, place, descriptions, words) for item in value]
    return value


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


def _text(message: Mapping[str, Any]) -> str:
    """Return a message's content as text for templates; an image in it is rejected."""
    if has_images(message):
        raise RejectedError(
            f"a {message['role']} message has an image among its parts, and this renderer shows text only: "
            " train in an environment that speaks in text, or wrap this one so that its observations are"
        )
    return text_of(message)
