"""Chat templates: the form of each message for a template, control tokens, and variables that a user may set.

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
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from textenvs.messages import Message, Messages, ToolCall, assistant, has_images, system, text_of, tool, user
from textenvs.reasoning import REASONING_KEYS, REASONING_MARKS, Marks, split_reasoning
from textenvs.text import excerpt

from .config.template import RESERVED, refused


class MarkedText(NamedTuple):
    """Rendered text with marks for the control tokens that messages spell, and the pattern of the marks, if any."""

    marked: str
    marks: re.Pattern[str] | None = None

    def after(self, end: int) -> MarkedText:
        return MarkedText(self.marked[end:], self.marks)


class ControlTokens:
    """The control tokens of one tokenizer: special ones, those it declares (``chat_control_tokens``), and ``extra``.

    :meth:`mark` replaces each one that a message spells by a mark of plain letters, to distinguish it from the
    template's own; :meth:`encode` cuts the text inside each spelled one and encodes the pieces separately. If a
    tokenizer still produces control tokens that the template did not write, the text between the template's own is cut
    further.
    """

    def __init__(self, tokenizer: Any, extra: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
        declared = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *extra}
        names = [token.content for token in added if token.special or token.content in declared]
        names += map(str, tokenizer.all_special_tokens)
        self.ids = {name: int(tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys(names) if name}
        self.pattern = any_of(self.ids)
        self._names = tuple(self.ids)
        self._values = frozenset(self.ids.values()) - {tokenizer.unk_token_id}  # the unknown token is not spelled
        self._space_first = self.of("a") != self.of("\na")[len(self.of("\n")) :]  # SentencePiece's dummy prefix

    def mark(self, values: Sequence[tuple[Any, re.Pattern[str]]]) -> tuple[list[Any], re.Pattern[str] | None]:
        """Replace each control token that ``values`` spell by a mark: letters and digits that occur nowhere else.

        Values are nested mappings and sequences of strings, each with the pattern of control tokens in it. Return the
        values with marks, and the pattern of a mark (``None`` if nothing was marked).
        """
        texts = [text for value, _ in values for text in _strings(value)]
        if not any(self.pattern.search(text) for text in texts):
            return [value for value, _ in values], None
        nonce = 0
        while any(f"zq{nonce}n" in text for text in texts):
            nonce += 1

        def mark(match: re.Match[str]) -> str:
            return f"zq{nonce}n{self._names.index(match[0])}qz"

        return [_map_strings(value, what, mark) for value, what in values], re.compile(f"zq{nonce}n(\\d+)qz")

    def plain(self, text: MarkedText) -> str:
        marks = text.marks
        return text.marked if marks is None else marks.sub(lambda match: self._names[int(match[1])], text.marked)

    def encode(self, text: MarkedText) -> list[int]:
        """Return token ids of a rendered text: the template's control tokens as such, spelled ones as plain text."""
        return [i for _, ids in self._parts(text) for i in ids]

    def inside(self, text: MarkedText, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for each token of :meth:`encode` whether all its characters are in one of ``spans``.

        ``spans`` are (begin, end) of characters of ``text.marked`` that cut no mark. A token whose characters are in
        part elsewhere is not inside. RendererError: the tokenizer does not report the characters of its tokens.
        """
        sizes = [tuple(len(self.plain(MarkedText(text.marked[:at], text.marks))) for at in span) for span in spans]
        result: list[bool] = []
        place = 0
        for part, ids in self._parts(text):
            end = place + len(part)
            if any(first < end and place < last for first, last in sizes):
                for begin, stop in self._ranges(part, ids):
                    own = begin + place, stop + place
                    result.append(own[0] < own[1] and any(a <= own[0] and own[1] <= b for a, b in sizes))
            else:
                result += [False] * len(ids)
            place = end
        return result

    def within(self, text: str) -> list[int]:
        """Return token ids of a stretch within a conversation, without the space that some tokenizers prepend."""
        for before in ("\n", "#", "0") if self._space_first else ():
            head, ids = self.of(before), self.of(before + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self.of(text)

    def of(self, text: str) -> list[int]:
        """Return token ids of a text by the tokenizer, spelled control tokens included."""
        if not text:
            return []
        return [int(i) for i in self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]

    def _parts(self, text: MarkedText) -> list[tuple[str, list[int]]]:
        """Return the pieces that a rendered text is encoded in, which add up to its plain text, and their tokens."""
        first, *rest = self._pieces(text)
        parts = [(first, self.of(first)), *((piece, self.within(piece)) for piece in rest)]
        written = (self.ids[name] for name in self.pattern.findall(text.marked))
        if all(i in written for _, ids in parts for i in ids if i in self._values):  # in order
            return parts
        # Tokenizers split at control tokens first, so the text between two of them can be encoded separately.
        parts, end = [], 0
        for match in self.pattern.finditer(text.marked):
            parts += self._harmless(self.plain(MarkedText(text.marked[end : match.start()], text.marks)))
            parts.append((match[0], [self.ids[match[0]]]))
            end = match.end()
        return parts + self._harmless(self.plain(text.after(end)))

    def _pieces(self, text: MarkedText) -> list[str]:
        """Return the plain text, cut after the first character of each spelled control token."""
        if text.marks is None:
            return [text.marked]
        pieces, end, start = [], 0, ""
        for match in text.marks.finditer(text.marked):
            name = self._names[int(match[1])]
            pieces.append(start + text.marked[end : match.start()] + name[:1])
            start, end = name[1:], match.end()
        return [*pieces, start + text.marked[end:]]

    def _harmless(self, text: str) -> list[tuple[str, list[int]]]:
        """Return pieces of plain text and their tokens: cut in halves until no control token is among them."""
        ids = self.within(text)
        if self._values.isdisjoint(ids):
            return [(text, ids)]
        if len(text) < 2:
            raise RendererError(
                f"the tokenizer makes a control token of the single character {text!r}, which a message may have: use "
                "a tokenizer whose special tokens are longer"
            )
        middle = len(text) // 2
        return [*self._harmless(text[:middle]), *self._harmless(text[middle:])]

    def _ranges(self, text: str, ids: list[int]) -> list[tuple[int, int]]:
        """Return (begin, end) of each token's characters in a text that was encoded as ``ids``.

        A token also has the characters since the one before it: some tokenizers report a token without its space.
        """
        if len(ids) == 1:
            return [(0, len(text))]
        for before in ("", *(("\n", "#", "0") if self._space_first else ())):
            encoded = self._with_offsets(before + text)
            if encoded["input_ids"] == [*self.of(before), *ids]:
                ranges, last = [], 0
                for begin, end in encoded["offset_mapping"][len(encoded["input_ids"]) - len(ids) :]:
                    begin, end = max(begin - len(before), 0), max(end - len(before), 0)
                    ranges.append((min(begin, last), end))
                    last = max(last, end)
                return ranges
        raise RendererError(f"the tokenizer does not say which characters its tokens are of: {excerpt(text, 80)!r}")

    def _with_offsets(self, text: str) -> Any:
        try:
            return self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError:
            raise RendererError(
                f"{type(self._tokenizer).__name__} does not say which characters its tokens are of, so that the "
                "tokens of a message cannot be told from the chat template's: use a fast tokenizer (tokenizer.json)"
            ) from None


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of these strings, the longest first; without any it matches nothing."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in nested mappings and sequences, except for keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _map_strings(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Any:
    """Return a copy with ``change`` applied to each match of ``pattern`` in each string."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, pattern, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_map_strings(item, pattern, change) for item in value]
    return value


Tools: TypeAlias = Sequence[Mapping[str, Any]] | None
CallForm: TypeAlias = Literal["object", "string", "text"]

_KNOWN_SHAPES = 1024  # maximum in the cache
_MESSAGE_CHARS = 500  # of a template's error

_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "Any."}}}
#: A tool for probes.
PROBE_TOOLS: Tools = [
    {"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": _PARAMETERS}}
]


class RendererError(ValueError):
    """The template or the tokenizer cannot do this; the message says why and what to do."""


class RejectedError(RendererError):
    """The template rejects a conversation, or does not show it."""


def place_of(reply: str, text: str) -> int:
    """Return the place of the assistant's reply in a rendering; ``RejectedError`` if it is not shown unchanged."""
    place = text.find(reply)
    if place < 0:
        raise RejectedError(f"the chat template does not show an assistant's reply {reply!r} as it is")
    return place


class Show(Protocol):
    """Function that renders messages with a template; raises :class:`RejectedError` with the template's message."""

    def __call__(self, messages: list[dict[str, Any]], tools: Tools, *, generate: bool = True) -> str: ...


def show_with(tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> Show:
    """Return a function that renders with a tokenizer's chat template and these variables.

    A template that exceeds its bounds, or has none (:mod:`trainers.bounded_template`), is a :class:`RendererError`.
    """
    from jinja2 import TemplateError

    from .bounded_template import BoundedTemplates, LimitError

    templates = BoundedTemplates(tokenizer)

    def show(messages: list[dict[str, Any]], tools: Tools, *, generate: bool = True) -> str:
        schemas = None if tools is None else [dict(schema) for schema in tools]
        try:
            return templates.render(messages, schemas, generate=generate, kwargs=kwargs or {})
        except LimitError as error:
            raise RendererError(f"{error}; {error.advice}") from error
        except (TemplateError, TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
            raise RejectedError(excerpt(f"{error}" or type(error).__name__, _MESSAGE_CHARS)) from error

    return show


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


# ------------------ private reasoning


class TemplateReasoning(NamedTuple):
    """The private reasoning of a model in its chat template."""

    opened: str = ""  # the begin mark in the generation prompt; replies then only have the end
    end: str = ""  # that end
    marks: Marks | None = None  # its marks, if they are not among textenvs' own

    def reply(self, text: str, *, cut: bool) -> str:
        """Return a sampled text as an environment reads it: reasoning has its begin mark, and known marks.

        If the prompt opened reasoning, a reply that never ends it is reasoning if it was ``cut``, and else has none.
        """
        if cut or (self.end and self.end in text):
            text = self.opened + text
        if self.marks is None or (split := split_reasoning(text, (self.marks,))).text == text.strip():
            return text
        return f"{_KNOWN.begin}\n{split.reasoning}\n{_KNOWN.end}\n\n{split.text}"


_KNOWN = REASONING_MARKS[0]
_THOUGHT, _SAID = "zqthoughtqz", "zqsaidqz"


def reasoning_of(show: Show) -> TemplateReasoning:
    """Return how a template shows separate reasoning, and whether its generation prompt opens it, by a probe."""
    question = {"role": "user", "content": "x"}
    try:
        prompt = show([question], None)
    except RejectedError:
        return TemplateReasoning()
    marks = None
    for key in REASONING_KEYS:
        with contextlib.suppress(RejectedError):
            text = show([question, {"role": "assistant", "content": _SAID, key: _THOUGHT}], None, generate=False)
            if match := _SHOWN.search(text):
                header = text[len(os.path.commonprefix([prompt, text])) : match.end(1)].strip()
                marks = Marks(header or match[1], match[2])
                break
    if marks and any(marks.begin.lower() == known_marks.begin.lower() for known_marks in REASONING_MARKS):
        marks = None
    for known_marks in (*([marks] if marks else []), *REASONING_MARKS):
        if known_marks.in_prompt and prompt.rstrip().endswith(known_marks.begin):
            return TemplateReasoning(prompt[prompt.rindex(known_marks.begin) :], known_marks.end, marks)
    return TemplateReasoning(marks=marks)


_MARK = r"<[^<>\s]+>|\[[^\[\]\s]+\]|◁[^◁▷\s]+▷"
_SHOWN = re.compile(rf"((?:{_MARK})[a-z]*)\s*{_THOUGHT}\s*({_MARK}).*{_SAID}", re.DOTALL)


# ------------------ variables that a user may set


def variables(sources: Iterable[str]) -> set[str]:
    """Return the variables that templates may read from outside, except for the renderer's own."""
    from jinja2 import Environment, meta, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """transformers' mark of the assistant's text, ``{% generation %}``: only its content counts here."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])  # noqa: S701
    names = [meta.find_undeclared_variables(environment.parse(source)) for source in sources]
    return set().union(*names) - RESERVED.keys()


def unread(sources: Iterable[str], kwargs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the variables that no template reads, and those that could be set instead; both sorted."""
    reads = variables(sources)
    return sorted(kwargs.keys() - reads), sorted(reads - kwargs.keys())


def check_kwargs(kwargs: Mapping[str, Any], template: str | dict[str, str]) -> None:
    """Raise ``RendererError`` for variables that are the renderer's own, or that no template reads."""
    from jinja2 import TemplateSyntaxError

    for name, what in refused(kwargs):
        raise RendererError(f"chat_template_kwargs: {name} cannot be given: it is {what}")
    if not kwargs:
        return
    try:
        nothing, instead = unread(template.values() if isinstance(template, dict) else [template], kwargs)
    except TemplateSyntaxError as error:
        raise RendererError(f"the chat template is no Jinja template: {error}") from error
    if nothing:
        raise RendererError(
            f"chat_template_kwargs: the chat template never reads {', '.join(nothing)}, which would do nothing; "
            f"it may read {', '.join(instead) or 'no variable that can be given'}"
        )
