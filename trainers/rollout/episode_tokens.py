"""The tokens of one episode, built up from its messages and replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from textenvs.env import LARGEST
from textenvs.messages import Message, Messages, clean_text
from textenvs.users.moves import Move

from ..chat_template import Tools
from ..engines.base import Generation
from ..trajectory import Status, Trajectory, is_reward
from .contexts import Boundary, Context, Piece, Reply, arrays_of
from .renderer import Renderer


class EpisodeTokens:
    """Tokens of one growing episode, begun with ``opening``: contexts, sampled replies, and turns' rewards. No I/O.

    ``engine.generate(tokens.context)`` -> :meth:`reply` -> ``env.step`` -> :meth:`reward` -> :meth:`observe` ... ->
    :meth:`finish`. Invariants:

    * sampled tokens are appended once and never changed, moved or tokenised again;
    * all others have action mask 0: what a context begins with, and bridges;
    * an observation continues the context that it extends, whichever was used last; any other begins a new context
      (:meth:`observe`);
    * a turn exists from its first sampled token on; it has one reward;
    * where the renderer has ``observed_roles``, the tokens of what the environment answered to the last reply are
      marked once, in the context where they first stand (:meth:`_answers`).

    ``tools`` are JSON schemas; ``names`` are ``episode_id``, ``group_id``, ``task_key``, ``data_source`` and
    ``has_success`` of the trajectory; of a fork, also ``forked_from`` and ``forked_turn``. RendererError: the template
    rejects the opening.
    """

    def __init__(self, renderer: Renderer, opening: Sequence[Message], *, tools: Tools = None, **names: Any) -> None:
        self._renderer, self._tools, self._names = renderer, tools, names
        opening = tuple(opening)
        self._contexts = [Context(renderer.render(opening, tools), opening, opening)]  # the one used last at the end
        self._answered: list[Reply] = []  # replies whose answers are marked
        self._begin()

    def _begin(self) -> None:
        self._turn_start = 0  # in the current context
        self._rewards: list[float] = []
        self._terms: list[dict[str, float]] = []
        self.moves: dict[int, Move] = {}  #: what the user did about replies, by turn, where that is known
        self._teacher: dict[int, tuple[int, list[int]]] = {}  # by turn: tokens of its context, then those of its own
        self.num_turns = 0
        self.oldest_version: int | None = None
        self.switched = False  #: whether the last observation is in another context than the reply before
        # ask: at a generation point. cut: a reply was aborted and may continue. told: it is complete.
        # over: nothing can follow.
        self._phase: Literal["ask", "cut", "told", "over"] = "ask"

    @property
    def context(self) -> list[int]:
        """The engine's context now: the current one, which ends at a generation point or in a reply cut off."""
        return list(self._contexts[-1].token_ids)

    @property
    def context_size(self) -> int:
        return len(self._contexts[-1].token_ids)

    @property
    def response_tokens(self) -> int:
        """The tokens by which all contexts have grown: every sampled one once, and what followed within a context."""
        return sum(len(context.token_ids) - context.begun for context in self._contexts)

    @property
    def prompt_size(self) -> int:
        """Number of tokens of the current context before the first one that it sampled."""
        *_, current = self._contexts
        return current.pieces[0].start if current.pieces else len(current.token_ids)

    def fork(self, **names: Any) -> EpisodeTokens:
        """Return a new episode that begins here: what the model has seen so far is its context, not trained on.

        It has all contexts, as the environment may go back to any of them.
        """
        if self._phase == "cut":
            raise RuntimeError("fork: a reply is not complete, and another episode cannot begin in the middle of one")
        child = EpisodeTokens.__new__(EpisodeTokens)
        child._renderer, child._tools, child._names = self._renderer, self._tools, names
        child._contexts, child._answered = [context.fork() for context in self._contexts], list(self._answered)
        child._begin()
        child._phase, child._turn_start = self._phase, self._turn_start
        return child

    def reply(self, generation: Generation, message: Message | None = None) -> str:
        """Append the engine's tokens; return their text for the environment, with the reasoning's begin mark.

        ``message`` is how the environment will show the reply, where that is known; the chat template then shows its
        calls and its reasoning apart from now on.

        After an abort (``finish_reason == "abort"``), tokens that are generated from :attr:`context` join the same
        turn, whose whole text is then returned. RuntimeError: it is not the policy's turn. ``ValueError``: arrays
        differ in length, or it ended by itself without a token.
        """
        if self._phase not in ("ask", "cut"):
            raise RuntimeError("reply: there is no generation point; observe() the environment's answer first")
        ids, context = generation.token_ids.tolist(), self._contexts[-1]
        if not len(ids) == len(generation.logprobs) == len(generation.weight_version):
            raise ValueError(
                f"reply: {len(ids)} tokens, {len(generation.logprobs)} log-probabilities and "
                f"{len(generation.weight_version)} weight versions; the engine must give one of each a token"
            )
        if not ids and generation.finish_reason != "abort":
            raise ValueError(f"reply: no token, yet finish_reason is {generation.finish_reason!r}; a turn needs one")
        if self._phase == "ask":
            self._turn_start = len(context.token_ids)
            self.num_turns += bool(ids)
        if ids:
            versions = generation.weight_version.tolist()
            self.oldest_version = min(versions if self.oldest_version is None else (self.oldest_version, *versions))
            context.pieces.append(Piece(self.num_turns - 1, len(context.token_ids), generation))
            context.token_ids += ids
            self._phase = "cut"
        if generation.finish_reason != "abort":
            self._phase = "told"
        text = self._renderer.decode(context.token_ids[self._turn_start :])
        context.reply = None if self._phase == "ask" else Reply(text, message)
        cut = not ids or ids[-1] not in self._renderer.stop_token_ids
        return self._renderer.reasoning.reply(text, cut=cut)

    def teach(self, show: Callable[[Messages], Messages]) -> None:
        """Note the context in which a teacher is to score the next reply: what ``show`` makes of the conversation.

        ``show`` may change the last message alone. What was said before it has the same tokens as for the policy, the
        sampled replies among them. RuntimeError: it is not the policy's turn. RendererError: the chat template rejects
        what a teacher would be shown.
        """
        if self._phase != "ask":
            raise RuntimeError("teach: there is no reply to come; observe() the environment's answer first")
        context = self._contexts[-1]
        history, own = show(context.history), context.token_ids
        if context.boundaries:
            at = context.boundaries[-1]
            start, new = own[: at.tokens], history[at.messages :]
            following = self._following(start, history, new, at.reply.structured, answers=0)
            whole = following.token_ids if following.whole else [*start, *following.token_ids]
        else:
            whole = self._renderer.render(history, self._tools)
        differ = (place for place, pair in enumerate(zip(own, whole, strict=False)) if pair[0] != pair[1])
        shared = next(differ, min(len(own), len(whole)))
        self._teacher[self.num_turns] = shared, whole[shared:]

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

    def name_move(self, turn: int, move: Move) -> None:
        """Record what the user did about a turn's reply."""
        if not 0 <= turn < self.num_turns:
            raise RuntimeError(f"name_move: there is no turn {turn}")
        self.moves[turn] = move

    def observe(self, conversation: Sequence[Message]) -> None:
        """Take the environment's next observation, up to the next generation point.

        If it extends an earlier observation of this episode and our reply to it, that context continues: what follows
        the reply is bridged. The longest such context is chosen, and of equal ones that which was used last. Otherwise
        a new context begins. It has the tokens of an earlier one up to the last reply that both conversations have, and
        bridges from there on; if they have none in common, it is rendered as a whole.

        Where the chat template rewrites earlier turns, the whole is rendered anew as a new context.
        RendererError: the chat template rejects the conversation.
        """
        if self._phase not in ("told", "cut"):
            raise RuntimeError("observe: the policy has not replied since the last observation")
        conversation = tuple(conversation)
        *_, last = self._contexts
        context, rank = self._continued(conversation)
        # A single context that is extended has every reply. Of several, one that went on otherwise may have more.
        branch = self._branched(conversation) if context is None or len(self._contexts) > 1 else None
        answers = self._answers(conversation)
        if context is not None and (branch is None or (branch[1].messages, -branch[1].distance) <= rank):
            self._continue(context, conversation, answers)
        else:
            if context is None and last.replied_by(conversation) is not None:
                self._renderer.warn_once(
                    "edited",
                    "an environment shows another reply than the model's in its place: it is context from then on, and "
                    "the conversation goes on in a new context of the trajectory",
                )
            context = self._begun(conversation, branch, answers)
            self._contexts.append(context)
            self._phase = "ask"
        self.switched = context is not last

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
        *_, current = self._contexts
        if messages is None:
            messages = current.history if current.reply is None else (*current.history, current.reply.shown)
        # A context that this episode sampled nothing in is there for its last state alone.
        contexts = [context for context in self._contexts if context.pieces or (context is current and not terminated)]
        if terminated:
            contexts.sort(key=lambda context: context.pieces[-1].turn)
        arrays: Any = arrays_of(contexts, to_last_reply=terminated, observed=bool(self._renderer.observed_roles))
        return Trajectory(
            **arrays,
            **self._teacher_arrays(),
            turn_rewards=np.array(rewards, np.float64),
            turn_terms=tuple(terms),
            turn_moves=tuple(self.moves.get(turn, "") for turn in range(self.num_turns)) if self.moves else (),
            terminated=terminated,
            truncated=truncated,
            status=status,
            stop=stop,
            messages=tuple(messages),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            error=None if error is None else clean_text(error),
            **self._names,
            **fields,
        )

    def _teacher_arrays(self) -> Mapping[str, Any]:
        """Return the trajectory's arrays of the contexts that a teacher scores its turns in, where there are any."""
        if not self._teacher:
            return {}
        shown = [self._teacher.get(turn, (-1, [])) for turn in range(self.num_turns)]
        return {
            "teacher_shared": np.array([shared for shared, _ in shown], np.int32),
            "teacher_counts": np.array([len(ids) for _, ids in shown], np.int32),
            "teacher_ids": np.array([token for _, ids in shown for token in ids], np.int32),
        }

    def _continued(self, conversation: Messages) -> tuple[Context | None, tuple[int, int]]:
        """Return the context that this conversation extends, if any, by how many messages, and minus the distance."""
        best: Context | None = None
        rank = (0, 0)
        for context in reversed(self._contexts):
            if context.reply is None or (message := context.replied_by(conversation)) is None:
                continue
            # Several replies to one conversation are told apart by their text.
            distance = context.reply.distance(message)
            if distance is not None and (own := (len(context.conversation) + 1, -distance)) > rank:
                best, rank = context, own
        return best, rank

    def _answers(self, conversation: Messages) -> int:
        """Return how many messages at the end of a conversation are the first answer to a sampled reply.

        They follow the last assistant's message, which must be a reply that nothing has answered. The opening of the
        episode, or of a context that shows no such reply, answers nothing; nor does what a context shows again.
        """
        if not self._renderer.observed_roles:
            return 0
        last = next((i for i in reversed(range(len(conversation))) if conversation[i]["role"] == "assistant"), -1)
        answers = len(conversation) - last - 1
        if last < 0 or not answers:
            return 0
        for context in reversed(self._contexts):
            reply = context.reply
            if reply is None or any(reply is other for other in self._answered):
                continue
            if reply.distance(conversation[last]) is not None:
                self._answered.append(reply)
                return answers
        return 0

    def _continue(self, context: Context, conversation: Messages, answers: int) -> None:
        size = len(context.conversation) + 1
        new = conversation[size:]
        assert context.reply is not None
        history, structured = (*context.history, context.reply.shown, *new), context.reply.structured
        following = self._following(context.token_ids, history, new, structured, answers) if new else _Following([])
        context.settle(conversation[size - 1])
        if following.whole:
            begun, observed = len(following.token_ids) - following.new, following.observed
            context = Context(following.token_ids, conversation, history, begun=begun, observed=observed)
            self._contexts.append(context)
        else:
            self._contexts.remove(context)  # it was used last now
            self._contexts.append(context)
            context.observed += [len(context.token_ids) + place for place in following.observed]
            context.token_ids += following.token_ids
            context.conversation, context.history = conversation, history
        self._phase = "ask" if new else "over"

    def _branched(self, conversation: Messages) -> tuple[Context, Boundary] | None:
        """Return the context with the last reply that this conversation has before its end, and where; or ``None``."""
        best: tuple[Context, Boundary] | None = None
        for context in reversed(self._contexts):
            if not context.boundaries:
                continue
            common = min(context.common(conversation), len(conversation) - 1)
            at = next((at for at in reversed(context.boundaries) if at.messages <= common), None)
            if at is None:
                continue
            if best is None or (at.messages, -at.distance) > (best[1].messages, -best[1].distance):
                best = context, at
        return best

    def _begun(self, conversation: Messages, branch: tuple[Context, Boundary] | None, answers: int) -> Context:
        """Return a new context for a conversation, after the reply that it branches off from."""
        if branch is None:
            token_ids = self._renderer.render(conversation, self._tools)
            return Context(token_ids, conversation, conversation, observed=self._observed(conversation, answers))
        (source, at), new = branch, conversation[branch[1].messages :]
        context = source.branch(at)
        context.conversation, context.history = conversation, (*context.history, *new)
        following = self._following(context.token_ids, context.history, new, at.reply.structured, answers)
        if following.whole:
            return Context(following.token_ids, conversation, context.history, observed=following.observed)
        context.observed += [len(context.token_ids) + place for place in following.observed]
        context.token_ids += following.token_ids
        context.begun = len(context.token_ids)
        return context

    def _observed(self, history: Messages, answers: int, after: Sequence[int] = ()) -> list[int]:
        """Return the places of the tokens of the last messages in the rendering of ``history``, from ``after`` on."""
        if not answers:
            return []
        mask = self._renderer.observed_after(after, history, answers, self._tools)
        return np.flatnonzero(mask).tolist()

    def _following(
        self, token_ids: list[int], history: Messages, new: Messages, structured: bool, answers: int
    ) -> _Following:
        """Return the tokens of ``new`` after ``token_ids``, or of all of ``history``; ``answers`` are observed."""
        if structured:
            following = self._renderer.following(token_ids, history, self._tools)
            if following is not None:
                return _Following(following, self._observed(history, answers, token_ids))
            whole = self._renderer.render(history, self._tools)
            return _Following(whole, self._observed(history, answers), whole=True)
        after = token_ids[-1]
        bridge = self._renderer.bridge(new, after=after, tools=self._tools)
        if self._renderer.rewrites_history:
            anew = self._renderer.rewritten([*token_ids, *bridge], history, self._tools)
            if anew is not None:
                self._renderer.warn_once(
                    "template",
                    "the chat template rewrites earlier turns (drops reasoning or trims replies, say): where it does, "
                    "the conversation is rendered anew as a new context of the trajectory",
                )
                return _Following(anew, self._observed(history, answers), whole=True, new=len(bridge))
        if not answers:
            return _Following(bridge)
        mask = self._renderer.observed_in_bridge(new, answers, after=after, tools=self._tools)
        return _Following(bridge, np.flatnonzero(mask).tolist())


@dataclass(frozen=True)
class _Following:
    """The tokens of an observation."""

    token_ids: list[int]
    observed: list[int] = field(default_factory=list)  #: the places of those that the environment answered
    whole: bool = False  #: they are of the whole conversation, in place of those before
    new: int = 0  #: if whole: how many of them are of the new messages, 0 where that is not known
