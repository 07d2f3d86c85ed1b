"""The site of the documentation (`make docs` builds it) and the release: what can be known without building either."""

import ast
import base64
import gzip
import importlib.util
import json
import re
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from textenvs import Task, TextEnv, Turn
from textenvs.messages import user

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if "node_modules" not in path.parts
)
NAV = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site():
    return script("site_pages")


def listed(nav):
    for entry in nav:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from listed(target)


def test_list_for_language_models_is_current():
    expected = "\n".join(script("llms_txt").lines())
    assert (ROOT / "llms.txt").read_text("utf-8") == expected, "run python scripts/llms_txt.py llms.txt"


def test_navigation_has_exactly_the_docs_pages(site):
    pages = [page for page in listed(NAV) if not page.startswith("reference/")]
    assert len(set(pages)) == len(pages)
    assert [page for page in pages if not (ROOT / page).is_file()] == []
    docs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert docs - set(pages) == set(), "give each page of docs/ a place in zensical.toml"
    assert {page for page in listed(NAV) if page.startswith("reference/")} == {
        f"reference/{name}.md" for name in site.REFERENCE
    }


def test_links_lead_to_files():
    lost = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path = target.partition("#")[0]
            if path and "://" not in path and not (page.parent / path).is_file():
                lost.append(f"{page}: {target}")
    assert lost == []


def names_of(module):
    """Return the names that a module binds at its top; it is not imported, as adapters import their host library."""
    base = ROOT / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    names = {entry.stem for entry in base.glob("*")} if base.is_dir() else set()
    for node in ast.walk(ast.parse(path.read_text("utf-8") if path.is_file() else "")):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # of __all__, where __getattr__ imports it
    return names


def test_python_blocks_parse_and_import():
    """Most snippets are run by the tests of their pages; this is for those that need a model or a service."""
    lost = []
    for page in PAGES:
        for code in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            tree = compile(code, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in ("textenvs", "trainers"):
                    defined = names_of(node.module)
                    lost += [
                        f"{page}: {node.module} has no {one.name}" for one in node.names if one.name not in defined
                    ]
    assert lost == []


#: A key of Parquet's metadata, a file that a command writes, a data set.
NOT_OURS = {"textenvs.iteration", "test_word_chain.py", "textenvs/generated-easy"}


def resolves(dotted):
    """Return whether ``package.module.Name.attribute`` is there, as far as to the name."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        base = ROOT.joinpath(*parts[:length])
        if base.is_dir() or base.with_suffix(".py").is_file():
            return parts[length] in names_of(".".join(parts[:length]))
    return False


def test_names_in_prose_exist():
    """Paths with a folder, files of tests, and dotted names of our packages; capitals stand for the reader's own."""
    folders = ("benchmarks", "docs", "examples", "scripts", "tests", "textenvs", "trainers")
    files = ["", *(path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*"))]
    every, lost = "\n".join(files) + "\n", []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for name in {*re.findall(r"`([^`\n]+)`", text)} - NOT_OURS if page.name != "CHANGELOG.md" else ():
            path = re.fullmatch(rf"((?:{'|'.join(folders)})/[\w./-]+)|([\w/-]+/[\w-]+\.py|test_\w+\.py)", name)
            if path and not re.search(r"\b[A-Z]{4,}\b(?<!README)", name) and f"/{name.rstrip('/')}\n" not in every:
                lost.append(f"{page}: {name}")
            dotted = re.match(r"(?:benchmarks|textenvs|trainers)(?:\.[A-Za-z_]\w*)+", name)
            if dotted and not resolves(dotted[0]):
                lost.append(f"{page}: {dotted[0]}")
    assert lost == []


def test_the_reference_shows_what_there_is(site):
    for _, names in site.REFERENCE.values():
        for name in names:
            package, _, last = name.rpartition(".")
            assert last in names_of(package), name


class Hostile(TextEnv):
    """Says what a page must not take for HTML or Markdown."""

    SAID = "<script>alert(1)</script>\n\n# no heading\n\x1b[31m & </details> \"'"

    def __init__(self):
        super().__init__([Task("one", "hostile", (user(self.SAID),), ground_truth="")])

    def respond(self, reply):
        return Turn(messages=[user(self.SAID)], terms={"a<b": 1.0}, terminated=True, stop="solved")

    def demonstration(self, rng):
        return self.SAID


class Shown(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


def test_environment_page_embeds_an_episode_first(site, monkeypatch, tmp_path):
    monkeypatch.setattr(site.textenvs, "make", lambda _: Hostile())
    seeds = site.write_episodes(["textenv/hostile"], tmp_path / site.EPISODES, seeds=2)
    page = (tmp_path / site.EPISODES).read_text("utf-8")
    assert "alert(1)" not in page
    blocks = dict(re.findall(r'id="data:([^"]+)">([^<]*)<', page))
    episodes = json.loads(gzip.decompress(base64.b64decode(blocks["0/validation/0/0"])))
    assert [message["content"] for message in episodes[0]["messages"]] == [Hostile.SAID] * 3
    text = "# Page\n\nIntroduction.\n\n## First\n\n<!-- attacks textenv/hostile -->\n<!-- end of attacks -->\n"
    before, _, after = site.with_episodes(text, seeds, "../../").partition("## First")
    assert after == text.partition("## First")[2]
    introduction = before.partition("Introduction.")[2].strip()
    assert "\n\n" not in introduction, "a blank line ends the HTML within a page"
    parsed = Shown()
    parsed.feed(introduction)
    assert [tag for tag, _ in parsed.tags] == ["figure", "iframe", "figcaption", "code", "a"]
    where = parsed.tags[1][1]["src"]
    assert where == "../../episodes.html#/run/0/validation/0/e/hostile%2C%20seed%200"
    (iteration,) = json.loads(gzip.decompress(base64.b64decode(blocks["index"])))["runs"][0]["iterations"]
    assert unquote(where.rpartition("/")[2]) in iteration["rows"]["episode_id"]


# --- the release


@pytest.fixture
def places(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n")
    return tmp_path


def test_versions_must_agree_everywhere(places):
    check = script("release_check").problems
    assert check(places) == check(places, ("v1.2.3", "nightly")) == []
    assert "tag v1.2.4" in check(places, ("v1.2.4",))[0]
    (places / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert check(places) == [], "a commit without a tag is no release"
    assert check(places, ("v1.2.3",)) == ["CHANGELOG.md has no section [1.2.3]"]
    (places / "CITATION.cff").write_text("version: 1.2.2\n")
    assert check(places) == ["CITATION.cff says 1.2.2, pyproject.toml 1.2.3"]


def test_this_version_is_the_same_in_all_places():
    assert script("release_check").problems() == []


def test_the_hooks_are_the_linters_of_make_lint():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    hooks = {hook["entry"].removesuffix(" --force-exclude").removeprefix(".venv/bin/") for hook in repository["hooks"]}
    recipes = (ROOT / "Makefile").read_text("utf-8").partition("\nlint: ")[2].partition("\nbench:")[0]
    commands = re.findall(r"^\t\$\(BIN\)/(.+)$", recipes, re.MULTILINE)
    assert hooks == {command.removesuffix(" --check") for command in commands}


def test_code_fences_have_language_and_attributes_alone():
    """``python coffee.py`` is a paragraph on the site, ``python title="coffee.py"`` a block with a title."""
    allowed = re.compile(r'^ *```+(?:[\w-]+(?: \w+="[^"]*")*|\{[^}]*\})?$')
    wrong = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in PAGES
        for line in page.read_text("utf-8").splitlines()
        if line.lstrip().startswith("```") and not allowed.match(line)
    ]
    assert wrong == []


def test_fence_in_built_page_fails_the_build(site, tmp_path):
    good = "<p>Text</p><pre><code>```python\nx\n```</code></pre><code>```</code>"
    (tmp_path / "page.html").write_text(good)
    site.contained(tmp_path)
    (tmp_path / "page.html").write_text(good + "<p>```python coffee.py\nimport x\n```</p>")
    with pytest.raises(ValueError, match=r"page.html shows the fence.*python coffee.py"):
        site.contained(tmp_path)
