"""Episodes of several contexts in verl: an output each, shared returns, and verl's own group statistics over them."""

import asyncio
import copy

import gymnasium
import numpy as np
import pytest
import torch
import verl_kit
from hypothesis import given
from hypothesis import strategies as st
from verl.protocol import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl_kit import ScriptedServer

from textenvs import Task, TextEnv, Turn
from textenvs.integrations import EpisodeSpec, SpecError
from textenvs.integrations.rows import episode_rows
from textenvs.messages import user
from trainers.integrations.verl import shared_rewards


class Relay(TextEnv):
    """The reply decides what follows: ``>`` a sub-agent, ``<`` the main conversation again, ``.`` the end.

    A turn earns the number that the reply begins with.
    """

    def __init__(self):
        super().__init__([Task("task", "tests", (user("Main."),), "")])

    def respond(self, reply):
        text = reply["content"]
        terms = {"digit": float(text[0])}
        if text[1] == ".":
            return Turn(terms=terms, terminated=True, stop="solved")
        if text[1] == ">":
            return Turn(terms=terms, context=[user(f"Sub-task of {text}")])
        if text[1] == "<":
            main = next(messages for messages in self.state.contexts if messages[0]["content"] == "Main.")
            return Turn(terms=terms, context=(*main, user(f"It said {text}")))
        return Turn([user("More.")], terms=terms)


class Duet(TextEnv):
    """Two roles."""

    roles = ("one", "two")

    def __init__(self):
        super().__init__([Task("task", "tests", (user("Begin."),), "")])

    def respond(self, reply):
        return Turn(reward=1.0, terminated=True)


gymnasium.register(id="textenv/relay-verl", entry_point=Relay)
gymnasium.register(id="textenv/duet-verl", entry_point=Duet)
COMPACT = {"compact": {"tokens": 50}}
OWN = {"textenv/relay-verl": {}, "textenv/duet-verl": {}, "textenv/gsm8k-interact": COMPACT}
RELAY = EpisodeSpec("textenv/relay-verl", 0)


class Script(ScriptedServer):
    """Says the lines of one script, whatever it is asked."""

    def __init__(self, tokenizer, lines):
        super().__init__(tokenizer)
        self.lines = lines

    async def generate(self, request_id, **keywords):
        self.script[request_id] = self.lines
        return await super().generate(request_id, **keywords)


def with_estimator(config, name):
    config = copy.deepcopy(config)
    config.algorithm.adv_estimator = name
    return config


def play(config, tokenizer, lines, spec=RELAY, estimator="grpo", **columns):
    server = Script(tokenizer, lines)
    loop = verl_kit.make_loop(with_estimator(config, estimator), tokenizer, server, environments=OWN)
    row = verl_kit.row_of(spec, **columns)
    return asyncio.run(loop.run(dict(verl_kit.SAMPLING), **row)), server


LINES = ["1>", "2 ", "3<", "4>", "5<", "6."]
CONTEXTS = [[1, 2], [4], [0, 3, 5]]  # turns, in the order of their last use


def test_each_context_is_an_output(config, tokenizer):
    outputs, server = play(config, tokenizer, LINES, session_id=0)
    (requests,), (sampled,) = server.requests.values(), server.sampled.values()
    assert [output.extra_fields["turns"] for output in outputs] == CONTEXTS
    for output in outputs:
        fields = output.extra_fields
        where = np.zeros(len(output.response_ids), int)
        for turn, (start, end) in zip(fields["turns"], fields["turn_spans"], strict=True):
            assert output.prompt_ids + output.response_ids[:start] == requests[turn][0]
            assert output.response_ids[start:end] == sampled[turn]
            where[start:end] = 1
            assert output.response_logprobs[start:end] == [-(i + 1) / 8 for i in range(end - start)]
        assert output.response_mask == where.tolist()
        assert output.reward_score == 21.0
        assert output.as_dict()["rm_scores"].sum() == 21.0
    # Turn 3 is paid turn 4's reward too, and the first turn of a context all that was earned before it.
    assert [output.extra_fields["turn_scores"] for output in outputs] == [[3.0, 18.0], [21.0], [6.0, 9.0, 6.0]]


@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=7), st.data())
def test_contexts_share_the_episodes_returns(rewards, data):
    turns = sorted(data.draw(st.sets(st.integers(0, len(rewards) - 1), min_size=1)))
    paid = shared_rewards(rewards, turns)
    assert sum(paid) == sum(rewards)
    for place, turn in enumerate(turns[1:], 1):
        assert sum(paid[place:]) == sum(rewards[turn:])
    assert shared_rewards(rewards, range(len(rewards))) == rewards


def grpo(sessions):
    """Return the advantages that verl's default trainer computes for one prompt, by session and output."""
    rows = {f"p_{n}_{index}": output for n, outputs in enumerate(sessions) for index, output in enumerate(outputs)}
    keys = list(np.random.default_rng(0).permutation(list(rows)))  # the trainer balances rows over ranks
    masks = [torch.tensor(rows[key].response_mask) for key in keys]
    scores = [rows[key].as_dict()["rm_scores"] for key in keys]
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
        for name, columns in (("response_mask", masks), ("token_level_rewards", scores))
    }
    data = DataProto.from_dict(tensors=padded, non_tensors={"uid": np.array(["p"] * len(keys), dtype=object)})
    data = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=False)
    advantages = dict(zip(keys, data.batch["advantages"], strict=True))
    return [
        [advantages[f"p_{n}_{index}"][: len(output.response_mask)] for index, output in enumerate(outputs)]
        for n, outputs in enumerate(sessions)
    ]


def test_grpo_counts_episodes_not_contexts(config, tokenizer):
    """A sibling with three contexts counts once; all its contexts have its advantage."""
    scripts = (LINES, ["1 ", "1."], ["7."])
    played = [play(config, tokenizer, lines, session_id=n)[0] for n, lines in enumerate(scripts)]
    outputs = [output if isinstance(output, list) else [output] for output in played]
    assert [len(rows) for rows in outputs] == [3, 1, 1]
    for rows, of_rows, earned in zip(outputs, grpo(outputs), [21.0, 2.0, 7.0], strict=True):
        for output, advantages in zip(rows, of_rows, strict=True):
            assert advantages.tolist() == [(earned - 10.0) * sampled for sampled in output.response_mask]


def test_unsuited_trainers_refuse_in_words(config, tokenizer):
    with pytest.raises(ValueError, match="has 3 contexts.*textenv_turn_grpo would count each as an episode.*use grpo"):
        play(config, tokenizer, LINES, estimator="textenv_turn_grpo", session_id=0)
    with pytest.raises(ValueError, match="only verl's default trainer"):
        play(config, tokenizer, LINES)
    compact = EpisodeSpec("textenv/gsm8k-interact", 0, COMPACT)
    with pytest.raises(ValueError, match="summarised.*adv_estimator=rloo"):  # before the first reply
        play(config, tokenizer, [], compact, estimator="rloo", session_id=0)
    with pytest.raises(SpecError, match=r"several roles \(one, two\)"):
        next(episode_rows("verl", [EpisodeSpec("textenv/duet-verl", 0)]))
