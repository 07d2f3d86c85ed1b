"""``python -m trainers.generate`` and ``python -m trainers.evaluate``: files of replies, and their scores."""

import json
import math
import shutil
from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import textenvs
from textenvs.cli import main as textenvs_main
from textenvs.data.files import write_parquet
from textenvs.data.word_problems import GeneratedMath
from trainers import evaluate, generate
from trainers.evaluate import Outcome, report
from trainers.models import tiny
from trainers.rewards.builtin import compute_score

# ------------------------------------------------------------------ generate


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny.build_tokenizer(["a b"])
    model = tiny.build_model(len(tokenizer), hidden=16, layers=1, heads=2, kv_heads=1, max_context=512)
    tiny.save(folder, model, tokenizer)
    return folder


@pytest.fixture
def prompts(tmp_path):
    return write_parquet(GeneratedMath("easy", seed=0), tmp_path / "prompts.parquet", count=5)


def command(model, prompts, output, *overrides):
    small = ["rollout.max_response_length=6", "rollout.max_prompt_length=300", "data.batch_size=2", "data.n_samples=3"]
    where = [f"model.path={model}", f"data.path={prompts}", f"data.output_path={output}"]
    return [*where, *small, "trainer.threads=1", "engine.threads=1", *overrides]


def test_kill_and_resume_generate_same_replies(model, prompts, tmp_path, monkeypatch):
    assert generate.main(command(model, prompts, tmp_path / "out.parquet")) == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 5
    assert set(parquet.read_table(prompts).column_names) < set(table.column_names)
    for row in table.to_pylist():
        assert len(row["responses"]) == len(row["response_lengths"]) == len(row["finish_reasons"]) == 3
        for length, reason in zip(row["response_lengths"], row["finish_reasons"], strict=True):
            assert 1 <= length <= 6
            assert reason == "length" if length == 6 and reason != "stop" else reason == "stop"
    assert len({tuple(row["responses"]) for row in table.to_pylist()}) == 5, "each has randomness of its own"
    assert not (tmp_path / "out.parquet.parts").exists()

    # Killed while the second of three batches is written.
    written, write = [], generate.write_table

    def write_and_die(path, table):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(path)
        write(path, table)

    monkeypatch.setattr(generate, "write_table", write_and_die)
    again = command(model, prompts, tmp_path / "again.parquet")
    assert generate.main(again) == 130
    assert not (tmp_path / "again.parquet").exists()
    written.clear()
    monkeypatch.setattr(generate, "write_table", lambda path, table: (written.append(path), write(path, table)))
    assert generate.main(again) == 0
    assert len(written) == 2 + 1, "two batches that were missing, and the whole"
    assert parquet.read_table(tmp_path / "again.parquet").equals(table)


def test_template_variables_are_part_of_identity(model, prompts, tmp_path, capsys, monkeypatch):
    copied = shutil.copytree(model, tmp_path / "model")
    template = copied / "chat_template.jinja"
    template.write_text("{% if greet is defined %}{{ greet }}{% endif %}" + template.read_text())
    greeted = command(copied, prompts, tmp_path / "greeted.parquet", "data.chat_template_kwargs.greet=Hello there.")
    plain = command(copied, prompts, tmp_path / "plain.parquet")
    assert generate.main(greeted) == generate.main(plain) == 0
    replies = [parquet.read_table(tmp_path / f"{name}.parquet").column("responses") for name in ("greeted", "plain")]
    assert replies[0] != replies[1]

    def die(path, table):
        raise KeyboardInterrupt

    other = [word.replace("greeted.", "other.") for word in greeted]
    with monkeypatch.context() as patch:
        patch.setattr(generate, "write_table", die)
        assert generate.main(other) == 130
    assert generate.main([word.replace("there", "you") for word in other]) == 1
    assert "differs in chat_template_kwargs" in capsys.readouterr().err
    assert generate.main(command(model, prompts, tmp_path / "no.parquet", "data.chat_template_kwargs.greet=Hi")) == 1
    assert "never reads greet" in capsys.readouterr().err


def test_incompatible_batches_are_refused(model, prompts, tmp_path, capsys):
    output = tmp_path / "out.parquet"
    parts = tmp_path / "out.parquet.parts"
    parts.mkdir()
    (parts / "run.json").write_text('{"seed": 9}')
    assert generate.main(command(model, prompts, output)) == 1
    assert "batches of another run" in capsys.readouterr().err
    output.write_text("mine")
    assert generate.main(command(model, prompts, output)) == 1
    assert "is there already" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_bad_prompts_are_listed_by_row(model, tmp_path, capsys):
    def refused(column, *overrides):
        parquet.write_table(pa.table({"prompt": column}), tmp_path / "bad.parquet")
        assert generate.main(command(model, tmp_path / "bad.parquet", tmp_path / "out.parquet", *overrides)) == 1
        return capsys.readouterr().err

    good = [{"role": "user", "content": "one two three four five"}]
    assert "row 2: " in refused([good, [{"role": "nobody", "content": "x"}], good])
    assert "row 1: column 'prompt' is empty" in refused([[], good])
    assert "row 1: " in refused(["text", "text"])
    output = refused([good], "rollout.max_prompt_length=4")
    assert "row 1: " in output
    assert "more than rollout.max_prompt_length=4" in output
    assert "no column 'question'" in refused([good], "data.prompt_key=question")


def test_context_beyond_model_is_refused(model, prompts, tmp_path, capsys):
    assert generate.main(command(model, prompts, tmp_path / "out.parquet", "rollout.max_prompt_length=510")) == 1
    assert "together more than the model's 512 positions; lower one of them" in capsys.readouterr().err


def test_dry_run_measures_prompts(model, prompts, tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        generate.main(command(model, prompts, tmp_path / "out.parquet", "--dry-run"))
    assert "# 5 prompts of at most " in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.parquet"]


# ------------------------------------------------------------------ evaluate


def replies(tmp_path, rows):
    columns = {
        "responses": [row[1] for row in rows],
        "data_source": [row[0] for row in rows],
        "reward_model": [{"style": "rule", "ground_truth": row[2]} for row in rows],
    }
    parquet.write_table(pa.table(columns), tmp_path / "replies.parquet")
    return f"data.path={tmp_path}/replies.parquet"


def test_built_in_scorers_by_data_source(tmp_path, capsys):
    path = replies(
        tmp_path,
        [
            ("openai/gsm8k", ["#### 7", "#### 8", "7", "#### 7"], "7"),
            ("openai/gsm8k", ["#### 1"] * 4, "7"),
            ("hotpotqa/hotpot_qa", ["Answer: Paris", "Paris"], "Paris"),
        ],
    )
    assert evaluate.main([path, f"report.output_path={tmp_path}/scores.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "openai/gsm8k: 2 rows, 8 replies" in out
    assert "mean score  0.2500" in out
    assert "pass@1     0.2500" in out
    assert f"pass@2     {(1 - 1 / 6) / 2:.4f}" in out
    assert "pass@4     0.5000" in out
    assert "hotpotqa/hotpot_qa: 1 row, 2 replies" in out
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [row["score"] for row in rows] == [1, 0, 0, 1, 0, 0, 0, 0, 1, 0]


def test_environment_scores_replies_to_its_rows(model, tmp_path, capsys):
    rows, output = tmp_path / "rows.parquet", tmp_path / "replies.parquet"
    words = ["rows", "verl", "textenv/gsm8k-interact", "level=easy", "-n", "3", "-o", str(rows)]
    assert textenvs_main(words) == 0
    assert generate.main(command(model, rows, output)) == 0
    assert evaluate.main([f"data.path={output}"]) == 0
    assert "textenv/gsm8k-interact: 3 rows, 9 replies\n  mean score" in capsys.readouterr().out
    # The scores are the rewards of the first turn, as the environment gives them.
    table = parquet.read_table(rows).to_pylist()
    answers = [[f"#### {row['reward_model']['ground_truth']}", "#### 99999", "no"] for row in table]
    written = [{**row, "responses": replies} for row, replies in zip(table, answers, strict=True)]
    parquet.write_table(pa.Table.from_pylist(written), output)
    report = tmp_path / "report.jsonl"
    assert evaluate.main([f"data.path={output}", f"report.output_path={report}"]) == 0
    scores = [json.loads(line)["score"] for line in report.read_text().splitlines()]
    env, expected = textenvs.make("textenv/gsm8k-interact", level="easy"), []
    for seed, replies in enumerate(answers):
        for reply in replies:
            env.reset(seed=seed)
            expected.append(env.step(reply)[1])
    assert scores == expected
    assert expected[0] == 1.0


def test_unscorable_replies_are_listed_not_zero(tmp_path, capsys):
    (tmp_path / "score.py").write_text(
        "def mine(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'raise': 1 / (solution_str != 'raise'), 'nan': float('nan')}.get(solution_str, 0.5)\n"
    )
    path = replies(tmp_path, [("a", ["x", "nan"], "1"), ("a", ["raise"], "1"), ("b", ["nan"], "1")])
    overrides = [f"custom_reward_function.path={tmp_path}/score.py", "custom_reward_function.name=mine"]
    assert evaluate.main([path, *overrides]) == 1
    output = capsys.readouterr()
    assert "a: 2 rows, 3 replies, 2 NOT SCORED" in output.out
    assert "mean score  0.5000" in output.out
    assert "b: 1 row, 1 reply, 1 NOT SCORED" in output.out
    assert output.out.count("mean score") == 1
    assert "row 1, reply 2: mine failed: it returned nan, which is no finite number" in output.err
    assert "row 2, reply 1: " in output.err
    assert "ZeroDivisionError" in output.err


def test_file_that_cannot_be_scored_is_refused(tmp_path, capsys):
    path = replies(tmp_path, [("a", [], "1"), ("a", ["x"], None)])
    assert evaluate.main([path]) == 1
    output = capsys.readouterr().err
    assert "row 1: column 'responses'" in output
    assert "row 2: column 'reward_model' has no ground_truth" in output
    assert evaluate.main([path, "data.response_key=answers"]) == 1
    assert "no column 'answers'; it has responses, data_source, reward_model" in capsys.readouterr().err
    assert evaluate.main(["data.path=nowhere.parquet"]) == 1
    assert "nowhere.parquet: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["folder", "file/out"])
def test_unwritable_output_is_refused_first(tmp_path, model, prompts, capsys, monkeypatch, where):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(evaluate, "score", lambda *_: pytest.fail("it scored"))
    monkeypatch.setattr(generate, "load", lambda *_, **__: pytest.fail("it loaded a model"))
    row = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "4"}, "responses": ["4"]}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "replies.parquet")
    argv = [f"data.path={tmp_path}/replies.parquet", f"report.output_path={tmp_path / where}"]
    assert evaluate.main(argv) == 1
    assert f"report.output_path={tmp_path / where} cannot be written" in capsys.readouterr().err
    assert generate.main(command(model, prompts, tmp_path / where)) == 1
    assert str(tmp_path / where) in capsys.readouterr().err


def test_scores_are_printed_despite_write_failure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "refuse_unwritable", lambda target: None)
    row = {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "4"}, "responses": ["#### 4"]}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "replies.parquet")
    assert evaluate.main([f"data.path={tmp_path}/replies.parquet", f"report.output_path={tmp_path}"]) == 1
    output = capsys.readouterr()
    assert "mean score" in output.out
    assert "cannot be written" in output.err


def test_unknown_data_source_names_known_ones():
    with pytest.raises(ValueError, match="known are openai/gsm8k"):
        compute_score("nowhere", "x", "1")


@pytest.mark.parametrize("extra", [None, {"index": 1}, {"problem": "What is 2 to the power of 10?"}])
@pytest.mark.parametrize(
    ("reply", "score"), [(r"\boxed{1024}", 1.0), (r"\boxed{2^{10}}", 0.0), (r"\boxed{1000+24}", 0.0)]
)
def test_expression_scorer_evaluates_without_problem_column(reply, score, extra):
    pytest.importorskip("math_verify", reason="needs the extra 'math'")
    assert compute_score("lighteval/MATH", reply, "1024", extra) == score


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=4))
def test_pass_at_k_equals_share_of_draws(passes):
    """Its definition: over all ways to draw k of a row's replies; rows with fewer replies are left out, and counted."""
    outcomes = [
        Outcome(row, sample, "s", float(good)) for row, some in enumerate(passes, 1) for sample, good in enumerate(some)
    ]
    text = report(outcomes, 0.5)
    for k in (1, 2, 4, max(map(len, passes))):
        rates = [sum(map(any, combinations(some, k))) / math.comb(len(some), k) for some in passes if len(some) >= k]
        if rates:
            assert f"pass@{k:<5} {sum(rates) / len(rates):.4f}" in text
            assert (f"({len(rates)} rows have so many)" in text) or len(rates) == len(passes)
