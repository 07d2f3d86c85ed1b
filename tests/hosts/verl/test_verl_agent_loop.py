"""The agent loop ``textenv`` with verl's own classes: what the environment says and pays arrives token by token."""

import asyncio
import copy
from typing import ClassVar

import adapter_kit
import gymnasium
import numpy as np
import pytest
import verl_kit
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput

from textenvs.env import EnvironmentFailure, TextEnv, Turn
from textenvs.integrations import EpisodeSpec, SpecError
from textenvs.integrations.rows import write_episodes
from textenvs.messages import user
from textenvs.task import Rows, Task
from trainers.integrations.verl import EpisodeFailedError, TextEnvAgentLoopWorker


def conversation_text(tokenizer, messages):
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def play(config, tokenizer, server, spec, **options):
    loop = verl_kit.make_loop(config, tokenizer, server, **options)
    return asyncio.run(loop.run(dict(verl_kit.SAMPLING), **verl_kit.row_of(spec)))


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_episode_is_environments_token_by_token(env_id, config, tokenizer, server):
    ends = set()
    for played in adapter_kit.episodes(env_id, 12):
        server.learn(played.opening, played.replies)
        server.sampled.clear()
        server.requests.clear()
        output = play(config, tokenizer, server, played.spec)
        (sampled_ids,), (requests,) = server.sampled.values(), server.requests.values()

        # The policy is shown the template's own text, and what it sampled stays as it was sampled.
        talk = list(played.opening)
        for (prompt, _), reply, answer in zip(requests, played.replies, played.observations, strict=True):
            assert tokenizer.decode(prompt) == conversation_text(tokenizer, talk)
            talk += [{"role": "assistant", "content": reply}, *answer]
        spans = output.extra_fields["turn_spans"]
        assert [output.response_ids[start:end] for start, end in spans] == sampled_ids
        assert requests[-1][0] + sampled_ids[-1] == output.prompt_ids + output.response_ids
        assert len(output.response_ids) == spans[-1][1]

        where = [any(start <= i < end for start, end in spans) for i in range(len(output.response_ids))]
        assert output.response_mask == [int(inside) for inside in where]
        sampled = [-(i + 1) / 8 for ids in sampled_ids for i in range(len(ids))]
        assert [p for p, inside in zip(output.response_logprobs, where, strict=True) if inside] == sampled
        assert all(p == 0.0 for p, inside in zip(output.response_logprobs, where, strict=True) if not inside)

        # What it earned, and how it ended.
        assert output.extra_fields["turn_scores"] == played.rewards
        assert output.reward_score == sum(played.rewards)
        about = output.extra_fields["textenv"]
        assert about["stop"] == played.stop
        assert (about["terminated"], about["truncated"]) == (played.terminated, played.truncated)
        assert [pytest.approx(sum(terms.values())) for terms in about["terms"]] == played.rewards
        assert output.num_turns == 2 * len(played.replies)  # the prompt, and what stands between two replies
        assert output.metrics.num_preempted == len(played.replies)
        versions = [output.extra_fields[name] for name in ("min_global_steps", "max_global_steps")]
        assert versions[1] - versions[0] == len(played.replies) - 1

        # For verl's default trainer: each turn's reward at its last token.
        fields = output.as_dict()
        expected = np.zeros(len(output.response_ids), np.float32)
        expected[[end - 1 for _, end in spans]] = played.rewards
        assert fields["rm_scores"].tolist() == expected.tolist()
        assert (fields["rm_scores"][fields["response_mask"] == 0] == 0).all()
        ends.add(played.stop)
    assert len(ends) > 1


def test_verls_worker_and_dataset(config, tokenizer, server, tmp_path):
    """From the Parquet file to the padded batch, by verl's own dataset, worker and batch."""
    played = [episode for env_id in adapter_kit.ENVIRONMENTS for episode in adapter_kit.episodes(env_id, 3)]
    for episode in played:
        server.learn(episode.opening, episode.replies)
    path = write_episodes("verl", [episode.spec for episode in played], tmp_path / "train.parquet")
    dataset = RLHFDataset(str(path), tokenizer, config.data)
    assert [row["agent_name"] for row in (dataset[i] for i in range(len(dataset)))] == ["textenv"] * len(played)
    batch = DataProto.from_single_dict(collate_fn([dataset[i] for i in range(len(played))]))
    worker = TextEnvAgentLoopWorker(config, server)
    out = asyncio.run(worker.generate_sequences(batch))

    assert [list(rewards) for rewards in out.non_tensor_batch["turn_scores"]] == [episode.rewards for episode in played]
    assert [about["stop"] for about in out.non_tensor_batch["textenv"]] == [episode.stop for episode in played]
    assert out.non_tensor_batch["truncated"].tolist() == [float(episode.truncated) for episode in played]
    for row, (episode, spans) in enumerate(zip(played, out.non_tensor_batch["turn_spans"], strict=True)):
        ends = [end - 1 for _, end in spans]
        assert out.batch["rm_scores"][row, ends].tolist() == pytest.approx(episode.rewards)
        assert out.batch["rm_scores"][row].count_nonzero() == np.count_nonzero(episode.rewards)
        assert out.batch["response_mask"][row, ends].all()
        prompt_width = out.batch["prompts"].shape[1]
        mask = out.batch["attention_mask"][row]
        whole = tokenizer.decode(out.batch["input_ids"][row][mask.bool()])
        talk = list(episode.opening)
        for reply, answer in zip(episode.replies, episode.observations, strict=True):
            talk += [{"role": "assistant", "content": reply}, *answer]
        last = max(i for i, message in enumerate(talk) if message["role"] == "assistant")
        assert whole + "\n" == tokenizer.apply_chat_template(talk[: last + 1], tokenize=False)
        assert mask[:prompt_width].tolist() == sorted(mask[:prompt_width].tolist())  # padded on the left


def test_tokens_match_verls_own_builder(config, tokenizer, server):
    """And where verl falls back to its generic builder, it leaves out what stands between two turns; this does not."""
    opening, answer = [user("How many?")], user("No. Again.")
    talk = [*opening, {"role": "assistant", "content": "#### 3"}]
    reply = server.pieces("#### 3")

    async def both(model_type):
        loop = verl_kit.make_loop(config, tokenizer, server, hf_model_type=model_type)
        prompt = await loop.ct_build_initial_tokens(opening)
        assert prompt == loop.renderer.render(opening)
        merged, mask, _ = await loop.ct_merge_assistant_token(prompt, reply, [])
        merged, _, _ = await loop.ct_merge_context_msg(talk, [*talk, answer], merged.token_ids, mask)
        return merged.token_ids, [*prompt, *reply, *loop.renderer.bridge([answer], after=reply[-1])]

    for model_type, same in (("qwen2", True), ("a model type that verl does not list", False)):
        verls, own = asyncio.run(both(model_type))
        assert tokenizer.decode(own) == conversation_text(tokenizer, [*talk, answer])
        assert (verls == own) is same


# ---------------------------------------------------------------------- limits


def limited(config, **limits):
    config = copy.deepcopy(config)
    for name, value in limits.items():
        config.actor_rollout_ref.rollout[name] = value
    return config


def test_whatever_limit_response_fits_and_ends_with_policy(config, tokenizer, server):
    played = next(p for p in adapter_kit.episodes("textenv/gsm8k-interact", 12) if len(p.replies) > 2)
    server.learn(played.opening, played.replies)
    whole = play(config, tokenizer, server, played.spec)
    stops = set()
    for limit in range(1, len(whole.response_ids) + 9, 9):
        server.requests.clear()
        output = play(limited(config, response_length=limit), tokenizer, server, played.spec)
        (requests,) = server.requests.values()
        size = len(output.response_ids)
        assert 1 <= size <= limit
        assert output.response_mask[-1] == 1
        assert output.response_ids == whole.response_ids[:size]
        for prompt, sampling in requests:
            assert sampling["max_tokens"] == limit - (len(prompt) - len(output.prompt_ids))
        about = output.extra_fields["textenv"]
        assert about["truncated"] + about["terminated"] == 1.0
        assert len(output.extra_fields["turn_scores"]) == len(output.extra_fields["turn_spans"])
        assert output.reward_score == sum(output.extra_fields["turn_scores"])
        stops.add(about["stop"])
    assert stops >= {"response_length", played.stop}


def test_cut_reply_is_judged_unchanged(config, tokenizer, server):
    """The answer is right, and its last byte does not fit: what the environment gets is wrong."""
    spec = EpisodeSpec("textenv/gsm8k-interact", 0)
    server.learn(spec.make().reset(seed=spec.seed)[0], ["#### 1 or 2"])
    output = play(limited(config, response_length=6), tokenizer, server, spec)
    assert tokenizer.decode(output.response_ids) == "#### 1"
    assert output.extra_fields["turn_scores"] == [1.0]
    output = play(limited(config, response_length=5), tokenizer, server, spec)
    assert tokenizer.decode(output.response_ids) == "#### "
    assert output.extra_fields["turn_scores"] == [0.0]
    assert output.extra_fields["textenv"]["stop"] == "response_length"


def test_models_own_limit_and_limit_reply(config, tokenizer, server):
    played = adapter_kit.direct(EpisodeSpec("textenv/gsm8k-interact", 0))
    server.learn(played.opening, played.replies)
    output = play(limited(config, max_model_len=120), tokenizer, server, played.spec)
    assert len(output.prompt_ids) + len(output.response_ids) <= 120
    server.requests.clear()
    play(config, tokenizer, server, played.spec, max_reply_tokens=7)
    (requests,) = server.requests.values()
    assert {sampling["max_tokens"] for _, sampling in requests} == {7}
    assert {tuple(sampling["stop_token_ids"]) for _, sampling in requests} == {(tokenizer.eos_token_id,)}


def test_variables_of_chat_template(config, tokenizer, server):
    config, tokenizer = copy.deepcopy(config), copy.deepcopy(tokenizer)
    config.data.apply_chat_template_kwargs = {"shown": {"deep": "Be brief."}}
    tokenizer.chat_template = "{{ shown.deep if shown else '' }}" + tokenizer.chat_template
    loop = verl_kit.make_loop(config, tokenizer, server)
    assert tokenizer.decode(loop.renderer.render([user("Hi")])).startswith("Be brief.<|im_start|>user")


def test_without_log_probabilities(config, tokenizer, server):
    played = adapter_kit.direct(EpisodeSpec("textenv/clarify", 1))
    server.learn(played.opening, played.replies)
    loop = verl_kit.make_loop(config, tokenizer, server)
    output = asyncio.run(loop.run({**verl_kit.SAMPLING, "logprobs": False}, **verl_kit.row_of(played.spec)))
    assert output.response_logprobs is None
    assert "rollout_log_probs" not in output.as_dict()


# ---------------------------------------------------------------------- failures


class Shaky(TextEnv):
    """An environment whose user fails ``failures`` times; counts open instances."""

    failures: ClassVar[int] = 0
    open: ClassVar[int] = 0

    def __init__(self):
        super().__init__(Rows("one", [Task("0", "test", (user("Well?"),), "yes")]))
        Shaky.open += 1

    def respond(self, reply):
        if reply["content"] == "crash":
            raise ZeroDivisionError("a bug")
        if Shaky.failures > 0:
            Shaky.failures -= 1
            raise EnvironmentFailure("user_failed", "gone for lunch")
        return Turn(terms={"said": 1.0}, terminated=True, stop="solved")

    def cleanup(self):
        Shaky.open -= 1


@pytest.fixture
def shaky(server):
    gymnasium.register("textenv/shaky-verl", entry_point=Shaky, disable_env_checker=True)
    Shaky.failures = Shaky.open = 0
    server.learn([user("Well?")], ["yes"])
    yield EpisodeSpec("textenv/shaky-verl", 0)
    del gymnasium.registry["textenv/shaky-verl"]
    assert Shaky.open == 0


def test_failed_episode_is_played_again_and_never_counts(config, tokenizer, server, shaky):
    row = {**verl_kit.row_of(shaky)}
    Shaky.failures = 1
    loop = verl_kit.make_loop(config, tokenizer, server)
    output = asyncio.run(loop.run(dict(verl_kit.SAMPLING), **row))
    assert (output.reward_score, output.extra_fields["textenv"]["attempts"]) == (1.0, 2)
    Shaky.failures = 2
    with pytest.raises(EpisodeFailedError, match="failed 2 times.*user_failed: gone for lunch"):
        asyncio.run(loop.run(dict(verl_kit.SAMPLING), **row))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (TokenOutput(token_ids=[], log_probs=[], stop_reason="completed"), "no token"),
        (TokenOutput(token_ids=[9], log_probs=[-1.0], stop_reason="aborted"), "aborted"),
    ],
)
def test_failing_server_is_failed_episode(answer, says, config, tokenizer, server, shaky, monkeypatch):
    async def generate(**_):
        return answer

    monkeypatch.setattr(server, "generate", generate)
    loop = verl_kit.make_loop(config, tokenizer, server, attempts=1)
    with pytest.raises(EpisodeFailedError, match=says):
        asyncio.run(loop.run(dict(verl_kit.SAMPLING), **verl_kit.row_of(shaky)))


def test_sessions_are_closed_whatever_happens(config, tokenizer, server, shaky, monkeypatch):
    row = verl_kit.row_of(shaky)
    server.learn([user("Well?")], ["crash"])
    loop = verl_kit.make_loop(config, tokenizer, server)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(loop.run(dict(verl_kit.SAMPLING), **row))
    assert Shaky.open == 0

    async def never(**_):
        await asyncio.Event().wait()

    async def cancelled():
        task = asyncio.create_task(loop.run(dict(verl_kit.SAMPLING), **row))
        while not Shaky.open:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(server, "generate", never)
    asyncio.run(cancelled())
    assert Shaky.open == 0


# ---------------------------------------------------------------------- mistakes


def test_mistakes_are_named(config, tokenizer, server):
    spec = EpisodeSpec("textenv/gsm8k-interact", 0)
    loop, row = verl_kit.make_loop(config, tokenizer, server), verl_kit.row_of(spec)

    def run(loop=loop, **changes):
        return asyncio.run(loop.run(dict(verl_kit.SAMPLING), **{**row, **changes}))

    with pytest.raises(SpecError, match="no extra_info.textenv.*`textenvs rows verl`"):
        run(extra_info={"index": 0})
    with pytest.raises(SpecError, match="is not what textenv/gsm8k-interact opens with at seed 0"):
        run(raw_prompt=[{"role": "user", "content": "Hello"}])
    with pytest.raises(ValueError, match="prompt_length is 5: raise data.max_prompt_length"):
        run(verl_kit.make_loop(limited(config, prompt_length=5), tokenizer, server))
    with pytest.raises(ValueError, match="max_model_len is 20"):
        run(verl_kit.make_loop(limited(config, max_model_len=20), tokenizer, server))
    config = copy.deepcopy(config)
    config.actor_rollout_ref.rollout.multi_turn.max_assistant_turns = 3
    with pytest.raises(ValueError, match="max_assistant_turns means nothing to the textenv agent loop"):
        verl_kit.make_loop(config, tokenizer, server)


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"attempts": None}, {"max_reply_tokens": True}, {"max_reply_tokens": 1.5}]
)
def test_options_out_of_range(options, config, tokenizer, server):
    with pytest.raises(ValueError, match="integer of at least 1"):
        verl_kit.make_loop(config, tokenizer, server, **options)


def test_it_is_registered_under_its_name():
    assert _agent_loop_registry["textenv"]["_target_"] == "trainers.integrations.verl.TextEnvAgentLoop"
