r"""From conversations to tokens: a chat template rendered whole once, and after that only what is new.

What the policy sampled is never tokenised again. After a reply, the new messages are rendered as a *bridge*: the
template's own text between the end of the sampled reply and the next generation point. It is found by differencing: a
two-message probe conversation with the new messages behind it, cut at the end of the probe's reply, so its cost grows
with what is new and not with the conversation. The bridge of ChatML::

    ...<|im_start|>assistant\n  Hello<|im_end|>  \n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    opening or bridge            sampled          bridge

Rules:

* The first special token of a bridge *ends the turn* (``<|im_end|>``). Where the reply ended with that very token, it
  was sampled, and the bridge goes on behind it. Otherwise the bridge starts with it, and it is not an action: the reply
  was cut by its length, or it stopped by another stop token. That other token stays where it was sampled, so the
  context then differs from a whole rendering by exactly this one token (which ``rewritten`` counts as a difference).
* A special token stands at the boundary, and tokenizers split text at special tokens first, so no merge can cross it:
  the bridge tokenised alone is the bridge within the whole. A template without one there is refused.
* Text in a message never becomes a control token: special tokens spelled in a message are encoded as plain text. In
  assistant messages that holds for the tokens that open and end turns; others (``</think>``, say) are the model's own.
  Markers that are not special tokens to the tokenizer (``[INST]`` in some) cannot be told from text by anyone.
* On construction all this is proved for the template at hand: probe conversations are played by bridging and compared
  with whole renderings. Where they differ, the template *rewrites history* (drops old reasoning, trims replies, moves
  the system prompt); ``rewrites_history`` is then true and :meth:`Renderer.rewritten` tells, turn by turn, whether it
  does so for the conversation at hand.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
from transformers import PreTrainedTokenizerBase

from textenvs.messages import Message, Messages, ToolCall, assistant, system, tool, user

from ..chat_template import refused, unread

logger = logging.getLogger(__name__)

Tools = Sequence[Mapping[str, Any]] | None

# The probe conversation. Plain words: a template that trims or splits replies leaves them alone.
_QUESTION, _REPLY = "zqquestionqz", "zqreplyqz"

# Kept at most, to be looked up instead of rendered: bridges, and openings (their siblings come soon or never).
_KNOWN_BRIDGES, _KNOWN_OPENINGS = 4096, 256

_TOOLS: Tools = [
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "A probe.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "Any."}}},
        },
    }
]


class RendererError(ValueError):
    """The template or the tokenizer cannot do what is asked; says what it complained about and what to do."""


class _RejectedError(RendererError):
    """The template itself rejects a conversation."""


class _Text(NamedTuple):
    """Rendered text in which special tokens spelled by messages are marked, and what the marks look like, if any."""

    marked: str
    marks: re.Pattern[str] | None

    def after(self, end: int) -> _Text:
        return _Text(self.marked[end:], self.marks)


class Renderer:
    """Renders conversations as token ids for one tokenizer and its chat template.

    Args:
        tokenizer: A transformers tokenizer with a chat template.
        template_kwargs: Variables for the template, for example ``{"enable_thinking": False}``; in every rendering,
            those of the proof included.
        stop_token_ids: More ids that end a reply, for example those of the model's ``generation_config``.

    Attributes:
        stop_token_ids: The ids that end a reply: what ends a turn in this template, the tokenizer's end of sequence,
            and those given.
        rewrites_history: The template changes earlier turns as a conversation grows, at least for some conversations.
        needs_tool_calls: The template takes tool messages only behind an assistant message with ``tool_calls``; a
            conversation then needs the environment's message for a reply, not just its text.

    Raises:
        RendererError: There is no chat template, it does not render even a plain conversation, its turns do not end
            with a special token, or it never reads one of ``template_kwargs``.
    """

    stop_token_ids: tuple[int, ...]
    rewrites_history: bool
    needs_tool_calls: bool

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise RendererError("the tokenizer has no chat template: set tokenizer.chat_template, or use a chat model")
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._check_kwargs()
        self._special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special_names = tuple(self._special)
        self._any_special = _any_of(self._special)
        self._turn_special = self._any_special  # until it is known which of them open and end turns
        self._space_first = self._ids("a") != self._ids("\na")[len(self._ids("\n")) :]  # SentencePiece's dummy prefix
        self._warned: set[str] = set()
        # Scripted users say the same few things again and again, and a template takes longer than a user's turn.
        self._bridges: dict[str, tuple[list[int], int]] = {}
        self._openings: dict[str, list[int]] = {}  # the siblings of a group open with the same words

        plain = self._bridge_text((user(_QUESTION),), None)
        turn_tokens = dict.fromkeys(self._any_special.findall(plain.marked))
        self._turn_special = _any_of(turn_tokens)
        ends = [self._turn_end(plain)]
        self.needs_tool_calls = self._finds_that_calls_are_needed()
        if (tool_bridge := self._accepted_tool_bridge()) is not None:  # some templates end a turn by who speaks next
            ends.append(self._turn_end(tool_bridge))
        eos = tokenizer.eos_token_id
        own = [] if eos is None else [int(eos)]
        self.stop_token_ids = tuple(dict.fromkeys([*ends, *own, *map(int, stop_token_ids)]))
        self.rewrites_history = self._prove()

    def _check_kwargs(self) -> None:
        """Refuse variables that are the renderer's own, and those that would do nothing."""
        for name, what in refused(self._kwargs):
            raise RendererError(f"chat_template_kwargs: {name} cannot be given: it is {what}")
        if not self._kwargs:
            return
        template = self._tokenizer.chat_template
        sources = list(template.values()) if isinstance(template, dict) else [template]
        try:
            nothing, instead = unread(sources, self._kwargs)
        except jinja2.TemplateSyntaxError as error:
            raise RendererError(f"the chat template is no Jinja template: {error}") from error
        if nothing:
            raise RendererError(
                f"chat_template_kwargs: the chat template never reads {', '.join(nothing)}, which would do nothing; "
                f"it may read {', '.join(instead) or 'no variable that can be given'}"
            )

    # ------------------------------------------------------------------ what the rollout calls

    def render(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """The whole conversation as token ids, ending at the generation point.

        Raises:
            RendererError: The template rejects the conversation.
        """
        key = json.dumps((messages, tools))
        if (ids := self._openings.get(key)) is None:
            ids = self._encode(self._text(messages, tools, generate=True))
            if len(self._openings) >= _KNOWN_OPENINGS:
                self._openings.clear()
            self._openings[key] = ids
        return list(ids)

    def bridge(self, new: Sequence[Message], *, after: int | None, tools: Tools = None) -> list[int]:
        """The template's tokens between the end of a sampled reply and the next generation point.

        Args:
            new: The messages that follow the reply, at least one.
            after: The last token of the sampled reply; ``None`` for a reply without tokens.
            tools: As given to :meth:`render`.

        Raises:
            RendererError: The template rejects these messages behind an assistant's, or puts no special token there.
        """
        key = json.dumps((new, tools))
        if (known := self._bridges.get(key)) is None:
            text = self._bridge_text(tuple(new), tools)
            if len(self._bridges) >= _KNOWN_BRIDGES:
                self._bridges.clear()
            known = self._bridges[key] = (self._encode(text), self._turn_end(text))
        ids, end = known
        return ids[ids.index(end) + 1 :] if after == end else list(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a sampled reply, without the stop token at its end (one at most; others stay visible)."""
        ids = [int(i) for i in token_ids]
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._decode(ids)

    def rewritten(self, token_ids: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> list[int] | None:
        """Whether the template, rendering ``messages`` now, says other than ``token_ids``, rendered and sampled so far.

        They are compared as text: a reply may well be sampled in other pieces than its text is tokenised in. The time
        grows with the whole conversation, so ask only where ``rewrites_history``.

        Returns:
            The new rendering where it reads differently, else ``None``.
        """
        text = self._text(messages, tools, generate=True)
        old = self._decode(token_ids)
        if old == self._plain(text):
            return None
        ids = self._encode(text)
        # Some tokenizers normalise (Qwen's compose accents) and so do not decode to the very text they encoded.
        return None if ids == list(token_ids) or self._decode(ids) == old else ids

    def warn_once(self, about: str, message: str) -> None:
        """Log ``message`` as a warning, the first time something is said ``about`` this."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)

    # ------------------------------------------------------------------ text

    def _text(self, messages: Sequence[Message], tools: Tools, *, generate: bool) -> _Text:
        if not messages:
            raise RendererError("a conversation without messages cannot be rendered")
        form, shown, marks = self._mark([_template_form(message) for message in messages], tools)
        try:
            text = self._tokenizer.apply_chat_template(
                form, tools=shown, tokenize=False, add_generation_prompt=generate, **self._kwargs
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise _RejectedError(f"the chat template rejects the conversation ({roles}): {error}") from error
        return _Text(str(text), marks)

    def _mark(
        self, messages: list[dict[str, Any]], tools: Tools
    ) -> tuple[list[dict[str, Any]], list[Any] | None, re.Pattern[str] | None]:
        """Put a mark, plain letters that occur nowhere else, for each special token that a message spells."""
        shown = None if tools is None else [dict(schema) for schema in tools]
        strings = [*_strings(messages), *_strings(shown)]
        if not any(self._any_special.search(text) for text in strings):
            return messages, shown, None
        nonce = 0
        while any(f"zq{nonce}n" in text for text in strings):
            nonce += 1

        def mark(match: re.Match[str]) -> str:
            return f"zq{nonce}n{self._special_names.index(match[0])}qz"

        marked = [
            _map_strings(m, (self._turn_special if m["role"] == "assistant" else self._any_special), mark)
            for m in messages
        ]
        return marked, _map_strings(shown, self._any_special, mark), re.compile(f"zq{nonce}n(\\d+)qz")

    def _plain(self, text: _Text) -> str:
        """The text with what the marks stand for."""
        if text.marks is None:
            return text.marked
        return text.marks.sub(lambda match: self._special_names[int(match[1])], text.marked)

    def _bridge_text(self, new: Messages, tools: Tools) -> _Text:
        if not new:
            raise RendererError("there is nothing to bridge to: no message follows the reply")
        opening, reply = user(_QUESTION), assistant(_REPLY)
        if not (any(m["role"] == "tool" for m in new) and self.needs_tool_calls):
            text = self._text((opening, reply, *new), tools, generate=True)
            start = text.marked.find(_REPLY)
            if start < 0:
                raise _RejectedError("the chat template does not show the assistant's text, so it cannot be continued")
            return text.after(start + len(_REPLY))
        # The calls' own text stands behind the reply's, in a form only the template knows. So cut at the end of the
        # turn instead, and put back how turns end.
        ended = self._text((opening, reply), tools, generate=False).marked
        ending = ended[ended.find(_REPLY) + len(_REPLY) :]
        reply = assistant(_REPLY, [_call(m) for m in new if m["role"] == "tool"])
        text = self._text((opening, reply, *new), tools, generate=True)
        turn = self._text((opening, reply), tools, generate=False).marked
        if not (text.marked.startswith(turn) and turn.endswith(ending)):
            raise _RejectedError("the chat template renders tool calls anew when their results come: cannot bridge")
        return text.after(len(turn) - len(ending))

    def _turn_end(self, text: _Text) -> int:
        """The special token that ends the turn before a bridge."""
        first = self._any_special.search(text.marked)
        if first is None:
            raise RendererError(
                f"the chat template puts no special token between an assistant's reply and what follows "
                f"({self._plain(text)!r}), so no reply can end there by itself: use a template that ends turns with a "
                f"special token of the tokenizer, which has {', '.join(self._special) or 'none'}"
            )
        return self._special[first[0]]

    # ------------------------------------------------------------------ tokens

    def _encode(self, text: _Text) -> list[int]:
        """Token ids of a rendered text, the template's special tokens as such and marked ones as plain text.

        Tokenizers split at special tokens before all else, so a stretch between two of them can be encoded apart.
        """
        if text.marks is None or not text.marks.search(text.marked):
            return self._ids(text.marked)
        ids: list[int] = []
        usual = ""
        for stretch, between in _stretches(text.marked, self._any_special):
            if text.marks.search(stretch):
                ids += [*self._ids(usual), *self._spelled(self._plain(_Text(stretch, text.marks)))]
                usual = between
            else:
                usual += stretch + between
        return ids + self._ids(usual)

    def _spelled(self, text: str) -> list[int]:
        """Token ids of a stretch from within a conversation, special tokens in it as plain text."""
        ids = self._within(text, split_special_tokens=True)
        if not set(ids).isdisjoint(self._special.values()):
            raise RendererError(f"the tokenizer makes special tokens of plain text: {text!r}")
        return ids

    def _within(self, text: str, **how: Any) -> list[int]:
        """Token ids of a stretch from within a conversation.

        Some tokenizers put a space before a text; then something else goes before it, to take the space and be removed.
        """
        for before in ("\n", "#", "0") if self._space_first else ():
            head, ids = self._ids(before), self._ids(before + text, **how)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self._ids(text, **how)

    def _ids(self, text: str, **how: Any) -> list[int]:
        if not text:
            return []
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False, **how)["input_ids"]
        return [int(i) for i in ids]  # type: ignore[union-attr]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    # ------------------------------------------------------------------ the proof

    def _finds_that_calls_are_needed(self) -> bool:
        """Whether tool messages are taken behind a reply with ``tool_calls``, and behind plain text are not."""
        answer = tool(_QUESTION, "zqcall001", "probe")

        def takes(*calls: ToolCall) -> bool:
            try:
                talk = (user(_QUESTION), assistant(_REPLY, calls), answer, assistant(_REPLY), user(_QUESTION))
                self._text(talk, _TOOLS, generate=True)
            except _RejectedError:
                return False
            return True

        return not takes() and takes(_call(answer))

    def _accepted_tool_bridge(self) -> _Text | None:
        try:
            return self._bridge_text((tool(_QUESTION, "zqcall001", "probe"),), _TOOLS)
        except _RejectedError:
            return None

    def _prove(self) -> bool:
        """Play the probe conversations by bridging; whether any of them reads differently when rendered as a whole.

        A probe that the template rejects (a system message, tools) proves nothing: such a conversation is an error
        when it comes. Plain text was rendered before, so it is not rejected.
        """
        differ = []
        for name, conversation, tools in self._probes():
            try:
                if not self._agrees(conversation, tools, exactly=name == "plain text"):
                    differ.append(name)
            except _RejectedError as error:
                logger.debug("probe conversation %r: %s", name, error)
        if differ:
            logger.info("the chat template rewrites history in these probe conversations: %s", ", ".join(differ))
        return bool(differ)

    def _probes(self) -> Iterator[tuple[str, Messages, Tools]]:
        def talk(*replies: str, asked: str = "Is it so?", head: Messages = ()) -> Messages:
            return (*head, user(asked), *(m for reply in replies for m in (assistant(reply), user(asked))))

        yield "plain text", talk("Yes.", "No, it is not.", "Perhaps"), None
        yield "system message", talk("Yes.", "No.", head=(system("Be brief."),)), None
        yield "tools", talk("Yes.", "No."), _TOOLS
        if not self.needs_tool_calls:  # else what a call looks like in a reply is the template's secret
            answered = (tool("42", "zqcall001", "probe"), assistant("It is 42."), user("Thanks."))
            yield "tool messages", (user("What is x?"), assistant("Look it up."), *answered), _TOOLS
        yield "unicode", talk("café 数学 \U0001f642\u200d", "ß", asked="¿Qué? \U0001f9ee"), None
        yield "empty text", talk("", "Yes.", asked=""), None
        for edge in ("\n", " ", "\n\n"):
            yield f"replies that start with {edge!r}", talk(f"{edge}Yes.", f"{edge}No."), None
            yield f"replies that end with {edge!r}", talk(f"Yes.{edge}", f"No.{edge}"), None
        yield "questions with newlines around", talk("Yes.", "No.", asked="\n\n Is it? \n"), None
        yield "reasoning in replies", talk("<think>\nHm.\n</think>\n\nYes.", "<think>\nOh.\n</think>\n\nNo."), None
        for name in self._special_names:
            if self._turn_special.fullmatch(name):
                yield f"{name} in questions", talk("Yes.", "No.", asked=f"What does {name} mean?"), None
        source = self._tokenizer.get_chat_template(tools=None)
        for name in self._tokenizer.get_added_vocab():
            if name in source and not self._turn_special.fullmatch(name):
                yield f"{name} in replies", talk(f"Hm.{name}Yes.", f"Oh.{name}No."), None

    def _agrees(self, conversation: Messages, tools: Tools, *, exactly: bool) -> bool:
        """Whether opening + replies + bridges reads like the whole conversation at each generation point."""
        replies = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        tokens = self.render(conversation[: replies[0]], tools)
        for i, following in zip(replies, [*replies[1:], len(conversation)], strict=True):
            new = conversation[i + 1 : following]
            text = self._bridge_text(new, tools)
            end = self._turn_end(text)
            cut = self._encode(text)
            reply = self._continuation(conversation[:i], conversation[i]["content"], tools)
            whole = self.render(conversation[:following], tools)
            stopped = [*tokens, *reply, end, *self.bridge(new, after=end, tools=tools)]
            tokens = [*tokens, *reply, *cut]
            for joined in (tokens, stopped):
                if self.rewritten(joined, conversation[:following], tools) is not None:
                    return False
            if cut[0] == end and whole[-len(cut) :] != cut:
                raise RendererError(
                    f"the tokens of {self._plain(text)!r} differ between a bridge and a whole rendering: the tokenizer "
                    f"looks over its special token {cut[0]}; bridging cannot be exact with it"
                )
            if exactly and tokens != whole:
                self.warn_once(
                    "merge",
                    "the tokenizer merges the end of the chat template's generation prompt with the start of a reply: "
                    "a whole conversation tokenises otherwise than it is played (the tokens are kept as sampled)",
                )
        return True

    def _continuation(self, messages: Messages, reply: str, tools: Tools) -> list[int]:
        """The tokens a model would write ``reply`` in: those of the text it continues, where that splits there."""
        text = self._text(messages, tools, generate=True)
        opening = self._encode(text)
        both = self._encode(_Text(text.marked + reply, text.marks))
        return both[len(opening) :] if both[: len(opening)] == opening else self._within(reply)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of these strings, the longest first; nothing where there are none."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)")


def _stretches(text: str, separator: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """The text as pairs of a stretch without separator and the separator behind it (none behind the last)."""
    end = 0
    for match in separator.finditer(text):
        yield text[end : match.start()], match[0]
        end = match.end()
    yield text[end:], ""


def _template_form(message: Message) -> dict[str, Any]:
    """A message as templates expect it: the arguments of tool calls as an object, where they are one."""
    form: dict[str, Any] = dict(message)
    if "tool_calls" in message:
        form["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _parsed(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return form


def _parsed(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _call(answer: Message) -> ToolCall:
    """A call that ``answer``, a tool message, could be the answer to."""
    name = answer.get("name", "probe")
    return {"id": answer["tool_call_id"], "type": "function", "function": {"name": name, "arguments": "{}"}}


def _strings(value: Any) -> Iterator[str]:
    """All strings in nested mappings and sequences, keys left aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for item in value.values() for text in _strings(item))
    elif isinstance(value, Sequence):
        yield from (text for item in value for text in _strings(item))


def _map_strings(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Any:
    """A copy in which ``change`` has been applied to each match of ``pattern`` in each string."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, pattern, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_map_strings(item, pattern, change) for item in value]
    return value
