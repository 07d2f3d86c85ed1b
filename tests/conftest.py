"""Settings that must hold before the first library is imported, so that `python -m pytest` alone is enough."""

import atexit
import gc
import os
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test talks to a network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several threads on tiny models are slower than one
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # and forks after it would warn
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "true")  # TRL would import it, and use it nowhere

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("ours", deadline=None, max_examples=15)  # a slow machine is not a failure
settings.register_profile("thorough", deadline=None, max_examples=200)  # --hypothesis-profile=thorough
settings.load_profile("ours")

gc.disable()  # while all is imported, hardly anything is garbage: looking for it takes a seventh of that time


#: Tests in there are those of tasks.
collect_ignore = ["data"]


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a fixture of their module, so that one worker makes it, and not every worker."""
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            used = (definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values())
            if any(fixture.scope == "module" and item.nodeid.startswith(f"{fixture.baseid}::") for fixture in used):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish() -> None:
    """Exclude what was imported from garbage collection: walking it takes a fifth of the time of a short run."""
    gc.collect()
    gc.freeze()
    # Triton reports what is never collected as leaks, in pages of text. Not before: pytest collects as it ends.
    atexit.register(gc.unfreeze)
    gc.set_threshold(20_000, 10, 10)  # most of what tests make is freed without it
    gc.enable()


CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-viewer")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: make test-viewer, or CHROMIUM=/path/to/it")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Open pages of which every error, and every request to other addresses than ``allowed``, is a failure."""
    contexts, problems = [], []

    def open_page(*allowed, timeout_s, height=900):
        contexts.append(browser.new_context(viewport={"width": 1300, "height": height}))
        contexts[-1].set_default_timeout(1000 * timeout_s)
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: request.url.startswith(allowed) or problems.append(request.url))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems
