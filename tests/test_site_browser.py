"""The built site in a real Chromium: `make test-site` builds it and runs these."""

import os
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser"), pytest.mark.timeout(600)]
SITE = Path(__file__).parents[1] / "site"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
OPENED = (
    "index", "docs/tutorial", "docs/configuration", "docs/algorithms", "docs/cli", "docs/tools", "docs/engines",
    "docs/environments/index", "docs/environments/gsm8k", "docs/environments/service-desk", "reference/environments",
)  # fmt: skip
#: What people search for, and a page that answers.
SEARCHES = {
    "quickstart": "Quickstart",
    "function calling": "Tools: function calling",
    "turn-level advantage": "turn-level advantages",
    "GRPO Qwen vLLM": "GRPO for a Qwen model with vLLM",
}


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-site")
    if CHROMIUM is None or not (SITE / "index.html").is_file():
        pytest.skip("needs Chromium and the built site: make test-site")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page of which every error, and every request that leaves the disk, is a failure."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "blob:", "data:")) or problems.append(request.url)
    )
    yield page
    context.close()
    assert not problems


@pytest.mark.parametrize("name", OPENED)
def test_page_opens_without_raw_markdown(page, name):
    page.goto((SITE / f"{name}.html").as_uri())
    article = page.locator("article")
    assert article.locator("h1").first.inner_text().strip()
    prose = article.evaluate("""article => {
        const copy = article.cloneNode(true);
        copy.querySelectorAll("pre, code, script, style, iframe").forEach(part => part.remove());
        return copy.textContent;
    }""")
    for mark in ("```", "](", "**", "<!--"):
        assert mark not in prose, prose[max(0, prose.index(mark) - 80) :][:160]


def test_keys_are_not_broken_over_lines(page):
    page.goto((SITE / "docs/configuration.html").as_uri())
    heights = page.locator("td code.name").evaluate_all("codes => codes.map(code => code.getClientRects().length)")
    assert len(heights) > 100
    assert set(heights) == {1}


def test_tutorial_names_its_files(page):
    page.goto((SITE / "docs/tutorial.html").as_uri())
    assert "coffee.py" in page.locator("article .filename").all_inner_texts()


@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds_matching_page(page, words):
    page.goto((SITE / "docs/cli.html").as_uri())
    page.wait_for_timeout(1000)
    page.keyboard.press("/")
    page.wait_for_timeout(500)
    page.keyboard.type(words)
    page.get_by_text(SEARCHES[words]).first.wait_for(state="visible")
