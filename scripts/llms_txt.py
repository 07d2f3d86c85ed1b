"""Write ``llms.txt``: a list of the documentation's pages for language models (https://llmstxt.org).

    python scripts/llms_txt.py llms.txt

Titles are those of the navigation, descriptions are the first sentence of each page.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph, without the targets of its links."""
    body = re.sub(r"<!--.*?-->|^```.*?^```|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = (part.strip() for part in body.split("\n\n"))
    paragraph = next((part for part in paragraphs if part and part[0] not in "#![>-*"), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    sentence = re.split(r"(?<!al\.)(?<=[.!?])\s", plain.removesuffix(":"), maxsplit=1)[0]
    return sentence if not sentence or sentence[-1] in ".!?" else f"{sentence}."


def lines(root: Path = ROOT) -> Iterator[str]:
    """Yield the lines of the file."""
    project = tomllib.loads((root / "zensical.toml").read_text("utf-8"))["project"]
    yield f"# {project['site_name']}\n"
    yield f"> {project['site_description']}\n"
    yield "Code for these pages runs in the tests. AGENTS.md says how to work on the repository.\n"
    for section in project["nav"]:
        for title, entries in section.items():
            if isinstance(entries, str):
                continue
            yield f"## {title}\n"
            for entry in entries:
                ((name, page),) = entry.items()
                if (root / page).is_file():  # the reference is made from docstrings
                    sentence = first_sentence((root / page).read_text("utf-8"))
                    yield f"- [{name}]({page})" + (f": {sentence}" if sentence else "")
            yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(lines()), encoding="utf-8")
