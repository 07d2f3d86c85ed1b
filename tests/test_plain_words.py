"""Names, docstrings and test names are plain: measured over the whole source, as CONTRIBUTING.md asks."""

from __future__ import annotations

import ast
import gc
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("plain words")  # one process parses the files

ROOT = Path(__file__).parents[1]
SOURCE = ("textenvs", "trainers", "benchmarks", "scripts", "examples")
#: Participles and pronouns in the place of a noun.
NAMES = frozenset(
    [
        "each",
        "given",
        "found",
        "said",
        "told",
        "asked",
        "wanted",
        "mine",
        "theirs",
        "ours",
        "others",
        "heard",
        "owed",
        "known",
        "more",
        "there",
        "here",
        "paid",
        "kept",
        "left",
        "taken",
        "gone",
        "meant",
        "shown",
    ]
)
#: First words of a docstring that answers a question instead of naming the thing or what it does.
OPENINGS = frozenset(
    ["What", "Of", "Who", "Whose", "Whether", "Those", "Likewise", "How", "Where", "Which", "That", "As", "For"]
)
#: Phrases of no field, and the word to write instead.
PHRASES = {
    r"for want of": "without",
    r"gone on with": "resumed from",
    r"the books": "the counts",
    r"stood on": "depended on",
    r"had best": "should",
    r"for ever": "without end",
    r"of one's own accord": "by itself",
    r"whole numbers?": "integer",
    r"nobody's fault": "does not count against retries",
}
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def modules_of(folder: str) -> list[tuple[Path, ast.Module, str]]:
    texts = [(path, path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder).rglob("*.py"))]
    gc.disable()  # a tree is many objects, and no garbage
    try:
        return [(path.relative_to(ROOT), ast.parse(text), text) for path, text in texts]
    finally:
        gc.enable()


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module, str]]:
    for folder in folders:
        yield from modules_of(folder)


@cache
def definitions(tree: ast.Module) -> list[Definition]:
    """A module's definitions, itself first: they are statements, in the bodies of others, and in no expression."""
    definitions: list[Definition] = []
    remaining: list[ast.AST] = [tree]
    while remaining:
        node = remaining.pop()
        if isinstance(node, DEFINITIONS):
            definitions.append(node)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, ())
            remaining += block if isinstance(block, list) else ()
    return definitions


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in definitions(tree):
        if text := ast.get_docstring(node, clean=False):
            yield getattr(node, "lineno", 1), text.lstrip()


def code_lines(tree: ast.Module, text: str) -> tuple[int, list[tuple[int, str]]]:
    """The number of lines of code, without comments and docstrings, and the names in them with their lines."""
    documented: set[int] = set()
    for node in definitions(tree):
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    names = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(set(range(token.start[0], token.end[0] + 1)) - documented)
        if token.type == tokenize.NAME:
            names.append((token.start[0], token.string))
    return len(lines), names


@pytest.mark.parametrize("folder", [*SOURCE, "tests"])
def test_docstrings_open_with_verb_or_noun(folder: str) -> None:
    riddles = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path, tree, _ in modules(folder)
        for line, text in docstrings(tree)
        if (word := re.match(r"[A-Za-z]+", text)) and word[0] in OPENINGS
    ]
    assert not riddles, "\n".join(riddles)


def test_identifiers_name_the_thing() -> None:
    count, places = 0, []
    for path, tree, text in modules(*SOURCE):
        lines, names = code_lines(tree, text)
        count += lines
        places += [f"{path}:{line}: {name}" for line, name in names if name in NAMES]
    assert 1000 * len(places) / count <= 2, "\n".join(places)


def test_test_names_are_short() -> None:
    words: dict[str, int] = {}
    for path, tree, _ in modules("tests"):
        for node in definitions(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words[f"{path}:{node.lineno}: {node.name}"] = len(node.name.split("_")) - 1
    long = [place for place, count in words.items() if count > 8]
    assert not long, "\n".join(long)
    assert sum(words.values()) / len(words) <= 6


@pytest.mark.parametrize(("phrase", "instead"), PHRASES.items())
def test_phrases_are_of_the_field(phrase: str, instead: str) -> None:
    pattern = re.compile(rf"\b{phrase}\b", re.IGNORECASE)
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    files = [*pages, *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in files]
    texts += [(path, text) for path, _, text in modules(*SOURCE)]
    places = [
        f"{path}:{number}"
        for path, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not places, f"write {instead!r}: {', '.join(places)}"
