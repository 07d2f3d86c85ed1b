"""Replies to every prompt of a Parquet file, several each, in batches that survive a kill.

    python -m trainers.generate data.path=test.parquet data.output_path=replies.parquet model.path=FOLDER

The output has all columns of the input, and ``responses``, ``response_lengths`` (tokens, the stop token included) and
``finish_reasons`` (``stop`` or ``length``): lists of ``data.n_samples``. Each batch is a file beside the output until
all exist; the same command resumes an interrupted one. A reply's seed depends on ``trainer.seed``, its row and its
number, so batching and interruptions change only the last bits of floating-point arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .command_line import check_arguments, load_config
from .config import PPOConfig
from .config.commands import GenerateConfig

if __name__ == "__main__":
    check_arguments(sys.argv[1:], GenerateConfig, "python -m trainers.generate")

import torch
from transformers.utils.logging import disable_progress_bar

from textenvs.bounded_files import UnreadableFile, read_json_object
from textenvs.data.files import written_whole
from textenvs.messages import Messages, check_conversation, copy_messages
from textenvs.text import plural

from .builders import SetupError
from .builders.engines import check_engine, cluster_of, engine_of, plan_of
from .builders.policy import renderer_of, set_threads
from .chat_template import RendererError
from .cli import Interrupts, leave, run_command
from .cluster.memory import PlanError
from .cluster.plan import with_replicas
from .config.model import ModelSection
from .engines.base import Engine, EngineError, Generation, Sampling
from .models.hub import is_name
from .models.policy import PolicyError, end_token_ids_of, load, load_tokenizer, positions, resolve_device
from .rollout.renderer import Renderer
from .rollout.seeds import derive_seed
from .trajectory import TableError, read_table, refuse_rows, write_table

log = logging.getLogger("trainers")

_MOST_SLOTS = 128  # requests decoded at once; each has keys and values for a whole context
_UNUSABLE = "these prompts cannot be used (rows counted from 1)"
_COLUMNS = ("responses", "response_lengths", "finish_reasons")


async def generate(config: GenerateConfig) -> Path:
    source, output = _paths(config)
    table, prompts = _read(config)
    parts, rollout = output.with_name(output.name + ".parts"), config.rollout
    identity = _identity(config, source)
    try:
        _open(parts, identity)
    except OSError as error:
        raise TableError(f"data.output_path={output} cannot be written ({error})") from error
    run = _as_run(config, parts)
    check_engine(run)
    policy = load(_model(config), lambda: iter(()), max_context=0, seed=config.trainer.seed)
    set_threads(policy, config.trainer.threads)
    renderer = renderer_of(policy, config.data.chat_template_kwargs)
    rendered = _rendered(prompts, renderer, config.rollout.max_prompt_length)
    size = config.data.batch_size
    batches = {start: parts / f"{start:09d}.parquet" for start in range(0, len(prompts), size)}
    missing = [(start, path) for start, path in batches.items() if not path.is_file()]
    if len(missing) < len(batches):
        log.info("%d of %d batches are there already", len(batches) - len(missing), len(batches))
    sampling = Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_new_tokens=rollout.max_response_length,
        stop_token_ids=renderer.stop_token_ids,
        ignore_stop=rollout.ignore_eos,
    )

    async def replies(engine: Engine, row: int) -> list[Generation]:
        seeds = [derive_seed(config.trainer.seed, "generate", row, sample) for sample in range(config.data.n_samples)]
        return await asyncio.gather(*(engine.generate(rendered[row], replace(sampling, seed=seed)) for seed in seeds))

    async with contextlib.AsyncExitStack() as stack:
        if missing:
            on_ray = run.cluster.backend == "ray"
            cluster = None
            if on_ray:
                plan = plan_of(run, serving=True)
                run = with_replicas(run, len(plan.engines))
                cluster = stack.enter_context(cluster_of(run, plan))
            engine = await engine_of(run, policy, renderer, cluster=cluster)
            stack.push_async_callback(engine.close)
        for start, path in missing:
            rows = range(start, min(start + size, len(prompts)))
            write_table(path, _table(await asyncio.gather(*(replies(engine, row) for row in rows)), renderer))
            log.info("%d/%d prompts", rows.stop, len(prompts))
    _join(table, list(batches.values()), output)
    shutil.rmtree(parts)
    return output


def rehearse(config: GenerateConfig, machine: str | None = None) -> str:
    """Try what a run reads before weights: prompts, model folder, tokenizer; ``ValueError`` says what failed."""
    _, prompts = _read(config)
    model = _model(config)
    tokenizer, ends = load_tokenizer(model, lambda: iter(())), end_token_ids_of(model)
    resolve_device(model.device)
    renderer = Renderer(tokenizer, template_kwargs=config.data.chat_template_kwargs, stop_token_ids=ends)
    longest = max(map(len, _rendered(prompts, renderer, config.rollout.max_prompt_length)), default=0)
    limit = config.rollout.max_prompt_length
    return f"{plural(len(prompts), 'prompt')} of at most {longest} tokens, of rollout.max_prompt_length={limit}"


def _paths(config: GenerateConfig) -> tuple[Path, Path]:
    """Return the file of prompts and the file of replies; ``TableError`` if the latter exists already."""
    assert config.data.path is not None
    assert config.data.output_path is not None
    source, output = Path(config.data.path).expanduser(), Path(config.data.output_path).expanduser()
    if output.exists():
        raise TableError(f"{output} is there already: move it away, or give another data.output_path")
    return source, output


def _read(config: GenerateConfig) -> tuple[Any, list[Messages]]:
    """Return the table of prompts, and the prompts; the model has positions for each with its reply."""
    source, _ = _paths(config)
    table = read_table(source, [config.data.prompt_key])
    prompts = _prompts(table.column(config.data.prompt_key).to_pylist(), config.data.prompt_key)
    longest, rollout = positions(_model(config)), config.rollout
    if longest is not None and config.engine.max_context > longest:
        raise SetupError(
            f"rollout.max_prompt_length={rollout.max_prompt_length} and rollout.max_response_length="
            f"{rollout.max_response_length} are together more than the model's {longest} positions; lower one of them"
        )
    return table, prompts


def _prompts(column: Sequence[Any], name: str) -> list[Messages]:
    prompts, problems = [], []
    for number, value in enumerate(column, 1):
        try:
            messages = copy_messages(check_conversation(value or (), f"column {name!r}"))
            if not messages:
                raise ValueError(f"column {name!r} is empty")
            prompts.append(messages)
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    refuse_rows(problems, _UNUSABLE)
    return prompts


def _rendered(prompts: Sequence[Messages], renderer: Renderer, longest: int) -> list[list[int]]:
    rendered = [renderer.render(prompt) for prompt in prompts]
    sizes = [(number, len(ids)) for number, ids in enumerate(rendered, 1) if len(ids) > longest]
    limit = f"tokens, more than rollout.max_prompt_length={longest}"
    refuse_rows([f"row {number}: {size} {limit}" for number, size in sizes], _UNUSABLE)
    return rendered


def _table(replies: Sequence[Sequence[Generation]], renderer: Renderer) -> Any:
    import pyarrow as pa

    text, numbers = pa.list_(pa.string()), pa.list_(pa.int64())
    columns = [
        pa.array([[renderer.decode(reply.token_ids.tolist()) for reply in row] for row in replies], text),
        pa.array([[len(reply.token_ids) for reply in row] for row in replies], numbers),
        pa.array([[reply.finish_reason for reply in row] for row in replies], text),
    ]
    return pa.Table.from_arrays(columns, names=list(_COLUMNS))


def _join(table: Any, parts: Sequence[Path], output: Path) -> None:
    import pyarrow as pa

    replies = pa.concat_tables([read_table(path, _COLUMNS) for path in parts])
    assert replies.num_rows == table.num_rows, "a batch of another length"
    for name in _COLUMNS:
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, replies.column(name))
    write_table(output, table)


def _identity(config: GenerateConfig, source: Path) -> dict[str, Any]:
    """Return the identity of a folder's batches; another value means another set of replies."""
    sampling = config.rollout.model_dump(mode="json")
    data = config.data.model_dump(mode="json", exclude={"path", "output_path"})
    prompts, path = hashlib.sha256(source.read_bytes()).hexdigest(), _model(config).path
    model = {"model": path if is_name(path) else str(Path(path).expanduser().absolute()), "dtype": config.model.dtype}
    served = {"engine": config.engine.name, "seed": config.trainer.seed}
    return {"prompts": prompts, **data, **model, **served, **sampling}


def _open(folder: Path, identity: dict[str, Any]) -> None:
    note = folder / "run.json"
    if note.is_file():
        try:
            recorded = read_json_object(note)
        except UnreadableFile as error:
            raise TableError(f"{error}; remove {folder}, or give another data.output_path") from error
        if differ := sorted(name for name in {*recorded, *identity} if recorded.get(name) != identity.get(name)):
            raise TableError(
                f"{folder} has batches of another run, which differs in {', '.join(differ)}: remove it, or give "
                "another data.output_path"
            )
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(note) as unfinished:
        Path(unfinished).write_text(json.dumps(identity), encoding="utf-8")


def _model(config: GenerateConfig) -> ModelSection:
    assert config.model.path is not None
    return ModelSection(path=config.model.path, dtype=config.model.dtype, device=config.model.device)


def _as_run(config: GenerateConfig, folder: Path) -> PPOConfig:
    """Return a run's configuration for the engines."""
    rollout = config.rollout
    changes: dict[str, Any] = {}
    if config.engine.max_slots is None:
        changes["max_slots"] = min(_MOST_SLOTS, config.data.batch_size * config.data.n_samples)
    if config.cluster.backend == "ray":  # without a learner, engines have their own places, or share all GPUs
        places: dict[str, Any] = {"colocate": False}
    else:
        gpus = torch.cuda.device_count()
        if config.engine.replicas is None and config.engine.name != "torch":
            changes["replicas"] = max(1, gpus // config.engine.gpus)
        places = {"learner_ranks": max(1, min(changes.get("replicas", config.engine.replicas) or 1, gpus))}
    return PPOConfig.model_validate(
        {
            "data": {"chat_template_kwargs": config.data.chat_template_kwargs},
            "model": _model(config),
            "engine": config.engine.model_copy(update=changes),
            "rollout": {"max_response_length": rollout.max_response_length},
            "cluster": config.cluster.model_dump() | places,
            "ray_init": config.ray_init,
            "trainer": {"seed": config.trainer.seed, "default_local_dir": str(folder)},
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    config, _ = load_config(
        sys.argv[1:] if argv is None else argv,
        schema=GenerateConfig,
        usage="python -m trainers.generate",
        rehearse=rehearse,
    )
    disable_progress_bar()

    def work() -> int:
        log.info("replies: %s", Interrupts().run(generate(config)))
        return 0

    return run_command(
        work,
        stopped="stopped; whole batches are kept, and the same command resumes",
        expected=(SetupError, EngineError, PlanError, PolicyError, RendererError, TableError),
    )


if __name__ == "__main__":
    leave(main())
