"""Write the tables of attacks against the expert on the environments' pages.

::

    python scripts/attack_tables.py docs/environments/*.md
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from textenvs.audit.earnings import earned, makers, scripted_policies
from textenvs.audit.subject import below_expert, mean, solved
from textenvs.registry import make

#: The place of an environment's table on a page.
PLACE = re.compile(r"<!-- attacks (\S+) -->\n.*?<!-- end of attacks -->", re.DOTALL)


def markdown(env_id: str, episodes: int = 200, *, seed: int = 0) -> str:
    """Return an environment's table with its marks: solved rates and mean returns of every policy, a column a level."""
    env = make(env_id)
    env.close()
    levels = {
        level: [earned(maker, policy, episodes, seed=seed) for policy in scripted_policies(env)]
        for level, maker in makers(env_id, {}).items()
    }
    header = ["policy", "what it does", *(level or "solved, mean return" for level in levels)]
    lines = [header, ["---", "---", *["--:"] * len(levels)]]
    for first, *rest in zip(*levels.values(), strict=True):
        cells = [f"{solved(one.good):.1%}, {mean(one.good):+.3f}" if one.good else "failed" for one in (first, *rest)]
        lines.append([first.policy, first.says.replace("|", "\\|"), *cells])
    for level, results in levels.items():
        means = {result.policy: mean(result.good) for result in results if result.good}
        limit = below_expert(env, means["expert"], means["silence"])
        if above := [attack.name for attack in env.attacks() if means.get(attack.name, limit + 1.0) > limit]:
            raise SystemExit(f"{env_id}, level {level}: above the limit of {limit:+.3f} or failed: {', '.join(above)}")
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"<!-- attacks {env_id} -->\n{rows}\n\nSolved and mean return over {episodes} tasks a level. Every attack "
        f"stays below the expert by at least {env.attack_margin:g} of the range\nfrom doing nothing to the expert.\n"
        "<!-- end of attacks -->"
    )


def main() -> None:
    """Write the tables of the pages that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path, help="Markdown pages with places for tables")
    parser.add_argument("--episodes", type=int, default=200, metavar="N", help="of each policy and level (200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of tasks and replies (0)")
    arguments = parser.parse_args()
    for page in arguments.pages:
        text = page.read_text(encoding="utf-8")
        for place in PLACE.finditer(text):
            table = markdown(place[1], arguments.episodes, seed=arguments.seed)
            text = text.replace(place[0], table)
            page.write_text(text, encoding="utf-8")
            print(f"{page}: {place[1]}", flush=True)


if __name__ == "__main__":
    main()
