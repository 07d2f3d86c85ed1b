"""Games of the TextArena package: alone, or against a scripted opponent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...env import EnvironmentFailure, EpisodeState, TextEnv, Turn
from ...messages import Message, user, visible_text
from ...options import NonNegativeInt, checked
from ...task import Split, Task
from .attacks import ATTACKS
from .players import Opponent, careless_move, expert_move, opponent_move
from .tasks import GameFault, LiveGame, TextArenaTasks, base_of, players_of, seed_of

# A longer move is cut at its beginning: games look for the move with expressions that are slow on long texts.
_MAX_CHARS = 2_000

#: Guess the Number: how many numbers, and guesses, as many as halving the range needs at most. The package gives one
#: guess more than it says.
LEVELS: dict[str, dict[str, int]] = {
    "easy": {"max_number": 511, "max_turns": 9},
    "medium": {"max_number": 2047, "max_turns": 11},
    "hard": {"max_number": 8191, "max_turns": 13},
}

# Games whose share in a lost game is no progress: Guess the Number pays for a last guess near the number, wherever the
# search has stopped.
_NO_SHARE = frozenset(("GuessTheNumber",))

_SECRETS = {
    "GuessTheNumber": lambda game: (str(game.game_number),),
    "Hangman": lambda game: (str(game.state.game_state["target_word"]),),
    "Mastermind": lambda game: (" ".join(map(str, game.state.game_state["secret_code"])),),
    "Wordle": lambda game: (str(game.state.game_state["secret_word"]),),
}


@dataclass
class TextArenaState(EpisodeState):
    """The moves of all players, in order: with the task's seed, they determine the game."""

    moves: tuple[str, ...] = ()
    invalid: int = 0  # moves of the policy's that were not valid
    unread: int = 0  # replies in a row that the game raised an exception on
    won: bool = False  # the game gave its full reward (to player 0, where both play by ``step``)
    last_turns: tuple[int, int] = (-1, -1)  # of each player that plays by ``step``; -1 for none


class TextArena(TextEnv[TextArenaState]):
    """A game of TextArena: its prompt, its messages, and its reward at the end.

    The reward has one term, ``game``: the game's reward, on the turn that ends it, and 0 before. Most games give 1
    for a win, a share of it for the final progress, and for two players -1 for a loss. An invalid move is
    answered by the game; most end at the second in a row. A lost game of Guess the Number pays nothing.

    In a game for two, the term ``unfinished`` is -1 on a player's first turn, and 1 on its last turn of a game that
    comes to its end. A finished game is thus paid as above, and an unfinished one, which a budget has truncated, as a
    lost one: a player that is losing gains nothing by long replies that fill its context.

    With ``opponent="self"``, the caller of ``step`` plays both: the roles ``player-0`` and ``player-1``, each in its
    own conversation. The last step pays both, the player that did not make the last move by ``info["earlier"]``; an
    invalid move that ends the game costs its player, and earns the other what the game says. No such episode counts as
    solved or as not solved.

    The running game is no part of the state: the state has the moves, and a game is replayed from its seed unless
    the cached one is at the same point (after ``restore``, in a fork, in another process).

    Args:
        game: An id of TextArena; see :func:`~textenvs.envs.textarena.tasks.games`. ``None`` is Guess the Number at a
            level.
        level: ``"easy"`` (1 to 511 in 9 guesses; the default), ``"medium"`` (2047 in 11) or ``"hard"`` (8191 in 13),
            where ``game`` is ``None``.
        options: Arguments of the game, as in JSON, over those of the id or the level. With a custom ``max_number``,
            Guess the Number has the package's 10 guesses.
        opponent: The policy's opponent, in a game for two: ``"strong"`` (the default: minimax in ConnectFour and
            TicTacToe, an equilibrium in KuhnPoker and IteratedRockPaperScissors, the nim-sum in Nim, holding at 20 in
            PigDice), ``"random"``, any allowed move, which says little: in ConnectFour one column beats it, or
            ``"self"``, the policy itself.
        seat: Which player the policy is, in a game for two: 0 or 1. It is 0 with ``opponent="self"``.
        forfeit: Whether a game that an invalid move ends earns nothing (or less, if the game says so). Without it,
            some games then pay a share for the progress, and a few pay it for nothing at all.
        split: ``"train"`` or ``"test"``.
        seed: Which endless sequence of starts, from 0. (Episodes are seeded by ``reset``.)
        **env_options: ``max_assistant_turns`` (``None`` leaves it to the game), ``system_prompt``, ``render_mode``, as
            in :class:`~textenvs.env.TextEnv`.

    Raises:
        ValueError: A value outside the above, both ``game`` and ``level``, or a game that cannot be played here.
        LookupError: The game needs NLTK's corpora, and they are not there.
        ImportError: TextArena is not installed.
    """

    state_type = TextArenaState
    tasks: TextArenaTasks
    levels = tuple(LEVELS)
    attack_margin = 0.5
    own_attacks = ATTACKS

    @checked
    def __init__(
        self,
        game: str | None = None,
        *,
        level: Literal["easy", "medium", "hard"] | None = None,
        options: Mapping[str, Any] | None = None,
        opponent: Opponent | None = None,
        seat: int = 0,
        forfeit: bool = True,
        split: Split = "train",
        seed: NonNegativeInt = 0,
        **env_options: Any,
    ) -> None:
        if game is None:
            own = {} if options is None else options
            if not isinstance(own, Mapping):
                raise ValueError(f"options must be a mapping as in JSON, not {own!r}")
            game, options = "GuessTheNumber-v0", own if "max_number" in own else {**LEVELS[level or "easy"], **own}
        elif level is not None:
            raise ValueError(f"give either game or level, not both: level={level!r} is one of Guess the Number")
        tasks = TextArenaTasks(game, options or {}, seed, split)
        if seat not in range(players_of(game)):
            allowed = "0 or 1" if players_of(game) == 2 else "0, in a game for one"
            raise ValueError(f"seat must be {allowed}, not {seat!r}")
        if opponent is not None and players_of(game) == 1:
            raise ValueError(f"opponent={opponent!r} is for a game for two, and {game} is for one; leave it out")
        if opponent == "self":
            if seat:
                raise ValueError(f'opponent="self" plays both seats: leave out seat={seat!r}')
            self.roles = ("player-0", "player-1")
            self.has_success = False  # one of the two wins, whatever was learned
        super().__init__(tasks, **env_options)
        self.seat, self.forfeit, self.opponent = seat, forfeit, opponent or "strong"
        self._players = players_of(game)
        self._live: tuple[int, tuple[str, ...], LiveGame] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the running game: a copy, a fork or another process replays it."""
        return {**self.__dict__, "_live": None}

    def opening(self, task: Task) -> Sequence[Message]:
        game = self._take()
        self._opponents(game)  # who may begin
        player = self._player(game)
        text, _ = game.new_messages(player)
        self._keep(game)
        if self.both:
            self.state.role = self.roles[player]
        return (user(text or "The game begins."),)

    def respond(self, reply: Message) -> Turn:
        state, game = self.state, self._take()
        move, player = visible_text(reply)[-_MAX_CHARS:], self._player(game)
        first = state.last_turns[player] < 0
        number, (zero, one) = state.assistant_turns - 1, state.last_turns
        state.last_turns = (number, one) if player == 0 else (zero, number)
        try:
            game.move(move)
        except GameFault:
            return self._unread(player, first)
        state.moves, state.unread = (*state.moves, move), 0
        self._opponents(game)
        next_player = self._player(game)
        text, invalid = game.new_messages(next_player)
        state.invalid += invalid
        if not game.done:
            self._keep(game)
            role = self.roles[next_player] if self.both else None
            return self._turn(0.0, text or "It is your turn.", first=first, role=role)
        try:
            outcomes = [self._outcome(game, paid) for paid in (range(2) if self.both else [self.seat])]
        except GameFault as fault:
            raise EnvironmentFailure("tool_failed", f"{self.tasks.game}, at its end: {fault}") from fault
        if self.both:
            rewards = [reward for reward, _ in outcomes]
            return self._end(rewards, player, invalid=any(invalid for _, invalid in outcomes), first=first)
        reward, invalid = outcomes[0]
        state.invalid += invalid
        state.won = reward >= 1.0
        drawn = game.players == 2 and reward == 0.0
        stop = "solved" if state.won else "invalid_move" if invalid else "draw" if drawn else "lost"
        return self._turn(reward, stop=stop, first=first)

    def _outcome(self, game: LiveGame, player: int) -> tuple[float, bool]:
        """Return what a game that is over pays a player, and whether its invalid move ended it. GameFault."""
        reward, invalid = game.outcome(player)
        if invalid and self.forfeit or reward < 1.0 and self._base in _NO_SHARE:
            reward = min(reward, 0.0)
        return reward, invalid

    def _end(self, rewards: Sequence[float], player: int, *, invalid: bool, first: bool) -> Turn:
        """Pay both players, after the last move, which was ``player``'s; one that made no move earns nothing."""
        state, winner = self.state, int(rewards[1] > rewards[0])
        state.invalid += invalid
        state.won = rewards[0] >= 1.0
        decided = "draw" if rewards[0] == rewards[1] else f"{self.roles[winner]}_won"
        other = state.last_turns[1 - player]
        earlier = {} if other < 0 else {other: {"game": rewards[1 - player], "unfinished": 1.0}}
        stop = "invalid_move" if invalid else decided
        return self._turn(rewards[player], stop=stop, first=first, earlier=earlier)

    def _unread(self, player: int, first: bool) -> Turn:
        """Count an unread move without making it; the second in a row that raises an exception ends the episode."""
        self.state.unread += 1
        self.state.invalid += 1
        if self.state.unread > 1 and self.both:
            return self._end([1.0 if one != player else -1.0 for one in range(2)], player, invalid=True, first=first)
        if self.state.unread > 1:
            return self._turn(-1.0, stop="invalid_move", first=first)  # as TextArena's games end
        return self._turn(0.0, "The game could not read that. Make a move as its rules say.", first=first)

    def _turn(self, reward: float, *messages: str, first: bool, stop: str | None = None, **fields: Any) -> Turn:
        """Return a turn of a player, its ``first`` one or a later one; with ``stop`` the game is over."""
        terms = {"game": reward}
        if self._players == 2:
            terms["unfinished"] = float(stop is not None) - float(first)
        return Turn(
            messages=tuple(map(user, messages)),
            terminated=stop is not None,
            stop=stop,
            terms=terms,
            metrics={"invalid": float(self.state.invalid)},
            **fields,
        )

    def conversation_score(self) -> Mapping[str, float]:
        """Return ``success``: whether the game is over with its full reward (for player 0)."""
        return {"success": float(self.state.won)}

    def reveals(self, reply: Message) -> bool:
        """Return ``True``: the game itself answers, from what is hidden in it."""
        return True

    def demonstration(self, rng: np.random.Generator) -> str:
        return expert_move(self._base, self._peek().game, rng)

    def careless_reply(self, rng: np.random.Generator) -> str:
        return careless_move(self._base, self._peek().game, rng)

    def secrets(self) -> Sequence[str]:
        secret = _SECRETS.get(self._base)
        return () if secret is None or self.state.task is None else secret(self._peek().game)

    @property
    def both(self) -> bool:
        """Return whether both players' moves are made by ``step``."""
        return self.opponent == "self"

    def _player(self, game: LiveGame) -> int:
        """Return the player that ``step`` plays now."""
        return game.turn if self.both else self.seat

    @property
    def _base(self) -> str:
        return base_of(self.tasks.game)

    def _opponents(self, game: LiveGame) -> None:
        while not (self.both or game.done or game.turn == self.seat):
            move = opponent_move(self._base, game.game, self.np_random, self.opponent)
            try:
                game.move(move)
            except GameFault as fault:
                what = f"{self.tasks.game}, at the opponent's move: {fault}"
                raise EnvironmentFailure("tool_failed", what) from fault
            self.state.moves = (*self.state.moves, move)

    def _take(self) -> LiveGame:
        """Return the game after the state's moves; the caller owns it, and the cache is cleared."""
        seed = seed_of(self.task, self.tasks.game)
        cached, self._live = self._live, None
        if cached is not None and cached[:2] == (seed, self.state.moves):
            return cached[2]
        game = LiveGame(self.tasks.game, self.tasks.options, seed)
        for move in self.state.moves:
            if self.both:
                game.new_messages(game.turn)
            game.move(move)
        if self.state.messages:
            game.new_messages(self._player(game))  # it is in the conversation already
        return game

    def _keep(self, game: LiveGame) -> LiveGame:
        self._live = (seed_of(self.task, self.tasks.game), self.state.moves, game)
        return game

    def _peek(self) -> LiveGame:
        return self._keep(self._take())
