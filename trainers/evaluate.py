"""Scores of the replies in a Parquet file, in the format of ``python -m trainers.generate``.

    python -m trainers.evaluate data.path=replies.parquet [custom_reward_function.path=score.py]

Replies are scored in processes by a custom function, or by the scorer of their data source. Means and pass@k (the
unbiased estimate) are reported by data source with 95 % intervals, which resample rows. Replies that cannot be scored
are counted and listed by row, never scored 0; the exit status is then 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textenvs.evaluate.statistics import mean_interval, pass_at_k
from textenvs.text import plural, reader_may_leave

from .cli import run_command
from .command_line import load_config
from .config.commands import EvaluateConfig
from .rewards import FunctionError, FunctionPool, ScoreError
from .trajectory import TableError, read_table, refuse_rows

_LISTED = 10  # failures to print


@dataclass(frozen=True)
class Row:
    """One row of the file."""

    number: int
    source: str
    responses: tuple[str, ...]
    ground_truth: Any
    extra: Any


@dataclass(frozen=True)
class Outcome:
    """Result of one reply: a score, or an error."""

    row: int
    sample: int
    source: str
    score: float | None
    error: str | None = None


def rows_of(config: EvaluateConfig) -> list[Row]:
    """Return the rows of the file; raise ``TableError``, which lists bad ones."""
    data = config.data
    assert data.path is not None
    path = Path(data.path).expanduser()
    columns = [data.response_key, data.data_source_key, data.reward_model_key]
    rows, problems = [], []
    for number, row in enumerate(read_table(path, columns).to_pylist(), 1):
        responses = row[data.response_key]
        responses = [responses] if isinstance(responses, str) else responses
        model = row[data.reward_model_key]
        if not responses or not all(isinstance(response, str) for response in responses):
            problems.append(f"row {number}: column {data.response_key!r} is neither text nor a list of texts")
        elif row[data.data_source_key] is None:
            problems.append(f"row {number}: column {data.data_source_key!r} is null")
        elif not isinstance(model, dict) or model.get("ground_truth") is None:
            problems.append(f"row {number}: column {data.reward_model_key!r} has no ground_truth")
        else:
            source = str(row[data.data_source_key])
            rows.append(Row(number, source, tuple(responses), model["ground_truth"], row.get("extra_info")))
    refuse_rows(problems, f"{path}: these rows cannot be scored", _LISTED)
    return rows


def score(rows: Sequence[Row], pool: FunctionPool) -> Iterator[Outcome]:
    requests = []
    for row in rows:
        for sample, response in enumerate(row.responses):
            question = {"data_source": row.source, "solution_str": response, "ground_truth": row.ground_truth}
            requests.append((row, sample, pool.submit(**question, extra_info=row.extra)))
    for row, sample, future in requests:
        try:
            yield Outcome(row.number, sample, row.source, future.result())
        except ScoreError as error:
            yield Outcome(row.number, sample, row.source, None, str(error))


def report(outcomes: Sequence[Outcome], threshold: float) -> str:
    lines = []
    for source in dict.fromkeys(outcome.source for outcome in outcomes):
        own_outcomes = [outcome for outcome in outcomes if outcome.source == source]
        groups: dict[int, list[float]] = {}
        for outcome in own_outcomes:
            if outcome.score is not None:
                groups.setdefault(outcome.row, []).append(outcome.score)
        failed = sum(outcome.score is None for outcome in own_outcomes)
        failures = f", {failed} NOT SCORED" if failed else ""
        rows = plural(len({outcome.row for outcome in own_outcomes}), "row")
        lines.append(f"{source}: {rows}, {plural(len(own_outcomes), 'reply', 'replies')}{failures}")
        if not groups:
            continue
        values = list(groups.values())
        mean = sum(map(sum, values)) / sum(map(len, values))
        lines.append(f"  mean score  {mean:.4f}{_interval(values)}")
        most = max(map(len, values))
        for k in [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k < most] + [most]:
            chances = [
                [pass_at_k(sum(value >= threshold for value in some), len(some), k)]
                for some in values
                if len(some) >= k
            ]
            rate = sum(chance[0] for chance in chances) / len(chances)
            fewer = "" if len(chances) == len(values) else f"  ({len(chances)} rows have so many)"
            lines.append(f"  pass@{k:<5} {rate:.4f}{_interval(chances)}{fewer}")
    return "\n".join(lines)


def _interval(groups: Sequence[Sequence[float]]) -> str:
    interval = mean_interval(groups)
    return "" if interval is None else f"  [{interval[0]:.4f}, {interval[1]:.4f}]"


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableError(f"report.output_path={target} cannot be written ({error.strerror or error})") from error


def refuse_unwritable(target: Path) -> None:
    """Raise ``TableError`` if a file cannot be written; nothing is changed, except that its folder is created."""
    existed = target.exists()
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.open("a").close()
        if not existed:
            target.unlink()


def run(config: EvaluateConfig) -> int:
    rows = rows_of(config)
    target = None if config.report.output_path is None else Path(config.report.output_path).expanduser()
    if target is not None:
        refuse_unwritable(target)
    function = config.custom_reward_function
    if function.path is None:
        function = function.model_copy(update={"path": str(Path(__file__).with_name("rewards") / "builtin.py")})
    with FunctionPool(function) as pool:
        outcomes = list(score(rows, pool))
    with reader_may_leave():
        print(report(outcomes, config.report.pass_threshold))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed[:_LISTED]:
        assert outcome.error is not None
        lines = outcome.error.strip().splitlines()
        message = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
        print(f"row {outcome.row}, reply {outcome.sample + 1}: {message}", file=sys.stderr)
    if len(failed) > _LISTED:
        print(f"and {len(failed) - _LISTED} more; report.output_path=FILE.jsonl has them all", file=sys.stderr)
    if target is not None:  # last: a full disk must not lose the report
        written = (json.dumps(vars(entry), ensure_ascii=False) + "\n" for entry in outcomes)
        with _writing(target):
            target.write_text("".join(written), "utf-8")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    config, _ = load_config(
        sys.argv[1:] if argv is None else argv,
        schema=EvaluateConfig,
        usage="python -m trainers.evaluate",
        rehearse=lambda config, machine: f"{plural(len(rows_of(config)), 'row')} to score",
    )
    return run_command(lambda: run(config), stopped="stopped", expected=(FunctionError, TableError))


if __name__ == "__main__":
    raise SystemExit(main())
