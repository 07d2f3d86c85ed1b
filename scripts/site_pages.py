"""Put the pages of the site together in build/site, have Zensical build the site: ``make docs``.

The folder mirrors the repository, so that links between pages, and from pages to files, are the same here and there.
Added are the reference, made from docstrings (:data:`REFERENCE`), and on each environment's page an episode of its
scripted expert, played now. A warning of Zensical's is an error. The site loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import textenvs
from textenvs.messages import text_of

ROOT = Path(__file__).resolve().parents[1]
OUT, SITE = ROOT / "build" / "site", ROOT / "site"
GALLERY = ROOT / "docs" / "environments" / "README.md"
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/README.md", "benchmarks/results/*.md")
#: Titles and the modules (or names of a module) that a page of the reference shows.
REFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "environments": ("Environments", tuple(f"textenvs.{name}" for name in textenvs.__all__)),
    "parts": (
        "Messages, users, judges, tools, services",
        (
            "textenvs.messages",
            "textenvs.chat",
            "textenvs.users",
            "textenvs.judges",
            "textenvs.tools",
            "textenvs.sandbox",
        ),
    ),
    "measuring": (
        "Data, evaluation, audit",
        ("textenvs.data", "textenvs.evaluate.records", "textenvs.evaluate.summary", "textenvs.evaluate.statistics")
        + ("textenvs.evaluate.inspect_log", "textenvs.audit", "textenvs.lookahead", "textenvs.wrappers"),
    ),
    "trainers": (
        "Trainers",
        tuple(f"trainers.{name}" for name in ("make", "names", "Trainer", "Result", "TrainerNotFoundError"))
        + ("trainers.ppo_trainer", "trainers.trajectory", "trainers.policy", "trainers.registry"),
    ),
    "algorithms": (
        "Algorithms",
        tuple(
            f"trainers.algorithms.{name}"
            for name in ("batch", "advantages", "fork", "returns", "baselines", "kl", "off_policy")
            + ("policy_losses", "aggregation")
        )
        + ("trainers.rewards.credit_assignment",),
    ),
    "extension-points": (
        "Engines, rewards, loggers",
        ("trainers.engines.base", "trainers.rewards.service", "trainers.rewards.functions", "trainers.report.loggers"),
    ),
}
STYLE, WORKER = "site.css", "site_worker.js"
#: What Zensical's offline plugin has each page load, for :data:`WORKER` to stand in its place.
_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
_LOADS = re.compile(r"<(?:script|img|iframe|link)[^>]*\s(?:src|href)=\"?(https?:[^\s\">]+)")
_MARK = re.compile(r"<!-- attacks (\S+) -->")


def build(out: Path = OUT) -> list[Path]:
    """Write the folder anew; returns its pages.

    Raises:
        SandboxUnavailable: An environment's programs cannot run on this machine; the message says what to install.
    """
    shutil.rmtree(out, ignore_errors=True)
    written = []
    for source in sorted({path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()}):
        page = out / source.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        for linked in _linked(source, text):
            place = out / linked.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, place)
        if source == GALLERY:
            episodes = "".join(map(episode_html, textenvs.list_environments()))
            text += "\n## Episodes\n" + episodes.replace('class="episode" open', 'class="episode"')
        page.write_text(with_episodes(text), encoding="utf-8")
        written.append(page)
    for name in (STYLE, WORKER):
        shutil.copyfile(ROOT / "scripts" / name, out / name)
    (out / "reference").mkdir()
    for name, (title, objects) in REFERENCE.items():
        body = "".join(f"::: {each}\n" for each in objects)
        written.append(out / "reference" / f"{name}.md")
        written[-1].write_text(f"# {title}\n\n{body}", encoding="utf-8")
    return written


def _linked(source: Path, text: str) -> Iterator[Path]:
    """The files of the repository that a page links to, and that are not pages."""
    for target in _LINK.findall(text):
        path = (source.parent / target).resolve()
        if "://" not in target and path.suffix != ".md" and path.is_file() and path.is_relative_to(ROOT):
            yield path


def with_episodes(text: str) -> str:
    """The page with an episode of each environment whose table of attacks it has, before its first section."""
    ids = _MARK.findall(text)
    if not ids:
        return text
    before, section, after = text.partition("\n## ")
    return f"{before}\n{''.join(episode_html(env_id) for env_id in ids)}\n{section}{after}"


def episode_html(env_id: str, seeds: int = 4) -> str:
    """The longest episode of the scripted expert among those of so many seeds, as HTML: what was said is escaped.

    This is what a viewer of episodes would replace.
    """
    env = textenvs.make(env_id)
    try:
        played = [_played(env, seed) for seed in range(seeds)]
    finally:
        env.close()
    seed, (conversation, notes, stop) = max(enumerate(played), key=lambda each: len(each[1][1]))
    lines = [_message(message, notes.get(at)) for at, message in enumerate(conversation)]
    return (
        f'\n<details class="episode" open><summary>An episode of the scripted expert in <code>{html.escape(env_id)}'
        f"</code>, seed {seed}: {html.escape(stop)}</summary>\n{''.join(lines)}</details>\n"
    )


def _played(env: textenvs.TextEnv[Any], seed: int) -> tuple[textenvs.Messages, dict[int, str], str]:
    """The conversation, the rewards in words by the place of the reply, and why it ended."""
    conversation, info = env.reset(seed=seed)
    rng, over, notes = np.random.default_rng(seed), False, {}
    while not over:
        conversation, reward, terminated, truncated, info = env.step(env.demonstration(rng))
        said = max(at for at, message in enumerate(conversation) if message["role"] == "assistant")
        terms = ", ".join(f"{name} {value:+.3g}" for name, value in info["terms"].items() if value)
        notes[said] = f"reward {reward:+.3g}" + (f" ({terms})" if terms else "")
        over = terminated or truncated
    return conversation, notes, str(info["stop"])


def _message(message: textenvs.Message, note: str | None) -> str:
    # A blank line would end the block of HTML within a page of Markdown.
    said = html.escape(text_of(message)).replace("\n", "&#10;")
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())]
    said = "&#10;".join([*([said] if said else []), *(html.escape(call) for call in calls)])
    paid = f'<span class="reward">{html.escape(note)}</span>' if note else ""
    role = html.escape(message["role"])
    return f'<div class="said {role}"><span class="role">{role}</span>{paid}<pre>{said}</pre></div>\n'


def contained(site: Path = SITE) -> None:
    """Have the built pages load nothing from elsewhere.

    Raises:
        ValueError: One loads something that is not known; Zensical has changed.
    """
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        here = "../" * (len(page.relative_to(site).parts) - 1)
        text = text.replace(_ELSEWHERE, f"{here}{WORKER}")
        if loaded := _LOADS.findall(text):
            raise ValueError(f"{page} loads {', '.join(loaded)}")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    print(f"{len(build())} pages in {OUT.relative_to(ROOT)}", file=sys.stderr)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    contained()
