r"""Conversations as tokens: a chat template rendered whole once, and after that only the new messages.

After a reply, the new messages are rendered as a *bridge*: the template's own text between the end of the sampled reply
and the next generation point. It is found by differencing, with a two-message probe before the new messages, so its
cost grows with what is new. The bridge of ChatML::

    ...<|im_start|>assistant\n  Hello<|im_end|>  \n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
    opening or bridge            sampled          bridge

Rules:

* The first special token of a bridge *ends the turn* (``<|im_end|>``). Where the reply ended with that very token, it
  was sampled, and the bridge continues after it. Otherwise the bridge starts with it, and it is no action: the reply
  was cut by its length, or it stopped by another stop token. That other token stays where it was sampled, so the
  context then differs from a whole rendering by exactly this one token (which ``rewritten`` counts as a difference).
* A special token stands at the boundary, and tokenizers split text at special tokens first, so no merge can cross it:
  the bridge tokenised alone is the bridge within the whole. A template without one there is refused.
* Text in a message never becomes a control token (:mod:`trainers.chat_template`): those spelled in a message
  are encoded as plain text. Control tokens are the tokenizer's special tokens, and the other added tokens that the
  template writes around messages. In assistant messages that holds for the tokens that open and end turns; others
  (``</think>``, say) are the model's own. Markers that are no tokens of the tokenizer (``[INST]`` in some) are text.
* Each message is put in a form that the template shows (:mod:`trainers.chat_template`), and its text is rendered
  once. What no form shows is refused.
* A reply is one message. A template that puts control tokens between the generation prompt and a reply's text (the
  channels of gpt-oss) leaves them to the model, which ends each of several messages in a turn; it is refused.
* On construction all this is proved for the template at hand: probe conversations are played by bridging and compared
  with whole renderings. Where they differ, the template *rewrites history* (drops old reasoning, trims replies, moves
  the system prompt); ``rewrites_history`` is then true and :meth:`Renderer.rewritten` checks, turn by turn, whether it
  does so for the conversation at hand.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from textenvs.messages import Message, Messages, ToolCall, assistant, system, text_of, tool, user

from ..chat_template import (
    PROBE_TOOLS,
    ControlTokens,
    MarkedText,
    MessageForms,
    RejectedError,
    RendererError,
    TemplateReasoning,
    Tools,
    any_of,
    check_kwargs,
    place_of,
    reasoning_of,
    show_with,
)
from .observed_text import Span, spans_of, with_sentinels

__all__ = ["Renderer", "RendererError", "Tools"]

logger = logging.getLogger(__name__)

# The probe conversation. Plain words: a template that trims or splits replies leaves them alone.
_QUESTION, _REPLY = "zqquestionqz", "zqreplyqz"

# Kept at most, to be looked up instead of rendered: bridges, and openings (their siblings come soon or never).
_KNOWN_BRIDGES, _KNOWN_OPENINGS = 4096, 256
# What a message may say: a template that escapes texts, or changes them in another way, is seen by it.
_OBSERVED = 'zqfirstqz "quoted" <b>\n{second} & \\last, é'
_T = TypeVar("_T")


class Renderer:
    """Renders conversations as token ids for one ``tokenizer`` and its chat template; or RendererError.

    ``template_kwargs`` are variables for the template, in every rendering. ``stop_token_ids``, the argument's and the
    template's and tokenizer's own, end a reply. ``rewrites_history``: the template changes earlier turns, at least for
    some conversations. ``forms``: the form of each kind of message for the template. ``reasoning``: what the template
    supports of the model's private reasoning.

    ``observed_roles``: the roles of the messages whose texts' tokens :meth:`observed_in_bridge` and
    :meth:`observed_after` find; RendererError where the template or the tokenizer does not let them be told from what
    the template adds.
    """

    stop_token_ids: tuple[int, ...]
    rewrites_history: bool
    forms: MessageForms
    reasoning: TemplateReasoning

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        stop_token_ids: Sequence[int] = (),
        observed_roles: Sequence[str] = (),
    ) -> None:
        if not tokenizer.chat_template:
            raise RendererError("the tokenizer has no chat template: set tokenizer.chat_template, or use a chat model")
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        check_kwargs(self._kwargs, tokenizer.chat_template)
        self._warned: set[str] = set()
        # Scripted users say the same few things again and again, and a template takes longer than a user's turn.
        self._bridges: dict[str, tuple[list[int], int]] = {}
        self._openings: dict[str, list[int]] = {}  # the siblings of a group open with the same words
        self.observed_roles = frozenset(observed_roles)
        self._observed: dict[str, list[bool]] = {}

        self._show = show_with(tokenizer, self._kwargs)
        self.forms = MessageForms(self._show)
        self.reasoning = reasoning_of(self._show)
        if converted := self.forms.converted():
            how = "where they occur, they are rendered as text or as user messages"
            logger.info("the chat template does not show %s: %s", ", ".join(converted), how)
        frames = self.forms.around(
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if not token.special and re.search(r"[^\w\s]", token.content)
        )
        self._control = ControlTokens(tokenizer, frames)
        self._turn_special = self._control.pattern  # until it is known which of them open and end turns
        plain = self._bridge_text((user(_QUESTION),), None)
        answer = self._bridge_text((tool(_QUESTION, "zqcall001", "probe"),), None)
        turn_tokens = self._control.pattern.findall(plain.marked) + self._control.pattern.findall(answer.marked)
        self._turn_special = any_of(dict.fromkeys(turn_tokens))
        ends = [self._turn_end(plain), self._turn_end(answer)]  # some templates end a turn by the next role
        self._refuse_channels(plain)
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.stop_token_ids = tuple(dict.fromkeys(map(int, (*ends, *own, *stop_token_ids))))
        self.rewrites_history = self._prove()
        self._prove_observed()

    # ------------------------------------------------------------------ what the rollout calls

    def render(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Render the conversation as token ids, up to the generation point; RendererError where it is rejected."""
        if not messages:
            raise RendererError("a conversation without messages cannot be rendered")
        key = json.dumps((messages, tools))
        if (ids := self._openings.get(key)) is None:
            self.forms.check(messages, tools)
            ids = self._control.encode(self._text(messages, tools))
            _remember(self._openings, key, ids, _KNOWN_OPENINGS)
        return list(ids)

    def bridge(self, new: Sequence[Message], *, after: int | None, tools: Tools = None) -> list[int]:
        """Return the template's tokens between the end of a sampled reply and the next generation point.

        ``new`` are the messages that follow the reply, ``after`` its last token, if any. RendererError: the template
        rejects them, or puts no special token there.
        """
        key = json.dumps((new, tools))
        if (cached := self._bridges.get(key)) is None:
            text = self._bridge_text(tuple(new), tools)
            cached = self._control.encode(text), self._turn_end(text)
            _remember(self._bridges, key, cached, _KNOWN_BRIDGES)
        ids, end = cached
        return ids[ids.index(end) + 1 :] if after == end else list(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode a sampled reply, without the stop token at its end (one at most; further ones stay visible)."""
        ids = [int(i) for i in token_ids]
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._decode(ids)

    def rewritten(self, token_ids: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> list[int] | None:
        """Return the rendering of ``messages`` where it differs as text from ``token_ids``, else ``None``.

        The time grows with the whole conversation, so ask only where ``rewrites_history``.
        """
        text = self._text(messages, tools)
        old = self._decode(token_ids)
        if old == self._control.plain(text):
            return None
        ids = self._control.encode(text)
        # Some tokenizers normalise (Qwen's compose accents) and so do not decode to the very text they encoded.
        return None if ids == list(token_ids) or self._decode(ids) == old else ids

    def written(self, before: Sequence[Message], reply: Message, tools: Tools = None) -> tuple[str, int]:
        """Return a reply with calls or reasoning as its model writes it: text after the generation point, and end.

        The text is the chat template's, without what ends the turn; the end is a stop token. RendererError: the
        template does not show the reply there, or leaves something of it out.
        """
        self.forms.check((*before, reply), tools)
        opening = self._control.plain(self._text(before, tools))
        whole = self._control.plain(self._text((*before, reply), tools, generate=False))
        if not whole.startswith(opening):
            raise RendererError(
                f"the chat template does not show a reply with calls or reasoning behind its generation prompt "
                f"({opening[-60:]!r}): write what the model should say into its content"
            )
        text, end = whole[len(opening) :], self.stop_token_ids[0]
        for name, token in self._control.ids.items():
            if token in self.stop_token_ids and text.rstrip().endswith(name):
                text, end = text.rstrip().removesuffix(name), token
        if (reasoning := reply.get("reasoning_content", "").strip()) and reasoning not in text:
            way_out = "write it into the reply's content, with the marks that the model puts around it"
            raise RendererError(f"the chat template does not show reasoning_content: {way_out}")
        return text, end

    def following(self, token_ids: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> list[int] | None:
        """Return the tokens after ``token_ids`` in the rendering of ``messages``; ``None`` where the two differ."""
        text, old = self._text(messages, tools), self._decode(token_ids)
        if text.marks is not None or not text.marked.startswith(old):
            return None
        return self._control.encode(text.after(len(old)))

    def observed_in_bridge(
        self, new: Sequence[Message], answers: int, *, after: int | None, tools: Tools = None
    ) -> list[bool]:
        """Return which tokens of :meth:`bridge` are of the texts of the last ``answers`` messages of ``new``.

        Of those with one of ``observed_roles``; no token that is in part the template's. RendererError: the template
        changes a text.
        """
        key = json.dumps((new, answers, tools))
        if (mask := self._observed.get(key)) is None:
            talk = (user(_QUESTION), assistant(_REPLY), *new)
            text, spans = self._text_and_spans(talk, answers, tools)
            cut = place_of(_REPLY, text.marked) + len(_REPLY)
            mask = self._control.inside(text.after(cut), [(begin - cut, end - cut) for begin, end in spans])
            _remember(self._observed, key, mask, _KNOWN_BRIDGES)
        return mask[len(mask) - len(self.bridge(new, after=after, tools=tools)) :]

    def observed_after(
        self, token_ids: Sequence[int], messages: Sequence[Message], answers: int, tools: Tools = None
    ) -> list[bool]:
        """Return which tokens of :meth:`following` are such, or of :meth:`render` where ``token_ids`` are none."""
        text, spans = self._text_and_spans(messages, answers, tools)
        cut = len(self._decode(token_ids)) if token_ids else 0
        return self._control.inside(text.after(cut), [(begin - cut, end - cut) for begin, end in spans])

    def warn_once(self, about: str, message: str) -> None:
        """Log ``message`` as a warning, once for each ``about``."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)

    # ------------------------------------------------------------------ text

    def _text(self, messages: Sequence[Message], tools: Tools, *, generate: bool = True) -> MarkedText:
        (*marked, marked_tools), marks = self._marked(messages, tools)
        return MarkedText(self._shown(marked, marked_tools, generate=generate), marks)

    def _marked(self, messages: Sequence[Message], tools: Tools) -> tuple[list[Any], re.Pattern[str] | None]:
        """Return the messages, and at last the tools, with marks for spelled control tokens, and their pattern."""
        every = self._control.pattern
        values: list[tuple[Any, re.Pattern[str]]] = [
            (message, self._turn_special if message["role"] == "assistant" else every) for message in messages
        ]
        return self._control.mark([*values, (tools, every)])

    def _shown(self, messages: Sequence[Message], tools: Tools, *, generate: bool = True) -> str:
        try:
            return self._show(self.forms.put(messages), tools, generate=generate)
        except RejectedError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RejectedError(f"the chat template rejects the conversation ({roles}): {error}") from error

    def _text_and_spans(self, messages: Sequence[Message], answers: int, tools: Tools) -> tuple[MarkedText, list[Span]]:
        """Return the rendering, and where the observed texts among its last ``answers`` messages stand in it."""
        (*marked, marked_tools), marks = self._marked(messages, tools)
        rendered = self._shown(marked, marked_tools)
        last = {number: marked[number] for number in range(len(marked) - answers, len(marked))}
        sentinels = with_sentinels(
            {number: message for number, message in last.items() if message["role"] in self.observed_roles},
            nowhere_in=rendered,
        )
        probe = [message.copy() for message in marked]
        for number, sentinel in sentinels.items():
            probe[number]["content"] = sentinel
        texts = {sentinel: text_of(marked[number]) for number, sentinel in sentinels.items()}
        spans = spans_of(texts, self._shown(probe, marked_tools), rendered)
        if spans is None:
            roles = ", ".join(sorted({messages[number]["role"] for number in sentinels}))
            raise RendererError(
                f"the chat template changes the text of messages ({roles}), so that its tokens cannot be told from "
                "the template's own: leave the role out of actor.observation_roles, set actor.observation_loss=0, or "
                "use a model whose template shows such texts as they are"
            )
        return MarkedText(rendered, marks), spans

    def _bridge_text(self, new: Messages, tools: Tools) -> MarkedText:
        if not new:
            raise RendererError("there is nothing to bridge to: no message follows the reply")
        talk = (user(_QUESTION), assistant(_REPLY), *new)
        self.forms.check(talk, tools)
        text = self._text(talk, tools)
        return text.after(place_of(_REPLY, text.marked) + len(_REPLY))

    def _turn_end(self, text: MarkedText) -> int:
        """Return the special token that ends the turn before a bridge."""
        first = self._control.pattern.search(text.marked)
        if first is None:
            raise RendererError(
                f"the chat template puts no special token between an assistant's reply and what follows "
                f"({self._control.plain(text)!r}), so no reply can end there by itself: use a template that ends turns "
                f"with a special token of the tokenizer, which has {', '.join(self._control.ids) or 'none'}"
            )
        return self._control.ids[first[0]]

    def _refuse_channels(self, bridge: MarkedText) -> None:
        """Refuse a template whose replies begin with control tokens that the generation prompt does not have."""
        talk = self._text((user(_QUESTION), assistant(_REPLY), user(_QUESTION)), None).marked
        before, prompt = talk[: place_of(_REPLY, talk)], self._text((user(_QUESTION),), None).marked
        if own := Counter(self._control.pattern.findall(before)) - Counter(self._control.pattern.findall(prompt)):
            end = self._control.pattern.search(bridge.marked)
            raise RendererError(
                f"the chat template puts {' '.join(own)} between the generation prompt and a reply's text: a model of "
                "this template writes these markers itself, says several messages in a turn (channels), and ends each "
                f"with its own token, so that {end[0] if end else 'a stop token'} does not mean that the turn is over. "
                "Replies of several messages cannot be played: use a model whose template has one message a turn"
            )

    # ------------------------------------------------------------------ tokens

    def _decode(self, token_ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    # ------------------------------------------------------------------ the proof

    def _prove(self) -> bool:
        """Play the probe conversations by bridging; return whether any of them differs from a whole rendering.

        A probe that the template does not show (tools) proves nothing: such a conversation is an error when it comes.
        """
        differ = []
        for name, conversation, tools in self._probes():
            try:
                if not self._agrees(conversation, tools, exactly=name == "plain text"):
                    differ.append(name)
            except RejectedError as error:
                logger.debug("probe conversation %r: %s", name, error)
        if differ:
            logger.info("the chat template rewrites history in these probe conversations: %s", ", ".join(differ))
        return bool(differ)

    def _prove_observed(self) -> None:
        """Find the texts of probe messages of each observed role; RendererError where that is not possible."""
        arguments: ToolCall = {"id": "zqcall001", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
        result = tool(_OBSERVED, "zqcall001", "probe")
        question = user(_QUESTION)
        probes: list[Messages] = [
            (question, assistant(_REPLY), user(_OBSERVED)),
            (question, assistant(_REPLY), result),
            (question, assistant("", [arguments]), result),
        ]
        for talk in probes:
            if talk[-1]["role"] in self.observed_roles:
                with contextlib.suppress(RejectedError):  # such a conversation is an error when it comes
                    self.forms.check(talk)
                    self.observed_after([], talk, 1)

    def _probes(self) -> Iterator[tuple[str, Messages, Tools]]:
        def talk(*replies: str, query: str = "Is it so?", head: Messages = ()) -> Messages:
            return (*head, user(query), *(m for reply in replies for m in (assistant(reply), user(query))))

        yield "plain text", talk("Yes.", "No, it is not.", "Perhaps"), None
        yield "system message", talk("Yes.", "No.", head=(system("Be brief."),)), None
        yield "tools", talk("Yes.", "No."), PROBE_TOOLS
        answered = (tool("42", "zqcall001", "probe"), assistant("It is 42."), user("Thanks."))
        again = (assistant("Look again."), tool("41", "zqcall002", "probe"), tool("43", "zqcall003", "probe"))
        for tools in (None, PROBE_TOOLS):
            yield "tool messages", (user("What is x?"), assistant("Look it up."), *answered, *again), tools
        yield "unicode", talk("café 数学 \U0001f642\u200d", "ß", query="¿Qué? \U0001f9ee"), None
        yield "empty text", talk("", "Yes.", query=""), None
        for edge in ("\n", " ", "\n\n"):
            yield f"replies that start with {edge!r}", talk(f"{edge}Yes.", f"{edge}No."), None
            yield f"replies that end with {edge!r}", talk(f"Yes.{edge}", f"No.{edge}"), None
        yield "questions with newlines around", talk("Yes.", "No.", query="\n\n Is it? \n"), None
        yield "reasoning in replies", talk("<think>\nHm.\n</think>\n\nYes.", "<think>\nOh.\n</think>\n\nNo."), None
        for name in self._control.ids:
            if self._turn_special.fullmatch(name):
                yield f"{name} in questions", talk("Yes.", "No.", query=f"What does {name} mean?"), None
        source = self._tokenizer.get_chat_template(tools=None)
        for name in self._tokenizer.get_added_vocab():
            if name in source and not self._turn_special.fullmatch(name):
                yield f"{name} in replies", talk(f"Hm.{name}Yes.", f"Oh.{name}No."), None

    def _agrees(self, conversation: Messages, tools: Tools, *, exactly: bool) -> bool:
        """Return whether opening + replies + bridges equals the whole conversation's text at each generation point."""
        replies = [i for i, message in enumerate(conversation) if message["role"] == "assistant"]
        tokens = self.render(conversation[: replies[0]], tools)
        for i, following in zip(replies, [*replies[1:], len(conversation)], strict=True):
            new = conversation[i + 1 : following]
            text = self._bridge_text(new, tools)
            end = self._turn_end(text)
            cut = self._control.encode(text)
            reply = self._continuation(conversation[:i], text_of(conversation[i]), tools)
            whole = self.render(conversation[:following], tools)
            stopped = [*tokens, *reply, end, *self.bridge(new, after=end, tools=tools)]
            tokens = [*tokens, *reply, *cut]
            for joined in (tokens,) if stopped == tokens else (tokens, stopped):
                if self.rewritten(joined, conversation[:following], tools) is not None:
                    return False
            if cut[0] == end and whole[-len(cut) :] != cut:
                raise RendererError(
                    f"the tokens of {self._control.plain(text)!r} differ between a bridge and a whole rendering: the "
                    f"tokenizer looks over its special token {cut[0]}; bridging cannot be exact with it"
                )
            if exactly and tokens != whole:
                self.warn_once(
                    "merge",
                    "the tokenizer merges the end of the chat template's generation prompt with the start of a reply: "
                    "a whole conversation tokenises otherwise than it is played (the tokens are kept as sampled)",
                )
        return True

    def _continuation(self, messages: Messages, reply: str, tools: Tools) -> list[int]:
        """Return ``reply`` as tokens a model samples: those of the text it continues, where that splits there."""
        text = self._text(messages, tools)
        opening = self._control.encode(text)
        both = self._control.encode(MarkedText(text.marked + reply, text.marks))
        return both[len(opening) :] if both[: len(opening)] == opening else self._control.within(reply)


def _remember(cache: dict[str, _T], key: str, value: _T, most: int) -> None:
    if len(cache) >= most:
        cache.clear()
    cache[key] = value
