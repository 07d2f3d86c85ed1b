"""TRL's GRPOTrainer trains a tiny model in textenv/gsm8k-interact, on a CPU.

A simulated user judges every reply, so an episode has up to three turns. `TextEnvRollout` plays them for TRL token by
token, `textenv_reward` adds up the turns' rewards, and `TurnCreditGRPOTrainer` gives each turn's tokens an advantage
of their own; with TRL's plain GRPOTrainer instead, all tokens of an episode share one. Your own model replaces
`tiny_model()`: anything transformers loads.

    pip install '.[trl]'
    python examples/trl_gsm8k_interact.py [--steps 24] [--lr 2e-3] [--seed 0] [--plain]

A few steps of imitation teach the tiny model to say numbers; that an answer line pays, it learns from the rewards.
(Arithmetic takes a better start: `python -m benchmarks.trl_grpo` has one.)
"""

import argparse
import os
import tempfile
import warnings

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is experimental in TRL: we know
warnings.filterwarnings("ignore", category=FutureWarning)  # of TRL and transformers about each other

import torch  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

import textenvs  # noqa: E402
from textenvs.integrations.trl import textenv_dataset  # noqa: E402
from trainers.integrations.trl import TextEnvRollout, textenv_reward  # noqa: E402
from trainers.integrations.trl.credit import TurnCreditGRPOTrainer  # noqa: E402
from trainers.learner import Learner  # noqa: E402
from trainers.models import tiny  # noqa: E402
from trainers.rollout.demonstrations import encode, play  # noqa: E402
from trainers.rollout.renderer import Renderer  # noqa: E402
from trainers.section import ActorSection  # noqa: E402

# An answer line that is wrong earns a little, and another turn costs no more.
ENV, KWARGS = "textenv/gsm8k-interact", {"method": "strict", "format": 0.1, "extra_turn": -0.1}


def tiny_model():
    """Build a model of random weights, with 40 steps of imitation: half of the demonstrations are careless."""
    demonstrations = list(play(textenvs.make(ENV, **KWARGS), 320, seed=0, mistake_rate=0.5, mistake_weight=1.0))
    tokenizer = tiny.build_tokenizer(
        (message["content"] for episode in demonstrations for message in episode.messages), 400
    )
    model = tiny.build_model(
        len(tokenizer),
        hidden=48,
        layers=1,
        heads=2,
        kv_heads=1,
        max_context=256,
        eos_token_id=tokenizer.eos_token_id,
    )
    renderer, learner = Renderer(tokenizer), Learner(model, actor=ActorSection(lr=3e-3))
    examples = [encode(episode, renderer, tokenizer).trajectory for episode in demonstrations]
    for start in range(0, len(examples), 8):
        learner.update_sft(examples[start : start + 8])
    model.load_state_dict(learner.weights())
    return model, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="TRL's own advantages, one an episode")
    options = parser.parse_args()
    torch.set_num_threads(1)  # more are slower on a model so small
    model, tokenizer = tiny_model()
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        seed=options.seed,
        use_cpu=True,
        bf16=False,
        max_steps=options.steps,
        per_device_train_batch_size=64,  # 8 tasks of 8 episodes
        num_generations=8,
        max_completion_length=160,  # of a whole episode, what the user says included
        learning_rate=options.lr,
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        per_device_eval_batch_size=64,
        num_generations_eval=1,
        logging_steps=max(1, options.steps // 4),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    with TextEnvRollout(threads=1, max_turn_tokens=24) as rollout:
        trainer = (GRPOTrainer if options.plain else TurnCreditGRPOTrainer)(
            model,
            reward_funcs=textenv_reward,
            args=config,
            train_dataset=textenv_dataset(ENV, 8 * options.steps, env_kwargs=KWARGS),
            eval_dataset=textenv_dataset(ENV, 128, env_kwargs={**KWARGS, "split": "test"}),
            processing_class=tokenizer,
            rollout_func=rollout,
        )
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
    print(f"128 held-out problems, before and after {options.steps} steps:")
    for name in ("reward", "terms/format", "terms/correct", "episodes/solved"):
        print(f"  {name:16} {before[f'eval_{name}']:6.3f} -> {after[f'eval_{name}']:6.3f}")


if __name__ == "__main__":
    main()
