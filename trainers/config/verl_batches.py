"""Rules for verl's keys about amounts: batches, lengths, steps, rows. :mod:`.tables` names them."""

from __future__ import annotations

from pathlib import Path

from .translate import BadValueError, Given, Results
from .yaml12 import dump

_ACTOR = "actor_rollout_ref.actor."
_MINI = f"{_ACTOR}ppo_mini_batch_size"
_BATCH = "data.train_batch_size"
_PARALLEL = "ulysses_sequence_parallel_size"


def _sizes(given: Given) -> tuple[int, int]:
    """Prompts a batch and prompts a mini-batch."""
    batch, mini = given.number(_BATCH), given.number(_MINI)
    if not given.has(_MINI):
        mini = min(batch, mini) if batch % min(batch, mini) == 0 else batch
    return batch, mini


def batch(given: Given) -> Results:
    """Prompts a batch, and mini-batches."""
    batch, mini = _sizes(given)
    yield "rollout.groups_per_batch", batch, (_BATCH,)
    if batch % mini:
        text = f"is {mini}, which does not divide {_BATCH}={batch}: an iteration has an integer of mini-batches"
        given.refuse(_MINI, text)
    else:
        yield "actor.mini_batches", batch // mini, (_MINI,)


def as_the_actor(given: Given) -> Results:
    """What the critic has in common with the actor."""
    for name in ("ppo_mini_batch_size", "ppo_epochs", _PARALLEL):
        if not given.has(key := f"critic.{name}"):
            continue
        actors = _parallel(given) if name == _PARALLEL else f"{_ACTOR}{name}"
        value = _sizes(given)[1] if actors == _MINI else given.value(actors) or 1
        if given.number(key) != value:
            given.refuse(key, f"is {given.value(key)}; the critic's is the actor's: write {value}")
    yield from ()


def _parallel(given: Given) -> str:
    """The key that says how many ranks share a sequence."""
    other = f"{_ACTOR}fsdp_config.{_PARALLEL}"
    return other if given.has(other) and not given.has(f"{_ACTOR}{_PARALLEL}") else f"{_ACTOR}{_PARALLEL}"


def filtered(given: Given) -> Results:
    """After how many groups without a difference a run stops; verl counts batches, and 0 there has no limit."""
    key, size = "algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size"
    if given.has(key) and given.number(key, least=0):
        batch = given.number(size if given.has(size) else _BATCH)
        yield "rollout.max_consecutive_filtered", given.value(key) * batch, (key,)


def lengths(given: Given) -> Results:
    """The context, and the replies in it."""
    prompts, responses = "data.max_prompt_length", "data.max_response_length"
    prompt, response = given.number(prompts), given.number(responses)
    filters = given.value("data.filter_overlong_prompts") is True
    yield "engine.max_context", prompt + response, (prompts, responses)
    if filters:
        yield "data.longest_prompt", prompt, (prompts,)
    yield "rollout.max_response_length", response, (responses,)
    yield "rollout.max_response_tokens", response, (responses,)
    cut, room = "data.truncation", "actor_rollout_ref.rollout.max_model_len"
    if given.value(cut) not in ("error", None) and not filters:
        text = "a prompt is never cut: write error, or leave long ones out with data.filter_overlong_prompts=True"
        given.refuse(cut, f"is {dump(given.value(cut))}; {text}")
    if given.has(room) and given.number(room) < prompt + response:
        given.refuse(room, f"is {given.value(room)}, less than {prompts} + {responses}: make those smaller")


def micro(given: Given) -> Results:
    """Micro-batches in tokens."""
    whole, tokens = f"{_ACTOR}ppo_micro_batch_size", f"{_ACTOR}ppo_max_token_len_per_gpu"
    sequences, dynamic = f"{whole}_per_gpu", f"{_ACTOR}use_dynamic_bsz"
    longest = given.number("data.max_prompt_length") + given.number("data.max_response_length")
    target = "actor.max_tokens_per_micro_batch"
    if given.value(dynamic) is True or not given.has(sequences, whole):
        ranks = given.number(_parallel(given)) if given.has(_parallel(given)) else 1
        yield target, given.number(tokens) * ranks, (tokens, dynamic)
    elif given.has(sequences):
        yield target, given.number(sequences) * longest, (sequences,)
    else:
        gpus = (given.value("trainer.nnodes") or 1) * (given.value("trainer.n_gpus_per_node") or 1)
        yield target, max(1, given.number(whole) // gpus) * longest, (whole,)


def actor_warmup(given: Given) -> Results:
    """The rise of the actor's learning rate."""
    return _warmup(given, f"{_ACTOR}optim", "actor")


def critic_warmup(given: Given) -> Results:
    """The rise of the critic's learning rate."""
    return _warmup(given, "critic.optim", "critic")


def _warmup(given: Given, section: str, ours: str) -> Results:
    """In verl a step is an optimizer's too, but the ratio is of ``total_training_steps``, which are iterations."""
    steps, ratio = f"{section}.lr_warmup_steps", f"{section}.lr_warmup_steps_ratio"
    if given.has(steps) and given.number(steps, least=-1) >= 0:
        yield f"{ours}.lr_warmup_steps", given.value(steps), (steps, ratio)
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
        yield f"{ours}.lr_warmup_steps", int(share * (iterations or 0)) * a_pass, (ratio, steps)


def iterations(given: Given) -> Results:
    """How many iterations, from epochs and rows where it is not said."""
    epochs, steps, ours = "trainer.total_epochs", "trainer.total_training_steps", "trainer.total_iterations"
    if ours in given.ours:
        return
    count = _iteration_count(given)
    if count is None:
        text = "how many iterations that is, data.train_files must tell: give existing .parquet or .jsonl files, or "
        given.refuse(epochs, text + ours)
    else:
        yield ours, count, (steps if given.has(steps) else epochs,)


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
    return given.number("trainer.total_epochs") * max(1, rows // given.number(_BATCH))


def validation_rows(given: Given) -> Results:
    """How many tasks to validate with."""
    key = "data.val_max_samples"
    if given.has(key) and given.number(key, least=-1) >= 1:
        yield "data.val_size", given.value(key), (key,)
    elif "data.val_size" not in given.ours and (rows := _rows(given, "data.val_files")) is not None:
        yield "data.val_size", rows, (key,)


def _rows(given: Given, key: str) -> int | None:
    """How many rows the files of a key have; ``None`` where they cannot be read."""
    files = given.our(key)
    total = 0
    for file in [files] if isinstance(files, str) else files or ():
        path = Path(str(file)).expanduser()
        try:
            if path.suffix == ".parquet":
                from pyarrow import parquet

                total += parquet.read_metadata(path).num_rows
            elif path.suffix == ".jsonl":
                with path.open("rb") as lines:
                    total += sum(1 for line in lines if line.strip())
            else:
                return None
        except (OSError, ImportError, ValueError):  # ValueError: pyarrow's, of a file that is not Parquet
            return None
    return total or None
