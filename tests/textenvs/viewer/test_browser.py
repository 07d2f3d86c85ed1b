"""The page in a real Chromium, driven by Playwright: `make test-viewer` installs both and runs these."""

import json
import re
import threading
from pathlib import Path

import pytest
import synthetic

from textenvs.cli.common import open_environment
from textenvs.evaluate.records import Record
from textenvs.messages import assistant, user
from textenvs.viewer import Document, write_page
from textenvs.viewer.server import ViewServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]  # on a busy machine


@pytest.fixture
def page(open_page):
    """A page of which errors on the console are failures, too."""
    messages = []
    page = open_page("file:", "http://127.0.0.1", timeout_s=120, height=850)
    page.on("console", lambda message: message.type in ("error", "warning") and messages.append(message.text))
    yield page
    assert not messages


def text_of(page, selector):
    return page.locator(selector).first.inner_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = synthetic.write_run(tmp_path_factory.mktemp("browser") / "run", 2, 4, 4, skill=0.5)
    return write_page(Document([folder]), folder / "view.html").as_uri()


def wait_until(page, expression):
    """Playwright's own way to wait evaluates texts in the page, which its policy forbids."""
    for _ in range(1200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never: {expression}")


def go(page, where, selector):
    """The address with another hash; reloaded, so that nothing of the last view is left."""
    page.goto("about:blank")
    page.goto(where)
    page.wait_for_selector(selector)


def test_from_the_run_to_a_token(page, run):
    go(page, run, "figure .u-over")
    assert page.locator("figure").count() == 3
    page.click("text=train 2")
    page.wait_for_selector("[role=row]")
    page.click("[role=row] >> nth=1")
    page.wait_for_selector(".token[data-token]")
    page.click("text=its group")
    page.wait_for_selector(".lane")
    page.keyboard.press("u")
    page.wait_for_selector("[role=row]")
    assert page.evaluate("location.hash") == "#/run/0/train/2"


def test_token_terms_sum_to_its_value(page, run):
    go(page, f"{run}#/run/0/train/1", "[role=row]")
    for number in (0, 3, 5):
        page.click(f"[role=row] >> nth={number}")
        page.wait_for_selector(".token[data-token]:not(.given)")
        page.click(".token[data-token]:not(.given) >> nth=4")
        page.wait_for_selector("[data-sum]")
        cells = page.eval_on_selector_all(
            "[data-sum] [data-k]", "all => all.map(e => [e.dataset.k, Number(e.dataset.v), e.textContent])"
        )
        value = {key: number for key, number, _ in cells}
        for _, number, text in cells:
            assert float(text.replace("−", "-")) == pytest.approx(number, rel=1e-3)
        assert value["difference"] == pytest.approx(value["return"] - value["baseline"], abs=1e-5)
        assert value["advantage"] == pytest.approx(value["difference"] / value.get("scale", 1.0), rel=2e-3)
        assert value["share"] == pytest.approx(value["loss"] * value["loss_weight"], rel=1e-4)
        assert value["learner"] == pytest.approx(value["logprob"] + value["mismatch"], abs=1e-5)
        if "moved" in value:
            assert value["credited"] == pytest.approx(value["earned"] + value["moved"], abs=1e-9)
        page.keyboard.press("u")
        page.keyboard.press("u")
        page.wait_for_selector("[role=row]")


def test_colours_and_keys(page, run):
    go(page, f"{run}#/run/0/train/1/e/i1-g0-s0", ".token[data-token]")
    colours = set()
    for key, name in (("1", "advantage"), ("3", "ratio"), ("4", "entropy")):
        page.keyboard.press(key)
        page.wait_for_selector(f"button.chosen:has-text('{name}')")
        colours.add(
            page.eval_on_selector_all(
                ".token:not(.given)", "all => all.slice(0, 20).map(e => e.style.backgroundColor).join()"
            )
        )
    assert len(colours) == 3
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-sum]")
    first = page.evaluate("location.hash")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("location.hash") != first
    go(page, run + first, ".token.selected")  # a link to the token
    page.keyboard.press("t")
    page.wait_for_selector(".token.given")
    assert "<|im_start|>" in text_of(page, ".conversation")
    page.keyboard.press("0")
    page.keyboard.press("t")
    page.wait_for_selector(".message.user")


def test_contexts_are_drawn_as_lanes(page, tmp_path):
    synthetic.write_rows(tmp_path / "one.parquet", [synthetic.several_contexts()], kind="train", iteration=1)
    where = write_page(Document([tmp_path / "one.parquet"]), tmp_path / "view.html").as_uri()
    go(page, f"{where}#/run/0/train/1/e/several", "[data-lanes='2']")
    cells = page.eval_on_selector_all(
        ".lanes button", "all => all.map(e => [e.textContent, e.style.gridRow, e.style.gridColumn])"
    )
    assert sorted((text, row.split(" ")[0], column.split(" ")[0]) for text, row, column in cells) == [
        ("1", "1", "2"),
        ("2", "2", "3"),
        ("3", "1", "4"),
    ]
    # The last observation's replies are the turns of its own context.
    heads = page.eval_on_selector_all(".message.assistant h4", "all => all.map(e => e.textContent)")
    assert [re.search(r"turn (\d)\D*reward ([\d.]+)", text).groups() for text in heads] == [("1", "0.25"), ("3", "1")]
    page.click(".lanes button >> text=2")
    page.wait_for_selector("[data-sum]")
    assert "turn 2" in text_of(page, "[data-sum]")
    (first, second) = page.eval_on_selector_all(".message h4", "all => all.map(e => e.textContent)")
    assert (first, second) == ("context 2 turns 2", "context 1 turns 1, 3")


def test_roles_of_an_evaluation_are_lanes(page, tmp_path):
    record = Record(
        **{"task": 0, "sample": 0, "seed": 0, "task_index": 0, "task_key": "key", "data_source": "tests"},
        **{"turn_rewards": (0.25, -1.0, 0.5), "assistant_turns": 3, "terminated": True, "stop": "over"},
        messages=(user("Judge."), assistant("<b>wrong</b>")),
        contexts=((user("Solve."), assistant("3"), user("Again."), assistant("4")),),
        reply_places=((0, 1), (1, 1), (0, 3)),
        context_roles=("solver", "<i>critic</i>"),
    )
    manifest = {"environment": {"id": "x", "version": 1, "options": {}}, "policy": {}, "samples": 1, "seed": 0}
    manifest["tasks"] = {"name": "x", "count": 1, "fingerprint": "x"}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "episodes.jsonl").write_text(f"{record.to_json()}\n")
    where = write_page(Document([tmp_path]), tmp_path / "view.html").as_uri()
    go(page, f"{where}#/run/0/evaluation/0/e/t0-s0", "[data-lanes='2']")
    assert page.locator(".lanes span").all_inner_texts() == ["context 1 of solver", "context 2 of <i>critic</i>"]
    cells = page.eval_on_selector_all(".lanes button", "all => all.map(e => [e.textContent, e.style.gridRow])")
    assert [(text, row.split(" ")[0]) for text, row in cells] == [("1", "1"), ("3", "1"), ("2", "2")]
    heads = page.eval_on_selector_all(".message.assistant h4", "all => all.map(e => e.textContent)")
    turns = [re.search(r"turn (\d)\D*?reward (.*)", text).groups() for text in heads]
    assert turns == [("1", "0.25"), ("3", "0.5"), ("2", "−1")]
    assert not page.locator("[data-turn='2']").is_visible()
    page.click(".lanes button >> text=3")
    page.wait_for_selector("[data-turn='2'] >> visible=true")


def test_filters_and_search(page, run):
    go(page, f"{run}#/run/0/all", "[role=row]")
    everything = int(text_of(page, "[data-count]").split()[0])
    page.fill("[name=min]", "0.9")
    wait_until(page, f"document.querySelector('[data-count]').textContent.split(' ')[0] < {everything}")
    assert all(text.split("\n")[1] == "1" for text in page.locator("[role=row]").all_inner_texts())
    page.fill("[name=min]", "")
    page.select_option("[name=stop]", "max_assistant_turns")
    wait_until(page, "location.hash.includes('stop=max')")
    assert all("max_assistant_turns" in text for text in page.locator("[role=row]").all_inner_texts())
    page.select_option("[name=stop]", "")
    page.fill("[data-search]", "too high")
    wait_until(page, "document.querySelector('[data-count]').textContent.startsWith('0 ')")
    page.click("text=search in all words")
    wait_until(page, "document.querySelector('[data-count]').textContent.includes('have it in their words')")
    assert 0 < int(text_of(page, "[data-count]").split()[0]) < everything
    page.select_option("[name=forks]", "forks")
    page.fill("[data-search]", "")
    wait_until(page, "location.hash === '#/run/0/all?forks=forks'")
    assert all("↳ 2" in text for text in page.locator("[role=row]").all_inner_texts())


def test_back_restores_place_in_filtered_list(page, run):
    where = "#/run/0/train/1?forks=roots"
    go(page, run + where, "[role=row]")
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(".conversation")
    first = page.evaluate("location.hash")
    page.keyboard.press("j")
    wait_until(page, f"location.hash !== {first!r}")
    opened = page.evaluate("location.hash")
    assert opened != where
    for key in ("u", "u"):
        page.keyboard.press(key)
    page.wait_for_selector(".line.here")
    assert page.evaluate("location.hash") == where
    assert page.evaluate("document.querySelector('.line.here').hash") == opened


def test_siblings_from_their_first_difference(page, run):
    go(page, f"{run}#/run/0/train/1/g/i1-g0", "[data-column]")
    assert page.locator("[data-column]").count() == 2
    assert text_of(page, "h2:has-text('Side by side') + p").startswith("The first message is the same.")
    first, second = (
        page.locator("[data-column] .message >> nth=0").inner_text(),
        page.locator("[data-column] >> nth=1").locator(".message").first.inner_text(),
    )
    assert first != second
    page.click(".siblings input:not(:checked) >> nth=0")
    wait_until(page, "document.querySelectorAll('[data-column]').length === 3")
    assert page.locator(".lane").count() == page.locator(".siblings tr").count() - 1


def test_two_runs_are_compared(page, tmp_path):
    folders = [
        synthetic.write_run(tmp_path / name, 1, 3, 3, skill=skill) for name, skill in (("weak", 0.1), ("strong", 1.0))
    ]
    go(page, write_page(Document(folders), tmp_path / "both.html").as_uri(), "[data-estimate]")
    difference = page.locator("[data-estimate=return] td >> nth=2").inner_text()
    assert difference.startswith("+")
    assert " to +" in difference
    page.click(".line.pairs[href]")
    page.wait_for_selector("[data-column]")
    assert page.locator("[data-column] h3").all_inner_texts()[0].startswith("weak")


def test_hostile_texts_stay_text(page, tmp_path):
    rows = synthetic.hostile_rows()
    synthetic.write_rows(tmp_path / "rollouts" / "train" / "000001.parquet", rows, kind="train", iteration=1)
    where = write_page(Document([tmp_path]), tmp_path / "page.html").as_uri()
    go(page, f"{where}#/run/0/train/1", "[role=row]")
    for number, (name, text) in enumerate(synthetic.HOSTILE.items()):
        go(page, f"{where}#/run/0/train/1", "[role=row]")
        page.click(f"[role=row] >> nth={number}")
        page.wait_for_selector(".conversation .words")
        for coloured in ("0", "1"):
            page.keyboard.press(coloured)
            words = page.eval_on_selector(".message.user .words", "e => e.firstChild.textContent")
            if name != "control":
                assert words == text[:20000]
        if name == "control":
            displayed = page.eval_on_selector(".message.user .words", "e => e.textContent")
            assert displayed == "a␀b␛[31mred␇ U+202Egnp.exeU+2066 U+E0041 end"
            assert page.locator(".message.user .control").count() == 6
        if name == "long":
            page.click("text=show all")
            wait_until(page, f"document.querySelector('.message.user .words').textContent.length === {len(text)}")
        page.click("text=its group")
        page.wait_for_selector(".lane")
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main b:has-text('bold'), main script").count() == 0


def test_two_thousand_episodes_scroll(page, tmp_path):
    folder = synthetic.write_run(tmp_path / "run", 1, 125, 8, forks=False)
    go(page, write_page(Document([folder]), tmp_path / "page.html").as_uri() + "#/run/0/all", "[role=row]")
    assert text_of(page, "[data-count]") == "2000 of 2000"
    drawn = page.locator("[role=row]").count()
    assert drawn < 80
    page.eval_on_selector(".lines", "e => { e.scrollTop = e.scrollHeight }")
    wait_until(page, "document.querySelector('.lines .place:last-child a').href.includes('g124-s7')")
    assert page.locator("[role=row]").count() < 80
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".token[data-token]")


@pytest.fixture
def served(tmp_path):
    folder = synthetic.write_run(tmp_path / "run", 1, 2, 4, skill=0.2)
    server = ViewServer(Document([folder]), open_environment)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, server
    server.shutdown()
    server.server_close()


def test_running_run_is_followed(page, served):
    folder, server = served
    go(page, server.url, "text=validation 1")
    assert page.locator("text=train 2").count() == 0
    synthetic.add_iteration(folder, 2, 1, 2)
    page.wait_for_selector("text=train 2")


def test_continue_by_hand_in_the_browser(page, served):
    folder, server = served
    rows = synthetic.rows_of(1, 2, 4, skill=0.2)  # as written
    row = next(row for row in rows if len(row["turn_rewards"]) > 1)
    go(page, f"{server.url}#/run/0/train/1/e/{row['episode_id']}", ".continue")
    page.click(".continue >> nth=1")
    page.click("text=open it")
    page.wait_for_selector("[data-replayed]")
    page.fill("textarea", "by hand: <b>7</b>\n#### 99")
    page.click("text=send")
    page.wait_for_selector(".new .message.assistant")
    assert "by hand: <b>7</b>" in text_of(page, ".new .message.assistant")
    page.click("text=expert: to the end")
    page.wait_for_selector("text=The episode is over")
    assert page.locator(".lane.saved").count() == 1  # drawn before it is saved
    page.click("text=save this branch")
    path = Path(text_of(page, "[data-saved]"))
    assert path.is_file()
    assert path.parent == folder / "continued"
    go(page, f"{server.url}#/run/0/train/1/g/{row['group_id']}", ".lane.saved")
    assert page.locator(".lane.saved").count() == 1
    static = write_page(Document([folder]), folder / "view.html").as_uri()
    go(page, f"{static}#/run/0/train/1/g/{row['group_id']}", ".lane.saved")


def test_browser_reports_changed_environment(page, tmp_path):
    folder = synthetic.write_run(tmp_path / "run", 1, 1, 2)
    changed = json.loads(json.dumps(synthetic.ENVIRONMENT))
    changed["options"]["level"] = "hard"
    rows = synthetic.rows_of(1, 1, 2)
    synthetic.write_rows(
        folder / "rollouts" / "train" / "000001.parquet", rows, kind="train", iteration=1, environment=changed
    )
    server = ViewServer(Document([folder]), open_environment)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        go(page, f"{server.url}#/run/0/train/1/e/{rows[0]['episode_id']}?continue=0", "text=open it")
        page.click("text=open it")
        page.wait_for_selector("[data-differences]")
        assert "message 0 (user), content: recorded" in text_of(page, "[data-differences]")
    finally:
        server.shutdown()
        server.server_close()


def test_run_begins_with_its_results(page, run):
    page.goto(run)
    facts = dict(
        row.inner_text().split("\t", 1) for row in page.locator("table.outcome tr").all() if "\t" in row.inner_text()
    )
    assert facts["environment"] == "textenv/gsm8k-interact"
    assert facts["reward in training"].startswith("0.1 (iteration 1) → 0.2 (iteration 2)")
    assert {"best episode", "worst episode", "first success"} <= facts.keys()
    page.locator("table.outcome a").first.click()
    page.locator("section.episode").wait_for()


def test_columns_sort(page, run):
    page.goto(f"{run}#/run/0/train/1")
    rewards = page.locator(".lines .reward")

    def displayed_rewards():
        return [float(text.replace("−", "-")) for text in rewards.all_inner_texts()]

    before = displayed_rewards()
    for expected in (sorted(before, reverse=True), sorted(before), before):
        page.locator(".line.head button", has_text="reward").click()
        wait_until(page, f"document.querySelectorAll('.lines .reward').length === {len(before)}")
        assert displayed_rewards() == expected


def test_turn_without_learning_signal_says_why(page, tmp_path):
    rows = synthetic.rows_of(1, 1, 4, forks=False)
    for row in rows:
        row["signal"] = "tied"
        row["advantage"] = [None if value is None else 0.0 for value in row["advantage"]]
    synthetic.write_rows(tmp_path / "rollouts" / "train" / "000001.parquet", rows, kind="train", iteration=1)
    (tmp_path / "config.yaml").write_text("env: {id: textenv/gsm8k-interact}\n")
    page.goto(write_page(Document([tmp_path]), tmp_path / "view.html").as_uri() + "#/run/0/train/1")
    page.locator(".lines a").first.click()
    assert "its siblings earned the same" in text_of(page, "[data-unmoved]")
