"""Settings that the documentation calls noise, wrong or biased: a warning for each that takes effect."""

from __future__ import annotations

import itertools

import pytest

from trainers.command_line import load_config, resolve
from trainers.command_line.notices import notices
from trainers.doctor import main

REWARD, LOSS = "algorithm.use_kl_in_reward=true", "actor.use_kl_loss=true"


def warnings_of(*words: str) -> list[str]:
    config, flags = resolve([word for line in words for word in line.split()])
    lines = list(notices(config))
    assert [note for note in flags.notes if note.startswith("warning: ")] == lines
    return lines


@pytest.mark.parametrize("estimate", ["k2", "k3", "abs", "low_var_kl"])
def test_estimates_that_are_wrong_in_reward(estimate):
    (line,) = warnings_of(REWARD, f"algorithm.kl_penalty={estimate}")
    assert f"algorithm.kl_penalty={estimate} in the reward" in line
    assert "use k1" in line


@pytest.mark.parametrize("estimate", ["k1", "abs"])
def test_estimates_that_are_wrong_in_loss(estimate):
    (line,) = warnings_of(LOSS, f"actor.kl_loss_type={estimate}")
    assert f"actor.kl_loss_type={estimate} in the loss" in line
    assert "use k2 or k3" in line


@pytest.mark.parametrize("cuts", ["rollout.top_p=0.9", "rollout.top_k=20", "rollout.min_p=0.05"])
def test_cuts_that_nothing_corrects(cuts):
    (line,) = warnings_of(cuts)
    assert cuts in line
    assert "keep_sampling_mask=true" in line
    (line,) = warnings_of(cuts, "engine.name=vllm")
    assert "keep_sampling_mask" not in line, "vLLM reports no masks"


def test_settings_that_bias_the_gradient_warn():
    (line,) = warnings_of("algorithm.adv_estimator=bilevel_gae algorithm.turn_lam=0.9")
    assert "turn_lam=0.9 is biased" in line
    for baseline in ("mixed", "shrunk"):
        (line,) = warnings_of(f"rollout.filter_zero_variance=true algorithm.baseline={baseline}")
        assert f"algorithm.baseline={baseline} bends" in line


@pytest.mark.parametrize("filtering", ["filter_zero_variance=true", "filter_variance_top_p=0.9"])
def test_filters_that_drop_other_signals(filtering):
    group = f"rollout.{filtering} algorithm.baseline=group algorithm.reaction_credit.weight=1"
    assert warnings_of(group) == []
    for other in ("actor.distill.teacher=reference", "algorithm.reaction_credit.scale=fixed"):
        (line,) = warnings_of(f"{group} {other}")
        assert f"rollout.{filtering} drops groups" in line
        assert f"{other.removesuffix('.teacher=reference')} would learn, too" in line


@pytest.mark.parametrize("credit", ["spread", "discounted"])
def test_credits_that_learn_another_policy(credit):
    (line,) = warnings_of(f"algorithm.reward_credit={credit}")
    assert f"algorithm.reward_credit={credit} learns another policy" in line


def test_valid_and_ineffective_settings_are_silent():
    right = [
        f"{REWARD} algorithm.kl_penalty=k1",
        *(f"{LOSS} actor.kl_loss_type={estimate}" for estimate in ("k2", "k3", "low_var_kl")),
        "rollout.top_p=0.9 rollout.top_k=50 rollout.keep_sampling_mask=true",
        "algorithm.adv_estimator=bilevel_gae algorithm.turn_lam=1",
        "rollout.filter_zero_variance=true algorithm.baseline=group",
        "algorithm.reward_credit=last",
        "algorithm.reward_credit=discounted algorithm.reward_credit_decay=0",
        "rollout.filter_zero_variance=true algorithm.adv_estimator=grpo",
    ]
    assert [warnings_of(words) for words in right] == [[]] * len(right)
    assert warnings_of() == []


def test_every_notice_is_printed():
    warned = [(REWARD, "algorithm.kl_penalty=k2"), (LOSS, "actor.kl_loss_type=k1"), ("rollout.top_p=0.5",)]
    for count in range(len(warned) + 1):
        for some in itertools.combinations(warned, count):
            assert len(warnings_of(*itertools.chain(*some))) == count


def test_warnings_stand_in_dry_run(capsys):
    with pytest.raises(SystemExit) as ended:
        load_config(["--dry-run", "rollout.top_p=0.9"])
    assert ended.value.code == 0
    output = capsys.readouterr()
    assert "rollout.top_p=0.9 samples from another policy" in output.out + output.err


def test_doctor_prints_notices(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/reward": 0.5}\n')
    (tmp_path / "config.yaml").write_text("rollout:\n  top_p: 0.9\n")
    main([str(tmp_path)])
    assert "rollout.top_p=0.9 samples from another policy" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("rollout:\n  a_key_of_before: 0.9\n")
    main([str(tmp_path)])
    assert "warning" not in capsys.readouterr().out
