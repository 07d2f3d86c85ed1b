"""The page without a browser: no data leaves its place, nothing is loaded, the data is what was written."""

import base64
import gzip
import hashlib
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

import textenvs
from textenvs.cli import main
from textenvs.evaluate.records import Record
from textenvs.evaluate.statistics import mean_interval
from textenvs.messages import assistant, user
from textenvs.records import RecordsError, open_run
from textenvs.records.reader import _of_record
from textenvs.viewer import Document, write_page
from textenvs.viewer.branches import Branch, BranchError
from textenvs.viewer.compare import Side, paired
from textenvs.viewer.document import _numbers, episode_json
from textenvs.viewer.page import served_page

VIEWER = Path(synthetic.__file__).parents[3] / "textenvs" / "viewer"
PAGE = (VIEWER / "page.html").read_text()


class Elements(HTMLParser):
    """Parsed elements with their attributes and texts."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_data(self, data):
        if self.elements:
            self.elements[-1][2].append(data)

    def handle_endtag(self, tag):
        self.elements.append(("", {}, []))

    def all(self, tag):
        return [(attrs, "".join(text)) for name, attrs, text in self.elements if name == tag]


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text, validate=True)))


def data_of(path):
    scripts = Elements(path.read_text()).all("script")
    return {attrs["id"].removeprefix("data:"): unpacked(text) for attrs, text in scripts if "id" in attrs}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return synthetic.write_run(tmp_path_factory.mktemp("viewer") / "run", 2, 2, 3)


def test_page_has_contexts_of_an_evaluation():
    left = (user("Before."), assistant("Long ago."))
    record = Record(0, 0, 3, 1, "key", "source", turn_rewards=(1.0,), terminated=True, stop="solved")
    entries = [
        episode_json(_of_record(0, replace(record, messages=(user("Now."),), contexts=contexts, context_roles=roles)))
        for contexts, roles in (((left,), ("solver", "critic")), ((), ()))
    ]
    assert (entries[0]["contexts"], entries[0]["roles"]) == ([list(left)], ["solver", "critic"])
    assert not {"contexts", "roles"} & set(entries[1])


def test_episode_of_several_contexts_is_not_continued(tmp_path):
    synthetic.write_rows(tmp_path / "one.parquet", [synthetic.several_contexts()], kind="train", iteration=1)
    (iteration,) = open_run(tmp_path / "one.parquet").iterations
    (episode,) = iteration.episodes()
    with pytest.raises(BranchError, match="several contexts"):
        Branch(episode, 1, textenvs.make(synthetic.ENVIRONMENT["id"]))


def test_page_runs_own_script_and_loads_nothing():
    elements = Elements(PAGE)
    assert [attrs for attrs, _ in elements.all("script")] == [{}]
    assert not [attrs for _, attrs, _ in elements.elements if attrs.keys() & {"src", "href", "srcset", "style"}]
    assert not elements.all("link")
    ((_, script),), ((_, style),) = elements.all("script"), elements.all("style")
    assert not re.search(r"@import|url\(", style)
    assert not re.search(r"\bimport\(|\beval\(|new Function", script)
    ((policy,),) = [
        [attrs["content"]] for attrs, _ in elements.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    sources = dict(directive.strip().split(" ", 1) for directive in policy.split(";"))
    assert sources == {
        "default-src": "'none'",
        "script-src": f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'",
        "style-src": f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",  # text that would become elements is an error
    }
    assert served_page() == PAGE.replace("<!--data-->", "").replace("connect-src 'none'", "connect-src 'self'")


def test_sources_set_no_html():
    sources = "".join(path.read_text() for path in (VIEWER / "frontend" / "src").glob("*.js*"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerously|srcdoc", sources)


def test_hostile_texts_stay_in_their_data(tmp_path):
    rows = synthetic.hostile_rows()
    synthetic.write_rows(tmp_path / "rollouts" / "train" / "000001.parquet", rows, kind="train", iteration=1)
    path = write_page(Document([tmp_path]), tmp_path / "page.html")
    data = data_of(path)
    assert data.keys() == {"index", "0/train/1/0"}
    expected = PAGE.replace("<!--data-->", "")
    assert (
        re.sub(r'<script type="text/plain" id="[\w:/]+">[A-Za-z0-9+/=]*</script>\n', "", path.read_text()) == expected
    )
    for row, entry in zip(rows, data["0/train/1/0"], strict=True):
        assert [m["content"] for m in entry["messages"]] == [m["content"] for m in row["messages"]]
    assert data["index"]["runs"][0]["iterations"][0]["rows"]["episode_id"] == [row["episode_id"] for row in rows]


def test_configuration_with_infinity_is_json(tmp_path):
    (tmp_path / "config.yaml").write_text("a: .inf\nb: {c: [-.inf, .nan, 1.5]}\n")
    config = Document([tmp_path]).index()["runs"][0]["config"]
    assert config == {"a": None, "b": {"c": [None, None, 1.5]}}  # what browsers read has no numbers for them


def test_non_finite_numbers_become_null(tmp_path):
    row = synthetic.hostile_rows()[0]
    terms = [[("correct", float("nan"))] for _ in row["turn_rewards"]]
    row |= {"turn_rewards": [float("inf")] * len(terms), "turn_terms": terms}
    synthetic.write_rows(tmp_path / "rollouts" / "train" / "000001.parquet", [row], kind="train", iteration=1)
    (entry,) = data_of(write_page(Document([tmp_path]), tmp_path / "page.html"))["0/train/1/0"]
    assert (entry["terms"], entry["rewards"]) == ([{"correct": None}] * len(terms), [None] * len(terms))


def test_data_is_what_the_reader_reads(run, tmp_path):
    data = data_of(write_page(Document([run]), tmp_path / "page.html"))
    (run_entry,) = data["index"]["runs"]
    opened = open_run(run)
    assert [(entry["kind"], entry["number"]) for entry in run_entry["iterations"]] == [
        (i.kind, i.number) for i in opened.iterations
    ]
    assert run_entry["metrics"] == {
        "steps": [1, 2],
        "values": {"train/reward": [0.1, 0.2], "actor/entropy": [1.0, 0.5], "odd": [None, None]},
    }
    for entry, iteration in zip(run_entry["iterations"], opened.iterations, strict=True):
        rows = entry["rows"]
        for n, episode in enumerate(iteration.episodes()):
            details = data[rows["chunk"][n]][rows["place"][n]]
            assert rows["total_reward"][n] == episode.total_reward
            assert details["messages"] == list(episode.messages)
            tokens, mask = details["tokens"], episode.tokens.action_mask
            places = [place for a, b, _ in tokens["spans"] for place in range(a, b)]
            assert places == np.flatnonzero(mask).tolist()
            assert [t for a, b, t in tokens["spans"] for _ in range(a, b)] == episode.tokens.turn_id[mask].tolist()
            for name in ("advantage", "returns", "baseline", "ratio", "entropy", "mismatch"):
                np.testing.assert_allclose(
                    np.array(tokens[name], float), getattr(episode.tokens, name)[mask], rtol=1e-5
                )


@given(st.lists(st.floats(width=32)))
def test_numbers_keep_six_digits(values):
    for value, short in zip(values, _numbers(np.array(values)), strict=True):
        if np.isfinite(value):
            assert short == pytest.approx(value, rel=1e-5, abs=1e-16)
        else:
            assert short is None


def test_only_last_iterations_are_shown(run, tmp_path):
    (run_entry,) = Document([run], last=1).index()["runs"]
    assert [(iteration["kind"], iteration["number"]) for iteration in run_entry["iterations"]] == [
        ("train", 2),
        ("validation", 2),
    ]
    assert run_entry["left_out"] == ["train 1", "validation 1"]


def test_damaged_file_hides_no_other(run, tmp_path):
    damaged = shutil.copytree(run, tmp_path / "run")
    file = damaged / "rollouts" / "train" / "000001.parquet"
    file.write_bytes(file.read_bytes()[:5000])
    index = Document([damaged, run]).index()
    iterations = {(iteration["kind"], iteration["number"]): iteration for iteration in index["runs"][0]["iterations"]}
    assert "not a readable Parquet file" in iterations["train", 1]["problem"]
    assert iterations["train", 2]["problem"] == ""
    assert iterations["train", 2]["rows"]["episode_id"]
    assert [0, "train", 1] not in [pair["first"] for pair in index["pairs"]]
    write_page(Document([damaged]), tmp_path / "page.html")
    with pytest.raises(RecordsError, match="not a readable Parquet file"):
        Document([file]).index()


def test_removed_files_leave_the_cache(run, tmp_path):
    followed = shutil.copytree(run, tmp_path / "run")
    document = Document([followed])
    document.index()
    (followed / "rollouts" / "train" / "000001.parquet").unlink()
    document.index()
    assert {file.name for file in document._parts} == {"000001.parquet", "000002.parquet"}
    assert {file.parent.name for file in document._parts if file.stem == "000001"} == {"validation"}


def test_comparison_is_paired_by_task(run, tmp_path):
    better = synthetic.write_run(tmp_path / "better", 2, 3, 4, skill=1.0)
    index = Document([run, better]).index()
    assert [run_entry["name"] for run_entry in index["runs"]] == ["run", "better"]
    copies = [shutil.copytree(run, tmp_path / name / "run") for name in ("a", "b")]
    assert [run_entry["name"] for run_entry in Document(copies).index()["runs"]] == ["a/run", "b/run"]
    assert index["pairs"][0]["first"] == [0, "validation", 2], "the last validation first"
    pair = next(p for p in index["pairs"] if p["first"] == [0, "train", 1])
    assert pair["alone"] == [0, 1]
    means = []
    for path in (run, better):
        tasks = {}
        for line in open_run(path).iteration(1).summaries():
            if not line.forked_from:
                tasks.setdefault(line.task_key, []).append(line.total_reward)
        means.append({key: np.mean(values) for key, values in tasks.items()})
    common = [key for key in means[0] if key in means[1]]
    differences = [means[1][key] - means[0][key] for key in common]
    assert [task[1] for task in pair["tasks"]] == common
    np.testing.assert_allclose([task[6] - task[3] for task in pair["tasks"]], differences)
    low, high = mean_interval([[difference] for difference in differences])
    assert pair["estimates"]["return"]["difference"] == pytest.approx(
        {"value": np.mean(differences), "low": low, "high": high}
    )


def test_comparison_of_episodes_without_success_has_none():
    rows = {
        "status": ["completed"],
        "total_reward": [1.0],
        "forked_from": [""],
        "data_source": ["a"],
        "task_key": ["t"],
    }
    first, second = (
        {("train", 1): Side(n, "train", 1, {**rows, "success": [success]})} for n, success in enumerate((None, True))
    )
    (pair,) = paired(first, second)
    assert set(pair["estimates"]) == {"return"}
    assert pair["tasks"] == [["a", "t", 1, 1.0, None, 1, 1.0, 1.0]]


def test_evaluation_has_its_results(tmp_path):
    for name, policy in (("expert", "expert"), ("random", "careless")):
        words = [
            "textenv/gsm8k-interact",
            "level=easy",
            "--policy",
            policy,
            "--num-tasks",
            "3",
            "--samples",
            "2",
            "--quiet",
        ]
        assert main(["evaluate", *words, "--out", str(tmp_path / name)]) == 0
    index = Document([tmp_path / "expert", tmp_path / "random"]).index()
    first = index["runs"][0]
    assert first["results"]["all"]["success"]["value"] == 1.0
    assert first["iterations"][0]["rows"]["success"] == [True] * 6
    (pair,) = index["pairs"]
    assert pair["first"] == [0, "evaluation", 0]
    assert len(pair["tasks"]) == 3
    assert pair["estimates"]["success"]["difference"]["value"] <= 0


def test_command_writes_one_file(run, tmp_path, capsys):
    assert main(["view", str(run), "--output", str(tmp_path / "a.html"), "--no-open"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.html'}\n"
    assert list(data_of(tmp_path / "a.html"))[0] == "index"
    file = run / "rollouts" / "train" / "000002.parquet"
    assert main(["view", str(file), "--output", str(tmp_path / "b.html"), "--no-open"]) == 0
    assert set(data_of(tmp_path / "b.html")) == {"index", "0/train/2/0"}


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["{tmp}/nothing"], 1, "there is no file or folder"),
        (["{run}", "{run}", "{run}"], 2, "one or two are shown, not 3"),
        (["{run}", "--policy", "expert"], 2, "go with --serve"),
        (["{run}", "--serve", "--output", "x.html"], 2, "which is meant?"),
        (["{run}", "--serve", "--policy", "expert"], 2, "the expert is there without --policy"),
        (["{run}", "--last", "0"], 2, "positive integer or `all`"),
        (["{run}", "--output", "{run}/config.yaml/x.html", "--no-open"], 1, "--output names another file"),
    ],
)
def test_mistakes_are_named(run, tmp_path, capsys, words, status, message):
    assert main(["view", *(word.format(run=run, tmp=tmp_path) for word in words)]) == status
    assert message in capsys.readouterr().err


def in_node(program):
    """Return what a program of the page's functions of data prints, as JSON."""
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    page = "globalThis.location = { search: '' }; globalThis.document = { getElementById: () => null };"
    source = (VIEWER / "frontend" / "src" / "data.js").as_uri()
    program = f"{page} const data = await import('{source}'); console.log(JSON.stringify({program}));"
    ran = subprocess.run(["node", "--input-type=module", "-e", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_solved_is_of_episodes_that_can_be():
    rows = "[{success: true}, {success: false}, {success: null}]"
    assert in_node(f"[data.solved({rows}), data.solved([{{success: null}}]), data.solved([])]") == [50, None, None]


def test_advantage_is_the_sum_of_its_parts():
    """The shown parts, as the learner adds them, with and without a normalization over the batch."""
    cases = []
    for scale, reaction, teacher, normed in itertools.product((0.5, 1, 4), (None, -0.25, 2), (None, 0.125), (0, 1)):
        move, gain, base = reaction or 0.0, 3.0, 1.0
        own = (gain - base + move) / scale if normed else (gain - base) / scale + move
        numbers = {"gain": gain, "base": base, "advantage": own + (teacher or 0.0), "normed": bool(normed)}
        cases.append((scale, {**numbers, "reaction": reaction, "teacher": teacher}))
    found = in_node(f"{json.dumps([case for _, case in cases])}.map(data.advantageOf)")
    assert found == [{"difference": 2, "scale": pytest.approx(scale)} for scale, _ in cases]
    alone = {"gain": 1, "base": 1, "advantage": 0.5, "reaction": 0.5, "teacher": None, "normed": False}
    assert in_node(f"data.advantageOf({json.dumps(alone)})") == {"difference": 0, "scale": None}


def test_moves_of_turns_are_shown(run):
    episode = next(iter(open_run(run).iteration(1).episodes()))
    turns = len(episode.turn_rewards)
    credit = np.array([0.25] * (turns - 1) + [np.nan])
    shown = episode_json(replace(episode, turn_moves=("reveals",) * turns, reaction_credit=credit))
    assert (shown["moves"], shown["reaction"]) == (["reveals"] * turns, [0.25] * (turns - 1) + [None])


def test_scale_handles_many_episodes():
    """Engines refuse a call with a hundred thousand arguments, such as ``Math.max(...rewards)``."""
    assert in_node("data.largest(Array(200000).fill(-2))") == 2
    views = (VIEWER / "frontend" / "src").glob("*.jsx")
    assert not [view.name for view in views if re.search(r"Math.max\(1e-9, \.\.\.", view.read_text())]


@pytest.mark.slow
def test_committed_page_matches_its_sources(tmp_path):
    """Needs npm and its registry; `make viewer` builds the page anew."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    frontend = shutil.copytree(
        VIEWER / "frontend", tmp_path / "frontend", ignore=shutil.ignore_patterns("node_modules")
    )
    installed = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=frontend, capture_output=True, text=True, timeout=100
    )
    if installed.returncode:
        pytest.skip(f"npm cannot install: {installed.stderr[-300:]}")
    subprocess.run(["node", "build.mjs", str(tmp_path / "page.html")], cwd=frontend, check=True, timeout=60)
    assert (tmp_path / "page.html").read_text() == PAGE
