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

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from textenvs.env import LARGEST
from textenvs.messages import Message, Messages, assistant, clean_text, system, text_of, tool, user

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
from ..engines.base import Generation
from ..trajectory import Status, Trajectory, is_reward

__all__ = ["Renderer", "RendererError", "Tools"]

logger = logging.getLogger(__name__)

# The probe conversation. Plain words: a template that trims or splits replies leaves them alone.
_QUESTION, _REPLY = "zqquestionqz", "zqreplyqz"

# Kept at most, to be looked up instead of rendered: bridges, and openings (their siblings come soon or never).
_KNOWN_BRIDGES, _KNOWN_OPENINGS = 4096, 256
_T = TypeVar("_T")


class Renderer:
    """Renders conversations as token ids for one ``tokenizer`` and its chat template; or RendererError.

    ``template_kwargs`` are variables for the template, in every rendering. ``stop_token_ids``, the argument's and the
    template's and tokenizer's own, end a reply. ``rewrites_history``: the template changes earlier turns, at least for
    some conversations. ``forms``: the form of each kind of message for the template. ``reasoning``: what the template
    supports of the model's private reasoning.
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

    def warn_once(self, about: str, message: str) -> None:
        """Log ``message`` as a warning, once for each ``about``."""
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(message)

    # ------------------------------------------------------------------ text

    def _text(self, messages: Sequence[Message], tools: Tools, *, generate: bool = True) -> MarkedText:
        every = self._control.pattern
        values: list[tuple[Any, re.Pattern[str]]] = [
            (message, self._turn_special if message["role"] == "assistant" else every) for message in messages
        ]
        (*marked, marked_tools), marks = self._control.mark([*values, (tools, every)])
        try:
            return MarkedText(self._show(self.forms.put(marked), marked_tools, generate=generate), marks)
        except RejectedError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise RejectedError(f"the chat template rejects the conversation ({roles}): {error}") from error

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
            for joined in (tokens, stopped):
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


class EpisodeTokens:
    """Tokens of one growing episode, begun with ``opening``: contexts, sampled replies, and turns' rewards. No I/O.

    ``engine.generate(tokens.context)`` -> :meth:`reply` -> ``env.step`` -> :meth:`reward` -> :meth:`observe` ... ->
    :meth:`finish`. Invariants:

    * sampled tokens are appended once and never changed, moved or tokenised again;
    * all others have action mask 0: opening, bridges, and a whole new rendering (a new *segment*, which leaves the
      tokens so far as they are) where history was rewritten;
    * a turn exists from its first sampled token on; it has one reward.

    ``tools`` are JSON schemas; ``names`` are ``episode_id``, ``group_id``, ``task_key`` and ``data_source`` of the
    trajectory; of a fork, also ``forked_from`` and ``forked_turn``. RendererError: the template rejects the opening.
    """

    def __init__(self, renderer: Renderer, opening: Sequence[Message], *, tools: Tools = None, **names: Any) -> None:
        self._renderer, self._tools, self._names = renderer, tools, names
        self._conversation: Messages = tuple(opening)  # as the environment last returned it
        self._history: Messages = tuple(opening)  # the same with our replies as they were sampled
        self._begin()
        self._show(renderer.render(opening, tools))

    def _begin(self) -> None:
        self._token_ids: list[int] = []
        self._turn_id: list[int] = []
        self._weight_version: list[int] = []
        self._logprobs: list[float] = []
        self._kept_ids: list[NDArray[np.int32]] = []
        self._kept_counts: list[int] = []
        self._segment_starts: list[int] = [0]
        self._turn_start = 0
        self._text = ""  # the text of the turn that is being played, or was played last
        self._message: Message | None = None  # the same as a message with calls or reasoning, if any
        self._rewards: list[float] = []
        self._terms: list[dict[str, float]] = []
        self.num_turns = 0
        self.oldest_version: int | None = None
        # ask: at a generation point. cut: a reply was aborted and may continue. told: it is complete.
        # over: nothing can follow.
        self._phase: Literal["ask", "cut", "told", "over"] = "ask"

    @property
    def context(self) -> list[int]:
        """The engine's context now: the current segment, which ends at a generation point or in a reply cut off."""
        return self._token_ids[self._segment_starts[-1] :]

    @property
    def context_size(self) -> int:
        return len(self._token_ids) - self._segment_starts[-1]

    def fork(self, **names: Any) -> EpisodeTokens:
        """Return a new episode that begins here: what the model sees now is its context, not trained on."""
        if self._phase == "cut":
            raise RuntimeError("fork: a reply is not complete, and another episode cannot begin in the middle of one")
        child = EpisodeTokens.__new__(EpisodeTokens)
        child._renderer, child._tools, child._names = self._renderer, self._tools, names
        child._conversation, child._history = self._conversation, self._history
        child._begin()
        child._show(self.context)
        child._phase, child._text = self._phase, self._text
        return child

    def reply(self, generation: Generation, message: Message | None = None) -> str:
        """Append the engine's tokens; return their text for the environment, with the reasoning's begin mark.

        ``message`` is how the chat template is to show the reply from now on, where it has calls or reasoning apart.

        After an abort (``finish_reason == "abort"``), tokens that are generated from :attr:`context` join the same
        turn, whose whole text is then returned. RuntimeError: it is not the policy's turn. ``ValueError``: arrays
        differ in length, or it ended by itself without a token.
        """
        if self._phase not in ("ask", "cut"):
            raise RuntimeError("reply: there is no generation point; observe() the environment's answer first")
        ids = generation.token_ids.tolist()
        if not len(ids) == len(generation.logprobs) == len(generation.weight_version):
            raise ValueError(
                f"reply: {len(ids)} tokens, {len(generation.logprobs)} log-probabilities and "
                f"{len(generation.weight_version)} weight versions; the engine must give one of each a token"
            )
        if not ids and generation.finish_reason != "abort":
            raise ValueError(f"reply: no token, yet finish_reason is {generation.finish_reason!r}; a turn needs one")
        if self._phase == "ask":
            self._turn_start = len(self._token_ids)
            self.num_turns += bool(ids)
        if ids:
            versions = generation.weight_version.tolist()
            self.oldest_version = min(versions if self.oldest_version is None else (self.oldest_version, *versions))
            self._append(ids, self.num_turns - 1, versions, *self._kept(generation))
            self._phase = "cut"
        if generation.finish_reason != "abort":
            self._phase = "told"
        self._text = self._renderer.decode(self._token_ids[self._turn_start :])
        self._message = message
        cut = not ids or ids[-1] not in self._renderer.stop_token_ids
        return self._renderer.reasoning.reply(self._text, cut=cut)

    def reward(self, reward: float, terms: Mapping[str, float]) -> None:
        """Record the reward of the turn just played, and its parts; see :func:`~trainers.trajectory.is_reward`."""
        if not is_reward(reward):
            raise ValueError(
                f"reward: turn {len(self._rewards)} earned {reward}; a reward must be finite, at most {LARGEST:g}"
            )
        if len(self._rewards) == self.num_turns:
            raise RuntimeError("reward: there is no turn without a reward (a reply without tokens is no turn)")
        self._rewards.append(float(reward))
        self._terms.append({name: float(value) for name, value in terms.items()})

    def add_reward(self, turn: int, terms: Mapping[str, float]) -> None:
        """Add terms to a rewarded turn; a term that it already has grows."""
        if not 0 <= turn < len(self._rewards):
            raise RuntimeError(f"add_reward: turn {turn} has no reward yet, which others could add to")
        if bad := {name: value for name, value in terms.items() if not is_reward(value)}:
            raise ValueError(f"add_reward: turn {turn} earned {bad}; rewards must be finite, at most {LARGEST:g}")
        self._rewards[turn] += math.fsum(terms.values())
        for name, value in terms.items():
            self._terms[turn][name] = self._terms[turn].get(name, 0.0) + float(value)

    def observe(self, conversation: Sequence[Message]) -> None:
        """Take the environment's whole conversation after the last reply, up to the next generation point.

        What follows our reply is bridged; where history was rewritten, the whole is rendered anew as a new segment.
        RendererError: the chat template rejects the conversation.
        """
        if self._phase not in ("told", "cut"):
            raise RuntimeError("observe: the policy has not replied since the last observation")
        conversation = tuple(conversation)
        before, new = conversation[: len(self._conversation)], conversation[len(self._conversation) :]
        if before == self._conversation and new and new[0]["role"] == "assistant":
            self._add_messages(new[1:])
        else:
            self._renderer.warn_once(
                "environment",
                "an environment changed earlier messages of its conversation: where one does, the conversation is "
                "rendered anew as a new segment of the trajectory",
            )
            self._history = conversation
            self._fork(self._renderer.render(conversation, self._tools))
        self._conversation = conversation

    def finish(
        self,
        *,
        terminated: bool,
        truncated: bool,
        status: Status,
        stop: str | None = None,
        error: str | None = None,
        metrics: Mapping[str, float] | None = None,
        messages: Sequence[Message] | None = None,
        **fields: Any,
    ) -> Trajectory:
        """Return the episode as a trajectory (see there for the arguments and ``fields``); possible at any moment.

        A terminated episode ends with its last sampled token. To keep the state that a truncated one was cut in,
        ``observe`` first. A last turn that was never rewarded gets 0 if the episode failed; else it is a
        ``ValueError``.
        """
        rewards, terms = list(self._rewards), list(self._terms)
        if len(rewards) < self.num_turns:
            if status.trainable:
                raise ValueError(f"finish: turn {len(rewards)} was never rewarded, but the status is {status}")
            rewards.append(0.0)
            terms.append({})
        if messages is None:
            messages = self._history if self._phase in ("ask", "over") else (*self._history, assistant(self._text))
        size = len(self._token_ids)
        if terminated:
            while size and self._turn_id[size - 1] < 0:
                size -= 1
        turn_id = np.array(self._turn_id[:size], np.int32)
        return Trajectory(
            token_ids=np.array(self._token_ids[:size], np.int32),
            action_mask=turn_id >= 0,
            logprobs=np.array(self._logprobs[:size], np.float32),
            weight_version=np.array(self._weight_version[:size], np.int32),
            turn_id=turn_id,
            turn_rewards=np.array(rewards, np.float64),
            turn_terms=tuple(terms),
            terminated=terminated,
            truncated=truncated,
            status=status,
            stop=stop,
            segment_starts=np.array([start for start in self._segment_starts if start < size], np.int32),
            kept_ids=np.concatenate([np.zeros(0, np.int32), *self._kept_ids]),
            kept_counts=np.array(self._kept_counts[:size] if self._kept_ids else (), np.int32),
            messages=tuple(messages),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            error=None if error is None else clean_text(error),
            **self._names,
            **fields,
        )

    def _kept(self, generation: Generation) -> tuple[list[float], list[int]]:
        """Return log-probabilities and counts of kept tokens: over the kept ones, where the engine reports these."""
        if generation.kept_counts is None:
            return generation.logprobs.tolist(), [0] * len(generation.token_ids)
        assert generation.kept_ids is not None
        assert generation.sampled_logprobs is not None
        self._kept_ids.append(generation.kept_ids)
        logprobs = np.where(generation.kept_counts > 0, generation.sampled_logprobs, generation.logprobs)
        return logprobs.tolist(), generation.kept_counts.tolist()

    def _add_messages(self, new: Messages) -> None:
        # The history has the replies as they were sampled, not as the environment parsed them.
        self._history = (*self._history, self._message or assistant(self._text), *new)
        if not new:
            self._phase = "over"
            return
        if self._message is not None:
            following = self._renderer.following(self.context, self._history, self._tools)
            if following is None:
                self._fork(self._renderer.render(self._history, self._tools))
            else:
                self._show(following)
            return
        bridge = self._renderer.bridge(new, after=self._token_ids[-1], tools=self._tools)
        anew = None
        if self._renderer.rewrites_history:
            anew = self._renderer.rewritten([*self.context, *bridge], self._history, self._tools)
        if anew is None:
            self._show(bridge)
        else:
            self._renderer.warn_once(
                "template",
                "the chat template rewrites earlier turns (drops reasoning or trims replies, say): where it does, the "
                "conversation is rendered anew as a new segment of the trajectory",
            )
            self._fork(anew)

    def _fork(self, token_ids: list[int]) -> None:
        self._segment_starts.append(len(self._token_ids))
        self._show(token_ids)

    def _show(self, token_ids: list[int]) -> None:
        count = len(token_ids)
        self._append(token_ids, -1, [-1] * count, [0.0] * count, [0] * count)
        self._phase = "ask"

    def _append(
        self, ids: list[int], turn: int, versions: list[int], logprobs: list[float], kept_counts: list[int]
    ) -> None:
        self._token_ids += ids
        self._turn_id += [turn] * len(ids)
        self._weight_version += versions
        self._logprobs += logprobs
        self._kept_counts += kept_counts
