"""Put the pages of the site together in build/site, and have Zensical build the site: ``make docs``.

The folder mirrors the repository, so that links between pages, and from pages to files, are the same here and there.
Added are the reference, made from docstrings (:data:`REFERENCE`), and on each environment's page an episode of its
scripted expert, played now, in the viewer: one page, :data:`EPISODES`, has all of them. A warning of Zensical's is an
error. The site loads nothing from elsewhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import textenvs
from textenvs.evaluate.baselines import has_script
from textenvs.records.writer import write_played
from textenvs.viewer import Document, write_page

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
        + ("trainers.ppo_trainer", "trainers.trajectory", "trainers.models.policy", "trainers.registry"),
    ),
    "algorithms": (
        "Algorithms",
        tuple(
            f"trainers.algorithms.{name}"
            for name in ("batch", "baselines", "kl", "off_policy", "estimators.base", "losses.base")
        )
        + tuple(
            f"trainers.algorithms.estimators.{name}"
            for name in (
                "gae",
                "turn_gae",
                "bilevel_gae",
                "grpo",
                "dr_grpo",
                "rloo",
                "opo",
                "gdpo",
                "grpo_passk",
                "maxrl",
            )
        )
        + tuple(
            f"trainers.algorithms.estimators.{name}"
            for name in ("passk", "reinforce_pp", "reinforce_pp_baseline", "remax", "rae", "turn_grpo", "gigpo", "fork")
        )
        + tuple(f"trainers.algorithms.estimators.{name}" for name in ("gagpo", "graphgpo"))
        + tuple(
            f"trainers.algorithms.losses.{name}"
            for name in ("ppo", "gspo", "cispo", "geo_mean", "sapo", "dppo", "clip_cov", "kl_cov", "value")
        )
        + ("trainers.rewards.credit_assignment",),
    ),
    "extension-points": (
        "Engines, rewards, loggers",
        ("trainers.engines.base", "trainers.rewards.service", "trainers.rewards.functions", "trainers.report.loggers"),
    ),
}
#: Listed environments without an episode: TextWorld's requirements (spacy, and programs under the GPL) are missing.
NOT_PLAYED = ("textenv/textworld",)
EPISODES, STYLE, WORKER = "episodes.html", "site.css", "site_worker.js"
#: The script that Zensical's offline plugin has each page load; :data:`WORKER` replaces it.
_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
_LOADS = re.compile(r"<(?:script|img|iframe|link)[^>]*\s(?:src|href)=\"?(https?:[^\s\">]+)")
_FENCE = re.compile(r"```|~~~~")
_CODE = re.compile(r"<(pre|code|script)\b.*?</\1>", re.DOTALL)
_NAME = re.compile(r"<code>([^<>\s]{1,60})</code>")
_MARK = re.compile(r"<!-- attacks (\S+) -->")


def build(out: Path = OUT) -> list[Path]:
    """Write the folder anew; returns its pages.

    Raises:
        SandboxUnavailable: An environment's programs cannot run on this machine; the message says what to install.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    played_ids = [env_id for env_id in textenvs.list_environments() if env_id not in NOT_PLAYED]
    longest, written = write_episodes(played_ids, out / EPISODES), []
    for source in sorted({path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()}):
        page = out / source.relative_to(ROOT)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        for linked in _linked(source, text):
            place = out / linked.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, place)
        if source == GALLERY:
            text += f'\n## Episodes\n\n<figure class="episode"><iframe src="../../{EPISODES}#/run/0/validation/0" '
            text += 'title="episodes of all environments"></iframe></figure>\n'
        page.write_text(with_episodes(text, longest, "../" * (len(page.relative_to(out).parts) - 1)), encoding="utf-8")
        written.append(page)
    for name in (STYLE, WORKER):
        shutil.copyfile(ROOT / "scripts" / name, out / name)
    (out / "reference").mkdir()
    for name, (title, objects) in REFERENCE.items():
        body = "".join(f"::: {target}\n" for target in objects)
        written.append(out / "reference" / f"{name}.md")
        written[-1].write_text(f"# {title}\n\n{body}", encoding="utf-8")
    return written


def _linked(source: Path, text: str) -> Iterator[Path]:
    """Yield the files of the repository that a page links to, and that are not pages."""
    for target in _LINK.findall(text):
        path = (source.parent / target).resolve()
        if "://" not in target and path.suffix != ".md" and path.is_file() and path.is_relative_to(ROOT):
            yield path


def with_episodes(text: str, longest: Mapping[str, tuple[int, int]], root: str) -> str:
    """Return the page with an episode of each environment in its tables of attacks, before its first section.

    Args:
        text: Of the page.
        longest: Seed and turns of each environment's episode; the one with most turns comes first.
        root: The relative path from the page to the site's folder, for example ``../../``.
    """
    before, section, after = text.partition("\n## ")
    env_ids = [env_id for env_id in _MARK.findall(text) if env_id in longest]
    env_ids.sort(key=lambda env_id: -longest[env_id][1])
    figures = (episode_html(env_id, longest[env_id][0], root) for env_id in env_ids)
    return f"{before}\n{''.join(figures)}{section}{after}"


def episode_html(env_id: str, seed: int, root: str) -> str:
    """Return the HTML of a recorded episode, in the viewer."""
    where = f"{root}{EPISODES}#/run/0/validation/0/e/{quote(_name(env_id, seed), safe='')}"
    return (
        f'\n<figure class="episode"><iframe src="{where}" title="an episode of {env_id}" loading="lazy"></iframe>'
        f"<figcaption>Scripted replies in <code>{env_id}</code>, seed {seed}. "
        f'<a href="{where}" target="_blank">In a tab of its own</a></figcaption></figure>\n'
    )


def _name(env_id: str, seed: int) -> str:
    return f"{env_id.removeprefix('textenv/')}, seed {seed}"


def write_episodes(env_ids: Sequence[str], page: Path, seeds: int = 4) -> dict[str, tuple[int, int]]:
    """Play each environment's scripted expert, and write one page of the viewer with all of these episodes.

    Returns:
        The seed of each environment's longest episode, and its turns.
    """
    rows: list[dict[str, Any]] = []
    longest: dict[str, tuple[int, int]] = {}
    for env_id in env_ids:
        env = textenvs.make(env_id)
        try:
            played = [_played(env, env_id, seed) for seed in range(seeds)]
            if max(map(_turns, played)) == 1 and has_script(env, "careless"):
                corrected = [_played(env, env_id, seed, careless=1) for seed in range(seeds)]
                played = corrected if max(map(_turns, corrected)) > 1 else played
        finally:
            env.close()
        seed = max(range(seeds), key=lambda seed: _turns(played[seed]))
        longest[env_id] = seed, _turns(played[seed])
        rows += played
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "environments.parquet"
        write_played(file, rows, kind="validation", iteration=0, title="scripted experts")
        write_page(Document([file]), page)
    return longest


def _turns(row: Mapping[str, Any]) -> int:
    return len(row["turn_rewards"])


def _played(env: textenvs.TextEnv[Any], env_id: str, seed: int, careless: int = 0) -> dict[str, Any]:
    """Play an episode of the scripted expert; return a row of a file of episodes; first replies may be careless."""
    conversation, info = env.reset(seed=seed)
    rng, over, rewards, terms = np.random.default_rng(seed), False, list[float](), list[list[tuple[str, float]]]()
    while not over:
        script = env.careless_reply if len(rewards) < careless else env.demonstration
        conversation, reward, terminated, truncated, info = env.step(script(rng))
        rewards.append(float(reward))
        terms.append(list(info["terms"].items()))
        over = terminated or truncated
    return {
        **{"episode_id": _name(env_id, seed), "group_id": _name(env_id, seed), "task_key": info["task_key"]},
        **{"data_source": env_id.removeprefix("textenv/"), "forked_from": "", "forked_turn": 0},
        "messages": list(conversation),
        **{"status": "completed" if terminated else "truncated_turns", "stop": info["stop"]},
        **{"terminated": terminated, "truncated": truncated, "env_seed": seed, "task_index": info.get("task_index")},
        **{"turn_rewards": rewards, "turn_terms": terms, "metrics": list(info["metrics"].items())},
    }


def contained(site: Path = SITE) -> None:
    """Have the built pages load nothing from elsewhere, and mark keys and ids, in which lines do not break.

    Raises:
        ValueError: A page loads something unknown; Zensical has changed. Or a page shows the fence of a code
            block as text: its first line has something that Markdown does not take for a language or an attribute.
    """
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        if page.name != EPISODES and (fence := unread_fence(text)):
            raise ValueError(f"{page} shows the fence of a code block as text: {fence}")
        root = "../" * (len(page.relative_to(site).parts) - 1)
        text = text.replace(_ELSEWHERE, f"{root}{WORKER}")
        if page.name != EPISODES:
            text = _NAME.sub(r'<code class="name">\1</code>', text)
        if loaded := _LOADS.findall(text):
            raise ValueError(f"{page} loads {', '.join(loaded)}")
        page.write_text(text, encoding="utf-8")


def unread_fence(html: str) -> str | None:
    """Return a fence outside of a page's code, with the words after it; ``None`` without one."""
    prose = re.sub(r"<[^>]+>", "", _CODE.sub("", html))
    fence = _FENCE.search(prose)
    return None if fence is None else " ".join(prose[fence.start() : fence.start() + 60].split())


if __name__ == "__main__":
    print(f"{len(build())} pages in {OUT.relative_to(ROOT)}", file=sys.stderr)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    contained()
