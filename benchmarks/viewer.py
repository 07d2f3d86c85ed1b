"""Times of the page of 2,000 episodes: to write, to open in Chromium until its list is drawn, to scroll.

    python benchmarks/viewer.py [--episodes 2000] [--times 5]

Needs Playwright and Chromium (`make test-viewer` installs them). The episodes are those of the viewer's tests.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "textenvs" / "viewer")]

_SCROLL = """async () => {
  const box = document.querySelector('.lines');
  let worst = 0;
  for (let n = 1; n <= 60; n += 1) {
    const begin = performance.now();
    box.scrollTop = (box.scrollHeight * n) / 61;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    worst = Math.max(worst, performance.now() - begin);
  }
  return worst;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("benchmarks/viewer.py needs Playwright and Chromium: make test-viewer")
    import synthetic

    from textenvs.records import open_run
    from textenvs.viewer import Document, write_page

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = synthetic.write_run(folder, 1, arguments.episodes // 16, 8, thoughts=60, forks=False)
        begin = time.perf_counter()
        page_file = write_page(Document([run]), Path(folder) / "view.html")
        seconds = time.perf_counter() - begin
        tokens = sum(line.tokens or 0 for iteration in open_run(run).iterations for line in iteration.summaries())
        size = page_file.stat().st_size / 1e6
        print(f"{arguments.episodes} episodes, {tokens} tokens: written in {seconds:.1f} s, {size:.1f} MB")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened, frames, episodes = [], [], []
        for _ in range(arguments.times):
            page = browser.new_page(viewport={"width": 1300, "height": 850})
            begin = time.perf_counter()
            page.goto(f"{page_file.as_uri()}#/run/0/all")
            page.wait_for_selector("[role=row]")
            opened.append(time.perf_counter() - begin)
            frames.append(page.evaluate(_SCROLL) / 1000)
            begin = time.perf_counter()
            page.click("[role=row] >> nth=12")
            page.wait_for_selector(".token[data-token]")
            episodes.append(time.perf_counter() - begin)
            page.close()
        browser.close()
    for what, values in (("the list is there", opened), ("slowest frame", frames), ("an episode is there", episodes)):
        print(f"{what}: median {statistics.median(values):.2f} s, worst {max(values):.2f} s")


if __name__ == "__main__":
    main()
