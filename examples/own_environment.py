"""An environment of your own: guess a number from 1 to 7 within three turns, told "Higher." or "Lower.".

Two hooks are an environment: a list of tasks says what is asked, `respond` judges a reply and answers it. Seeds,
budgets, checks of what comes in, snapshots, forks, the async twins and the vector environment come with the base class.

    python examples/own_environment.py
"""

import re
from dataclasses import dataclass

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from textenvs import EpisodeState, Message, Task, TextEnv, Turn, always, user, visible_text

QUESTION = user("I think of a number from 1 to 7. Guess it.")
TASKS = [Task(f"number-{number}", "numbers", (QUESTION,), ground_truth=number) for number in range(1, 8)]


@dataclass
class Known(EpisodeState):
    """All that changes during an episode: here, what the player can know. That is why forks work."""

    low: int = 1
    high: int = 7


class HigherLower(TextEnv[Known]):
    """Reward terms of every turn: `correct` for the number, `wasted` for a guess that the answers had ruled out."""

    state_type = Known
    #: Cheap replies for `textenvs audit`; now and then a constant is the number, and that is no cheating.
    own_attacks = (always("all", "says every number", "1 2 3 4 5 6 7"),)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(TASKS, max_assistant_turns=3, render_mode=render_mode)

    def respond(self, reply: Message) -> Turn:
        """Judge the guess, and answer it."""
        state, secret = self.state, self.task.ground_truth
        text = visible_text(reply)
        guess = int(text) if re.fullmatch(r"[1-7]", text) else None  # a bad reply is something to answer, not an error
        wasted = guess is None or not state.low <= guess <= state.high
        terms = {"correct": float(guess == secret), "wasted": -0.2 * wasted}
        if guess is None:
            return Turn([user("Only a number from 1 to 7, please.")], terms=terms)
        if guess == secret:
            return Turn(terms=terms, terminated=True, stop="solved")
        if guess < secret:
            state.low = max(state.low, guess + 1)
            return Turn([user("Higher.")], terms=terms)
        state.high = min(state.high, guess - 1)
        return Turn([user("Lower.")], terms=terms)

    def demonstration(self, rng: np.random.Generator) -> str:
        """Halve the possible range. Optional, as `careless_reply` is: scripts for a warm start and for checks."""
        return str((self.state.low + self.state.high) // 2)

    def careless_reply(self, rng: np.random.Generator) -> str:
        """Guess any number."""
        return str(rng.integers(1, 8))


# With an id, gymnasium.make, make_vec and the trainer know it. No max_episode_steps: TextEnv keeps its own budgets,
# because the last reply has to be judged before the episode is cut.
gymnasium.register("examples/higher-lower", entry_point=HigherLower)


def main() -> None:
    env = gymnasium.make("examples/higher-lower").unwrapped
    check_env(env)  # raises if it is no proper environment: seeds, spaces, types, rendering (which prints a message)
    print("check_env: passed")

    env.reset(seed=0, options={"task_index": 4})  # the number is 5
    for reply in ("four", "4"):
        conversation, reward, _, _, info = env.step(reply)
        print(f"{reply!r}: {conversation[-1]['content']} reward {reward:+.1f} {info['terms']}")

    # The same moment, continued in three ways; nothing that a fork does is seen by another.
    for reply in ("5", "6", "2"):
        fork = env.fork()
        _, reward, terminated, truncated, info = fork.step(reply)
        print(f"fork {reply!r}: reward {reward:+.1f}, {terminated=}, {truncated=}, stop {info['stop']}")
    print(f"meanwhile the original has had {env.state.assistant_turns} turns")


if __name__ == "__main__":
    main()
