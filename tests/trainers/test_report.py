"""Reports: metrics against naive sums, logs that survive crashes and resumes, text that cannot harm a terminal."""

import io
import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from simulated_time import Clock
from trajectories import trajectory_of, turns_of

from trainers.report.console import ConsoleLogger, conversation, pick, print_conversations
from trainers.report.loggers import JsonlLogger, Loggers, MetricsError, TensorBoardLogger, read_jsonl
from trainers.report.metrics import Phases, episode_metrics
from trainers.report.plots import _smooth, curves_of, plot
from trainers.trajectory import Status


def episode(turns=((3, 1.0),), *, stop="solved", status=Status.COMPLETED, prompt=2, **fields):
    """An episode of turns given as (sampled tokens, reward), with two observation tokens between turns."""
    sizes = [(2 if turn else prompt, length) for turn, (length, _) in enumerate(turns)]
    return trajectory_of(
        turns_of(*sizes, tail=0 if turns else prompt),
        [reward for _, reward in turns],
        logprobs=-1,
        turn_terms=fields.pop("terms", tuple({"correct": reward} for _, reward in turns)),
        truncated=status is not Status.COMPLETED,
        status=status,
        stop=stop,
        **fields,
    )


def talk(*pairs):
    return tuple({"role": role, "content": content} for role, content in pairs)


def printed(renderable_or_function, **options):
    """Return a console's output as plain text."""
    stream = io.StringIO()
    console = Console(file=stream, width=80, **options)
    if callable(renderable_or_function):
        renderable_or_function(console)
    else:
        console.print(renderable_or_function)
    return stream.getvalue()


# --- metrics


def test_averages_count_episodes_once_without_failures():
    episodes = [
        episode([(10, 1.0)]),
        episode([(2, 0.0), (4, 0.9)]),
        episode([(1, 0.0), (1, -0.1), (1, -0.1)], stop="max_assistant_turns", status=Status.TRUNCATED_TURNS),
        episode([(50, 100.0)], stop="user_failed", status=Status.ERROR_ENV),
    ]
    metrics = episode_metrics(episodes, "train")
    expected = {
        "episodes": 4,
        "left_out": 1 / 4,
        "status/completed": 2 / 4,
        "status/truncated_turns": 1 / 4,
        "status/error_env": 1 / 4,
        "reward": (1.0 + 0.9 - 0.2) / 3,
        "reward_std": float(np.std([1.0, 0.9, -0.2])),
        "solved": 2 / 3,
        "first_reply": 1 / 3,
        "turns": (1 + 2 + 3) / 3,
        "response_tokens": (10 + 6 + 3) / 3,
        "turn_tokens": (10 + 2 + 4 + 1 + 1 + 1) / 6,
        "episode_tokens": (12 + 10 + 9) / 3,
        "truncated": 1 / 3,
        "stop/solved": 2 / 3,
        "stop/max_assistant_turns": 1 / 3,
        "terms/correct": (1.0 + 0.9 - 0.2) / 3,
    }
    assert metrics == {f"train/{name}": pytest.approx(value) for name, value in expected.items()}


def test_mid_episode_start_is_no_first_reply_success():
    begun = replace(episode([(10, 1.0)]), metrics={"start_turn": 2.0})
    metrics = episode_metrics([episode([(10, 1.0)]), begun], "train")
    assert (metrics["train/solved"], metrics["train/first_reply"]) == (1.0, 0.5)


GROUPS = [("a", 1.0), ("a", 3.0), ("b", 5.0), ("b", 7.0), ("c", 0.0), ("c", 0.0)]


def test_reward_standard_error_counts_groups():
    pairs = [replace(episode([(1, reward)]), group_id=group) for group, reward in GROUPS]
    metrics = episode_metrics(pairs, "x")
    assert metrics["x/reward_se"] == pytest.approx(np.std([2.0, 6.0, 0.0], ddof=1) / 3**0.5)
    assert "x/reward_se" not in episode_metrics(pairs[:2], "x")


def test_undefined_metrics_are_absent():
    assert episode_metrics([], "val") == {"val/episodes": 0.0}
    failed = episode_metrics([episode(status=Status.ABORTED)], "val")
    assert failed == {"val/episodes": 1.0, "val/left_out": 1.0, "val/status/aborted": 1.0}
    silent = episode_metrics([episode([], status=Status.TRUNCATED_CONTEXT, stop=None)], "val")
    assert "val/turn_tokens" not in silent
    assert silent["val/turns"] == 0.0


def test_batch_metrics_count_failures():
    metrics = episode_metrics([episode()], "train", ended={"completed": 3.0, "error_env": 1.0})
    assert (metrics["train/episodes"], metrics["train/left_out"], metrics["train/status/error_env"]) == (1, 0.25, 0.25)
    assert "train/left_out" not in episode_metrics([episode()], "train", ended={})


def test_episodes_without_success_count_to_no_share():
    solved, game = episode(), episode(stop="player-0_won", has_success=False)
    metrics = episode_metrics([solved, game], "x")
    assert (metrics["x/solved"], metrics["x/first_reply"]) == (1.0, 1.0)
    metrics = episode_metrics([game, replace(game, stop="solved")], "x")
    assert metrics["x/stop/solved"] == 0.5
    assert not metrics.keys() & {"x/solved", "x/first_reply"}


def test_solved_stop_needs_termination():
    assert episode_metrics([episode(status=Status.TRUNCATED_TURNS)], "x")["x/solved"] == 0.0


def test_terms_metrics_and_sources():
    episodes = [
        episode([(1, 1.5)], terms=({"correct": 1.0, "format": 0.5},), metrics={"calls": 4.0}, data_source="a"),
        episode([(1, 0.0), (1, 1.0)], terms=({"correct": 0.0}, {"correct": 1.0}), data_source="b"),
        episode([(1, 0.0)], terms=({"correct": 0.0},), data_source="b", stop="gave_up"),
    ]
    metrics = episode_metrics(episodes, "val")
    assert metrics["val/terms/correct"] == pytest.approx(2 / 3)
    assert metrics["val/terms/format"] == pytest.approx(0.5 / 3)
    assert metrics["val/metrics/calls"] == 4.0
    assert {name: value for name, value in metrics.items() if "/source/" in name} == {
        "val/source/a/reward": 1.5,
        "val/source/a/solved": 1.0,
        "val/source/a/first_reply": 1.0,
        "val/source/b/reward": 0.5,
        "val/source/b/solved": 0.5,
        "val/source/b/first_reply": 0.0,
    }
    assert not [name for name in episode_metrics(episodes[1:], "val") if "/source/" in name]


@given(st.lists(st.tuples(st.sampled_from(["rollout", "update", None]), st.integers(0, 50)), max_size=12))
def test_phases_account_for_every_second(steps):
    clock = Clock()
    phases = Phases(clock=clock)
    for name, seconds in steps:
        if name is None:
            clock.now += seconds
            continue
        with phases(name):
            clock.now += seconds
    spent = {name: sum(s for n, s in steps if n == name) for name, _ in steps}
    metrics = phases.finish()
    assert metrics.pop("time/iteration_s") == sum(spent.values())
    assert metrics.pop("time/other_s") == spent.pop(None, 0)
    assert metrics == {f"time/{name}_s": seconds for name, seconds in spent.items()}
    assert phases.finish() == {"time/other_s": 0.0, "time/iteration_s": 0.0}


def test_failed_phase_is_timed_and_ended():
    clock, seen = Clock(), []
    phases = Phases(seen.append, clock)

    def fail():
        with phases("update"):
            clock.now += 2
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with phases("rollout"):
        pass
    assert seen == ["update", "rollout"]
    assert phases.finish()["time/update_s"] == 2


# --- loggers


@given(st.lists(st.dictionaries(st.text(max_size=8), st.floats(), max_size=3), max_size=5), st.integers(0, 6))
def test_log_reads_back_and_resumes(tmp_path_factory, rows, first_step):
    rows = [{f"m/{name}": value for name, value in row.items()} for row in rows]
    path = tmp_path_factory.mktemp("log") / "deep" / "metrics.jsonl"
    logger = JsonlLogger(path)
    for step, row in enumerate(rows):
        logger.log(step, row)
    logger.close()
    assert str(list(read_jsonl(path))) == str(list(enumerate(rows)))  # as text: nan is not equal to itself

    again = JsonlLogger(path, first_step=first_step)
    again.log(first_step, {"new": 1})
    again.close()
    retained = [(step, row) for step, row in enumerate(rows) if step < first_step]
    assert str(list(read_jsonl(path))) == str([*retained, (first_step, {"new": 1.0})])


def test_log_lines_are_strict_json_and_flushed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    logger = JsonlLogger(path)
    logger.log(3, {"a": math.nan, "b": -math.inf, "c": np.float32(0.5), "d": 2})

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "step": 3,
        "a": "NaN",
        "b": "-Infinity",
        "c": 0.5,
        "d": 2.0,
    }
    logger.close()


def test_only_truncated_last_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = '{"step": 0, "a": 1.0}\n'
    path.write_text(good + '{"step": 1, "a": 2.')
    logger = JsonlLogger(path, first_step=5)
    logger.log(5, {"a": 3})
    logger.close()
    assert list(read_jsonl(path)) == [(0, {"a": 1.0}), (5, {"a": 3.0})]

    for damage in ('{"step": 1, "a": 2.\n', '{"a": 1}\n', "[]\n", '{"step": 1, "a": null}\n'):
        path.write_text(good + damage + good)
        with pytest.raises(MetricsError, match="line 2: not a line of metrics"):
            JsonlLogger(path)
        assert path.read_text() == good + damage + good


def test_tensorboard_purges_steps_after_resume(tmp_path, monkeypatch):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    # Files of one second are read in the order of their numbers as text, and other tests have counted on: 9, 10.
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))
    for first_step, steps, value in ((0, (1, 2, 3), 1.0), (2, (2, 3, 4), 2.0)):
        logger = TensorBoardLogger(tmp_path, first_step=first_step)
        for step in steps:
            logger.log(step, {"train/reward": value})
        logger.close()
    events = accumulators.EventAccumulator(str(tmp_path)).Reload()
    points = [(event.step, event.value) for event in events.Scalars("train/reward")]
    assert points == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


@pytest.mark.parametrize("make", [JsonlLogger, TensorBoardLogger])
def test_old_log_stays_until_first_write(tmp_path, make):
    path = tmp_path / "run"

    def contents():
        return sorted((file.name, file.read_bytes()) for file in [path, *path.rglob("*")] if file.is_file())

    logger = make(path)
    for step in (0, 1, 2):
        logger.log(step, {"a": step})
    logger.close()
    before = contents()
    make(path, first_step=1).close()  # a run that failed before its first row
    assert contents() == before
    logger = make(path, first_step=None)
    logger.log(1, {"b": 1})
    logger.close()
    if make is JsonlLogger:
        assert [step for step, _ in read_jsonl(path)] == [0, 1, 2, 1]


def test_missing_tensorboard_names_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"textenvs\[train\]"):
        TensorBoardLogger(tmp_path)


def test_bundle_feeds_and_closes_all(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    loggers = Loggers([JsonlLogger(path) for path in paths])

    def interrupted():
        with loggers:
            loggers.log(1, {"x": 2})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [list(read_jsonl(path)) for path in paths] == [[(1, {"x": 2.0})]] * 2
    with pytest.raises(ValueError, match="closed"):
        loggers.log(2, {})


METRICS = {
    "train/reward": 0.5123,
    "train/solved": 0.75,
    "actor/approx_kl_k3": 0.00123,
    "time/iteration_s": 3.14,
    "time/rollout_s": 2.0,
    "time/other_s": 0.1,
    "perf/tokens_per_s": 2345.6,
}


def test_plain_lines_show_available_metrics_only():
    def run(console):
        logger = ConsoleLogger(200, console)
        logger.progress.enter("rollout")
        logger.log(0, {"val/solved": 0.5, "val/reward": -0.25, "val/left_out": 0.0})
        logger.log(0, {"val/reward": 1.0, "val/left_out": 0.25})
        logger.log(12, METRICS)
        logger.log(13, {"unknown/metric": 1.0})
        logger.print("[bold]done[/bold] " + "x" * 100)
        logger.close()
        logger.close()

    assert printed(run).splitlines() == [
        "validation   0/200  reward -0.250  solved 50.0%",
        "validation   0/200  reward +1.000  not scored 25.0%",
        "iteration   12/200  reward +0.512  solved 75.0%  KL 0.0012  tokens/s 2346  3.1 s (rollout 2.0)",
        "[bold]done[/bold] " + "x" * 100,
    ]


def test_line_shows_signal_problems():
    harmless = {"train/groups_tied": 0.5, "rollout/replies_cut": 0.05, "actor/outside_clip_first": 0.01}
    labels = ("groups tied 75.0%", "replies cut 30.0%", "outside the clip range at first 26.0%")

    def line(metrics):
        return printed(lambda console: ConsoleLogger(9, console).log(1, {"train/reward": 0.5, **metrics}))

    assert line(harmless) == line({})
    for (name, value), label in zip(harmless.items(), labels, strict=True):
        assert label in line({**harmless, name: value + 0.25})


def test_terminal_shows_lines_and_transient_bar():
    def run(console):
        logger = ConsoleLogger(20, console)
        logger.progress.enter("roll[out]")
        logger.log(12, METRICS)
        logger.close()

    output = printed(run, force_terminal=True, color_system=None)
    assert "iteration  12/20  reward +0.512" in output
    assert "roll[out]" in output  # the phase, not markup
    assert output.rstrip().endswith("\x1b[2K")  # the last thing done is erasing the bar


# --- conversations


HOSTILE = "\x1b[31mred\x1b[0m [bold]not markup[/bold] [/] \x07\r\x08 \u202eabc 数 é 🙂\nnext"


def test_model_text_cannot_control_the_terminal():
    messages = talk(("user", HOSTILE), ("assistant", HOSTILE), ("user", "[red]no"), ("assistant", "#### 5"))
    played = episode([(3, 0.0), (4, 0.9)], messages=messages, task_key="[i]key[/i]\x1b", error="[b]boom")
    output = printed(lambda console: print_conversations([played], console, "sample"))
    assert not {symbol for symbol in output if symbol != "\n" and (ord(symbol) < 32 or ord(symbol) == 0x202E)}
    for text in (
        "[bold]not markup[/bold] [/]",
        "[red]no",
        r"\x1b[31mred",
        "数 é 🙂",
        r"[i]key[/i]\x1b",
        "error: [b]boom",
    ):
        assert text in output
    assert "sample 1/1" in output


def test_each_reward_stands_below_its_turn():
    messages = talk(
        ("assistant", "part of the opening"),
        ("user", "question"),
        ("assistant", "first"),
        ("user", "no"),
        ("assistant", "second"),
    )
    terms = ({"correct": 0.0, "extra_turn": 0.0}, {"correct": 1.0, "extra_turn": -0.1})
    played = episode([(1, 0.0), (1, 0.9)], messages=messages, terms=terms)
    lines = [line.strip(" │") for line in printed(conversation(played)).splitlines()]
    assert lines[1:8] == [
        "assistant: part of the opening",
        "user: question",
        "assistant: first",
        "turn 1: reward +0.00",
        "user: no",
        "assistant: second",
        "turn 2: reward +0.90 (correct +1.00, extra_turn -0.10)",
    ]
    assert "solved, reward +0.90" in lines[8]


def test_rewards_after_compaction_stand_below_their_turns():
    messages = talk(("user", "summary"), ("assistant", "kept"), ("user", "room"), ("assistant", "last"))
    played = episode([(1, 0.25), (1, 0.0), (1, 0.75)], messages=messages)
    (start,) = np.flatnonzero(played.turn_id == 2)
    played = replace(played, segment_starts=np.array([0, start - 1], np.int32))
    lines = [line.strip(" │") for line in printed(conversation(played)).splitlines()]
    assert lines[1:7] == [
        "(2 turns in conversations that were left)",
        "user: summary",
        "assistant: kept",
        "user: room",
        "assistant: last",
        "turn 3: reward +0.75 (correct +0.75)",
    ]


def test_trajectory_with_missing_messages_is_shown():
    output = printed(conversation(episode([(1, 0.0), (1, 0.5)], messages=talk(("user", "q"), ("assistant", "only")))))
    assert "assistant: only" in output


def test_picks_differ_before_they_repeat():
    at_once = [episode([(1, 1.0)], task_key=f"once{i}") for i in range(5)]
    later = episode([(1, 0.0), (1, 0.9)], task_key="later")
    never = episode([(1, 0.0)] * 3, stop=None, status=Status.TRUNCATED_TURNS, task_key="never")
    chosen = [played.task_key for played in pick([*at_once, later, never], 3)]
    assert chosen == ["once0", "later", "never"]
    assert [played.task_key for played in pick([*at_once, later, never], 5)] == [*chosen, "once1", "once2"]
    assert pick([], 3) == []


# --- curves


def test_curves_merge_partial_steps():
    curves = curves_of([(2, {"a": 1.0}), (1, {"a": 5.0, "b": 7.0}), (2, {"a": 3.0})])
    assert {name: (steps.tolist(), values.tolist()) for name, (steps, values) in curves.items()} == {
        "a": ([1, 2], [5.0, 3.0]),
        "b": ([1], [7.0]),
    }


@given(st.lists(st.floats(-100, 100), min_size=20, max_size=90))
def test_smoothing_is_centred_mean(values):
    half = max(1, len(values) // 20)
    expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    np.testing.assert_allclose(_smooth(np.array(values)), expected, atol=1e-9)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, {"val/solved": 0.5})],
        [(i, {"train/solved": i / 30, "actor/ref_kl": -0.1, "time/rollout_s": 1.0}) for i in range(30)],
        [(1, {"train/reward": math.nan}), (2, {"train/reward": math.inf, "time/other_s": math.nan})],
        [(i, dict(METRICS, **{"val/reward": 0.1} if i % 3 == 0 else {})) for i in range(4)],
    ],
)
def test_any_run_can_be_drawn(rows, tmp_path):
    path = plot(rows, tmp_path / "deep" / "curves.png", title="a $strange$ {title}_")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_is_error(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        plot([(1, {"other": 1.0})], tmp_path / "curves.png")
