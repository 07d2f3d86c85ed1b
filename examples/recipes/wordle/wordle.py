"""A small Wordle: a word of a few letters, and hints for each letter of a guess."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import gymnasium
import numpy as np

from textenvs import EpisodeState, Message, Task, TextEnv, Turn, always, user, visible_text

ALPHABET = "abcdefgh"


def hints(guess: str, secret: str) -> tuple[str, ...]:
    """Return a hint for each letter of a guess; no letter occurs twice in a word."""
    return tuple(
        "green" if letter == right else "yellow" if letter in secret else "grey"
        for letter, right in zip(guess, secret, strict=True)
    )


@dataclass
class Guesses(EpisodeState):
    """An episode with the words that were guessed."""

    words: tuple[str, ...] = ()


class Wordle(TextEnv[Guesses]):
    """Reward term `solved`: 1 for the word, and nothing else.

    A word has letters that differ, so there are 60 words of three letters of five. Both splits have all.

    Args:
        letters: How many letters of the alphabet there are.
        length: How many letters a word has.
        max_assistant_turns: How many guesses there are.
        render_mode: As in :class:`~textenvs.TextEnv`.
    """

    state_type = Guesses
    own_attacks = (always("constant", "always guesses the same word", "a b c"),)

    def __init__(
        self, letters: int = 5, length: int = 3, max_assistant_turns: int = 4, render_mode: str | None = None
    ) -> None:
        alphabet = ALPHABET[:letters]
        self.words = ["".join(word) for word in itertools.permutations(alphabet, length)]
        self.rule = f"{length} of the letters {' '.join(alphabet)}, none twice"
        opening = user(f"Guess the word: {self.rule}.")
        tasks = [Task(f"word-{word}", "wordle", (opening,), ground_truth=word) for word in self.words]
        super().__init__(tasks, max_assistant_turns=max_assistant_turns, render_mode=render_mode)

    def respond(self, reply: Message) -> Turn:
        """Judge the guess, and give hints."""
        secret, guess = self.task.ground_truth, "".join(visible_text(reply).split())
        terms = {"solved": float(guess == secret)}
        if guess == secret:
            return Turn(terms=terms, terminated=True, stop="solved")
        if guess not in self.words:
            return Turn([user(f"A word is {self.rule}.")], terms=terms)
        self.state.words += (guess,)
        pairs = zip(guess, hints(guess, secret), strict=True)
        return Turn([user(", ".join(f"{letter} {hint}" for letter, hint in pairs))], terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Guess the first of the words that all hints allow."""
        guessed, secret = self.state.words, self.task.ground_truth
        seen = [hints(word, secret) for word in guessed]
        return " ".join(next(word for word in self.words if [hints(before, word) for before in guessed] == seen))

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Guess any word."""
        return " ".join(str(rng.choice(self.words)))


gymnasium.register("recipes/wordle", entry_point=f"{__name__}:Wordle")
