"""Joint rules for verl's keys about amounts: batches, lengths, steps, rows. :mod:`.tables` names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .translate import BadValueError, Given, Result
from .yaml12 import dump

_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."


def _sizes(given: Given) -> tuple[int, int]:
    """Prompts a batch and prompts a mini-batch."""
    batch, mini = given.number("data.train_batch_size"), given.number(f"{_ACTOR}ppo_mini_batch_size")
    if not given.has(f"{_ACTOR}ppo_mini_batch_size"):
        mini = min(batch, mini) if batch % min(batch, mini) == 0 else batch
    return batch, mini


def batch(given: Given) -> Iterator[Result]:
    """Prompts a batch, and mini-batches."""
    key = f"{_ACTOR}ppo_mini_batch_size"
    batch, mini = _sizes(given)
    yield Result("rollout.groups_per_batch", batch, of=("data.train_batch_size",))
    if batch % mini:
        text = f"is {mini}, which does not divide data.train_batch_size={batch}"
        yield Result(key, problem=f"{text}: an iteration has an integer of mini-batches", of=(key,))
        return
    yield Result("actor.mini_batches", batch // mini, of=(key,))


def critic_batch(given: Given) -> Iterator[Result]:
    """The critic's mini-batches are the actor's."""
    key = "critic.ppo_mini_batch_size"
    if given.has(key) and given.number(key) != _sizes(given)[1]:
        yield Result(
            key, problem=f"is {given.value(key)}; the critic's mini-batches are the actor's: {_sizes(given)[1]}"
        )


def as_the_actor(given: Given) -> Iterator[Result]:
    """What the critic has in common with the actor."""
    for name in ("ppo_epochs", "ulysses_sequence_parallel_size"):
        key, actors = f"critic.{name}", _parallel(given) if name.startswith("ulysses") else f"{_ACTOR}{name}"
        if given.has(key) and given.number(key) != (given.value(actors) or 1):
            text = f"is {given.value(key)}; the critic's is the actor's ({given.value(actors) or 1}): write that"
            yield Result(key, problem=text)


def _parallel(given: Given) -> str:
    """The key that says how many ranks share a sequence."""
    name = "ulysses_sequence_parallel_size"
    return next(
        (key for key in (f"{_ACTOR}{name}", f"{_ACTOR}fsdp_config.{name}") if given.has(key)), f"{_ACTOR}{name}"
    )


def filtered(given: Given) -> Iterator[Result]:
    """After how many groups without a difference a run stops; verl counts batches, and 0 there has no limit."""
    key, size = "algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size"
    if given.has(key) and given.number(key, least=0):
        batch = given.number(size if given.has(size) else "data.train_batch_size")
        yield Result("rollout.max_consecutive_filtered", given.value(key) * batch, of=(key,))


def lengths(given: Given) -> Iterator[Result]:
    """The context, and the replies in it."""
    prompt, response = given.number("data.max_prompt_length"), given.number("data.max_response_length")
    yield Result("engine.max_context", prompt + response, of=("data.max_prompt_length", "data.max_response_length"))
    if given.value("data.filter_overlong_prompts") is True:
        yield Result("data.longest_prompt", prompt, of=("data.max_prompt_length",))
    for key in ("rollout.max_response_length", "rollout.max_response_tokens"):
        yield Result(key, response, of=("data.max_response_length",))
    cut, room = "data.truncation", f"{_ROLLOUT}max_model_len"
    if given.value(cut) in ("error", None) or given.value("data.filter_overlong_prompts") is True:
        yield Result("", "no prompt is longer than data.max_prompt_length, or it is not cut", of=(cut,))
    else:
        text = "a prompt is never cut: write error, or leave long ones out with data.filter_overlong_prompts=True"
        yield Result(cut, problem=f"is {dump(given.value(cut))}; {text}")
    if not given.has(room) or given.number(room) >= prompt + response:
        yield Result("", "engine.max_context is max_prompt_length + max_response_length", of=(room,))
    else:
        text = (
            f"is {given.value(room)}, less than data.max_prompt_length + data.max_response_length: make those smaller"
        )
        yield Result(room, problem=text)


def micro(given: Given) -> Iterator[Result]:
    """Micro-batches in tokens."""
    sequences, tokens = f"{_ACTOR}ppo_micro_batch_size_per_gpu", f"{_ACTOR}ppo_max_token_len_per_gpu"
    whole = f"{_ACTOR}ppo_micro_batch_size"
    dynamic = f"{_ACTOR}use_dynamic_bsz"
    longest = given.number("data.max_prompt_length") + given.number("data.max_response_length")
    target = "actor.max_tokens_per_micro_batch"
    if given.has(sequences) and given.value(dynamic) is not True:
        yield Result(target, given.number(sequences) * longest, of=(sequences,))
        yield Result("", "not used, for ppo_micro_batch_size_per_gpu counts without use_dynamic_bsz=true", of=(tokens,))
        yield Result("", "micro-batches are counted in tokens either way", of=(dynamic, whole))
    elif given.has(whole) and given.value(dynamic) is not True:
        gpus = (given.value("trainer.nnodes") or 1) * (given.value("trainer.n_gpus_per_node") or 1)
        yield Result(target, max(1, given.number(whole) // gpus) * longest, of=(whole,))
        yield Result("", "not used: ppo_micro_batch_size counts without use_dynamic_bsz=true", of=(tokens, dynamic))
    else:
        ranks = given.number(_parallel(given)) if given.has(_parallel(given)) else 1
        yield Result(target, given.number(tokens) * ranks, of=(tokens, dynamic))
        yield Result("", "not used, for ppo_max_token_len_per_gpu counts with use_dynamic_bsz=true", of=(whole,))
        yield Result("", "not used, for ppo_max_token_len_per_gpu counts with use_dynamic_bsz=true", of=(sequences,))


def actor_warmup(given: Given) -> Iterator[Result]:
    """The rise of the actor's learning rate."""
    yield from _warmup(given, f"{_ACTOR}optim", "actor")


def critic_warmup(given: Given) -> Iterator[Result]:
    """The rise of the critic's learning rate."""
    yield from _warmup(given, "critic.optim", "critic")


def _warmup(given: Given, section: str, ours: str) -> Iterator[Result]:
    """In verl a step is an optimizer's too, but the ratio is of ``total_training_steps``, which are iterations."""
    steps, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    if given.has(steps) and given.number(steps, least=-1) >= 0:
        yield Result(f"{ours}.lr_warmup_steps", given.value(steps), of=(steps, ratio))
    elif given.has(ratio):
        share = given.value(ratio)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadValueError(ratio, f"is {dump(share)}; it must be a number from 0 to 1")
        iterations = _iteration_count(given)
        if iterations is None and share:
            raise BadValueError(ratio, f"give {steps}: how many steps there are is not known")
        # verl counts the share in iterations and steps the schedule once an iteration; here it is stepped with the
        # optimizer, so the rise ends at the same place of the run.
        batch, mini = _sizes(given)
        a_pass = (given.value(f"{_ACTOR}ppo_epochs") or 1) * max(1, batch // mini)
        yield Result(f"{ours}.lr_warmup_steps", int(share * (iterations or 0)) * a_pass, of=(ratio, steps))


def iterations(given: Given) -> Iterator[Result]:
    """How many iterations, from epochs and rows where it is not said."""
    epochs, steps = "trainer.total_epochs", "trainer.total_training_steps"
    if "trainer.total_iterations" in given.ours:
        yield Result("", "not used: trainer.total_iterations is given", of=(epochs, steps))
        return
    count = _iteration_count(given)
    if count is None:
        yield Result(
            epochs,
            problem="how many iterations that is, data.train_files must tell: give existing .parquet or .jsonl files, "
            "or trainer.total_iterations",
        )
    elif given.has(steps):
        yield Result("trainer.total_iterations", count, of=(steps,))
        yield Result("", "not used: total_training_steps is given", of=(epochs,))
    else:
        yield Result("trainer.total_iterations", count, of=(epochs,))


def _iteration_count(given: Given) -> int | None:
    if given.has("trainer.total_training_steps"):
        return given.number("trainer.total_training_steps")
    rows = _rows(given, "data.train_files")
    if rows is None:
        return None
    most = given.verls.get("data.train_max_samples")
    if most is not None and most.value not in (-1, None):
        rows = min(rows, given.number(most.key))
    # An incomplete last batch of an epoch is not played there; tasks go on in the next epoch here.
    return given.number("trainer.total_epochs") * max(1, rows // given.number("data.train_batch_size"))


def validation_rows(given: Given) -> Iterator[Result]:
    """How many tasks to validate with."""
    key = "data.val_max_samples"
    if given.has(key) and given.number(key, least=-1) >= 1:
        yield Result("data.val_size", given.value(key), of=(key,))
    elif "data.val_size" not in given.ours and (rows := _rows(given, "data.val_files")) is not None:
        yield Result("data.val_size", rows, of=(key,))


def _rows(given: Given, key: str) -> int | None:
    """How many rows the files of a key have; ``None`` where they cannot be read."""
    files = given.our(key)
    total = 0
    for file in [files] if isinstance(files, str) else files or ():
        path = Path(str(file)).expanduser()
        try:
            if path.suffix == ".parquet":
                from pyarrow import ArrowInvalid, parquet

                try:
                    total += parquet.read_metadata(path).num_rows
                except ArrowInvalid:
                    return None
            elif path.suffix == ".jsonl":
                with path.open("rb") as lines:
                    total += sum(1 for line in lines if line.strip())
            else:
                return None
        except (OSError, ImportError):
            return None
    return total or None
