"""The template *website*: pages in a plain markup, a generator in Python, and a Makefile.

It needs make, sh, Python 3 and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from ..project import Check, Fault, Project, Question
from .parts import COLOURS, GOODS, faults_of, filled, notes, token

_MAKEFILE = """# Builds the site. Usage: make [SRC=@pages@] [OUT=public]
SRC = @pages@
OUT = public
TOOLS = @tools@
PYTHON = python3 -S -E
PAGES := $(wildcard $(SRC)/*.md $(SRC)/*/*.md)
ASSETS = style.css @logo@
STAMP = $(OUT)/.built

.PHONY: all assets links clean

all: $(STAMP) assets

$(STAMP): $(PAGES) layout/page.html layout/menu.txt $(wildcard $(TOOLS)/*.py)
	mkdir -p $(OUT)
	$(PYTHON) $(TOOLS)/render.py $(SRC) $(OUT) $(PAGES)
	touch $@

assets:
	mkdir -p $(OUT)
	for name in $(ASSETS); do cp assets/$$name $(OUT)/$$name; done

# Lists links to pages that do not exist.
links: all
	$(PYTHON) $(TOOLS)/links.py $(OUT)

clean:
	rm -rf $(OUT)
"""
_RENDER = '''"""Render pages. Usage: render.py SOURCE OUT PAGES"""
import os
import sys

import content
import markup


def menu(root):
    with open("layout/menu.txt") as file:
        return " ".join(f'<a href="{root}{line.strip()}">{line.split(".")[0]}</a>\\n' for line in file)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def main(source, out, paths):
    with open("layout/page.html") as file:
        layout = file.read()
    entries = []
    for path in paths:
        meta, body = content.read(path)
        if not content.published(meta):
            continue
        folder = os.path.dirname(os.path.relpath(path, source))
        name = os.path.join(folder, markup.slug(meta["title"]) + ".html")
        root = "../" * name.count("/")
        title = markup.escape(meta["title"])
        page = layout.format(title=title, root=root, menu=menu(root), body=markup.html(body, root))
        write(os.path.join(out, name), page)
        entries.append((content.order(meta), name, title))
    entries.sort(reverse=True)
    items = "\\n".join(f'<li><a href="{name}">{title}</a></li>' for _, name, title in entries[:@limit@])
    write(os.path.join(out, "index.html"), layout.format(title="@site@", root="", menu=menu(""), body=items))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
'''
_CONTENT = '''"""Pages: lines NAME: VALUE, an empty line, text."""


def read(path):
    with open(path, encoding="utf-8") as file:
        head, _, body = file.read().partition("\\n\\n")
    meta = {}
    for line in head.splitlines():
        name, _, value = line.partition(":")
        meta[name.strip().lower()] = value.strip()
    return meta, body


def published(meta):
    return meta.get("draft", "no").lower() != "yes"


def order(meta):
    """Return what pages are sorted by: the date, which is written as DAY.MONTH.YEAR."""
    day, month, year = meta["date"].split(".")
    return int(year), int(month), int(day)
'''
_MARKUP = '''"""Markup: *bold*, [[Title of a page]], and paragraphs between empty lines."""


def escape(text):
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return text


def slug(title):
    """Return the title in lower case, with a hyphen between its words."""
    words = "".join(char if char.isalnum() else " " for char in title.lower()).split()
    return "-".join(words)


def bold(text):
    pieces = text.split("*")
    return "".join(f"<b>{piece}</b>" if place % 2 else piece for place, piece in enumerate(pieces))


def linked(text, root):
    while "[[" in text:
        before, _, rest = text.partition("[[")
        title, _, after = rest.partition("]]")
        text = f'{before}<a href="{root}{slug(title)}.html">{title}</a>{after}'
    return text


def html(body, root):
    parts = [part.strip() for part in body.split("\\n\\n")]
    return "\\n".join(f"<p>{bold(linked(escape(part), root))}</p>" for part in parts if part)
'''
_LINKS = '''"""List links to files that do not exist. Usage: links.py FOLDER"""
import os
import sys

for folder, _, names in sorted(os.walk(sys.argv[1])):
    for name in sorted(names):
        if not name.endswith(".html"):
            continue
        with open(os.path.join(folder, name)) as file:
            targets = [part.split('"')[0] for part in file.read().split('href="')[1:]]
        for target in targets:
            if not os.path.exists(os.path.join(folder, target)):
                print(name, target)
'''
_LAYOUT = """<title>{title}</title>
<link rel="stylesheet" href="{root}style.css">
{menu}<h1>{title}</h1>
{body}
<p>@footer@</p>
"""

#: Kind, symptom, path, old and new text.
_EDITS = (
    (
        "makefile-dependency",
        "Changes of the layout do not appear on the site until somebody deletes public/.",
        "Makefile",
        "$(PAGES) layout/page.html layout/menu.txt",
        "$(PAGES) layout/menu.txt",
    ),
    (
        "missing-separator",
        "make ends at once with an error.",
        "Makefile",
        "\t$(PYTHON) $(TOOLS)/links.py $(OUT)",
        "    $(PYTHON) $(TOOLS)/links.py $(OUT)",
    ),
    (
        "phony-target",
        "The new site has no style, and its logo is missing.",
        "Makefile",
        ".PHONY: all assets links",
        ".PHONY: all links",
    ),
    (
        "wildcard-depth",
        "Pages in folders are not on the site.",
        "Makefile",
        "$(wildcard $(SRC)/*.md $(SRC)/*/*.md)",
        "$(wildcard $(SRC)/*.md)",
    ),
    (
        "dollar-in-recipe",
        "make ends with an error when it copies what belongs to the pages.",
        "Makefile",
        "cp assets/$$name $(OUT)/$$name",
        "cp assets/$name $(OUT)/$name",
    ),
    (
        "trailing-space",
        "make cannot find a program that is there.",
        "Makefile",
        "TOOLS = @tools@\n",
        "TOOLS = @tools@ # the generator\n",
    ),
    (
        "placeholder-typo",
        "The generator ends with a KeyError.",
        "layout/page.html",
        "<h1>{title}</h1>",
        "<h1>{heading}</h1>",
    ),
    (
        "stale-link",
        "A link of the menu leads nowhere, on every page.",
        "layout/menu.txt",
        "@first@.html",
        "@first@-us.html",
    ),
    (
        "relative-link",
        "Pages in folders have no style, and their links lead nowhere.",
        "@tools@/render.py",
        'root = "../" * name.count("/")',
        'root = ""',
    ),
    (
        "oldest-first",
        "New pages do not appear on the front page.",
        "@tools@/render.py",
        "entries.sort(reverse=True)",
        "entries.sort()",
    ),
    (
        "missing-escape",
        "The title of a page is cut off in the browser, at a < in it.",
        "@tools@/render.py",
        'title = markup.escape(meta["title"])',
        'title = meta["title"]',
    ),
    (
        "escape-order",
        "Texts with a < show strange characters instead.",
        "@tools@/markup.py",
        '(("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))',
        '(("<", "&lt;"), (">", "&gt;"), ("&", "&amp;"))',
    ),
    (
        "truncated-name",
        "Some pages are missing: others of a similar title stand in their place.",
        "@tools@/markup.py",
        '"-".join(words)',
        '"-".join(words[:2])',
    ),
    (
        "first-match-only",
        "In paragraphs with several links, only the first one works.",
        "@tools@/markup.py",
        '    while "[[" in text:',
        '    if "[[" in text:',
    ),
    (
        "empty-element",
        "There are gaps between some paragraphs.",
        "@tools@/markup.py",
        "for part in parts if part)",
        "for part in parts)",
    ),
    (
        "draft-published",
        "Pages that are not finished are on the site.",
        "@tools@/content.py",
        '.lower() != "yes"',
        ' != "yes"',
    ),
    (
        "header-case",
        "The generator ends with an error for pages of one of the authors.",
        "@tools@/content.py",
        "meta[name.strip().lower()]",
        "meta[name.strip()]",
    ),
    (
        "date-as-text",
        "The front page is in no order that anybody understands.",
        "@tools@/content.py",
        "return int(year), int(month), int(day)",
        "return day, month, year",
    ),
)


@dataclass(frozen=True)
class _Page:
    """A page; ``paragraphs`` in markup beside what they are in HTML, up to the links, which have ``@root@``."""

    folder: str
    title: str
    date: tuple[int, int, int]
    paragraphs: Sequence[tuple[str, str]]
    draft: bool = False
    reference: str = ""

    @property
    def name(self) -> str:
        return self.folder + "-".join(self.title.lower().replace("&", " ").replace("<", " ").split()) + ".html"

    @property
    def title_html(self) -> str:
        return self.title.replace("&", "&amp;").replace("<", "&lt;")

    def source(self, *, upper: bool) -> str:
        year, month, day = self.date
        head = [f"Title: {self.title}", f"Date: {day}.{month}.{year}", f"Draft: {'Yes' if self.draft else 'no'}"]
        head += [f"Reference: {self.reference}"] if self.reference else []
        head = [line if upper else line[0].lower() + line[1:] for line in head]
        return "\n".join(head) + "\n\n" + "\n\n\n\n".join(source for source, _ in self.paragraphs) + "\n"


@dataclass(frozen=True)
class _Site:
    """The names of a drawn site, the pages of its menu, its layout and its style."""

    names: Mapping[str, object]
    menu: Sequence[str]
    style: str

    def html(self, layout: str, page: _Page) -> str:
        body = "\n".join(f"<p>{html}</p>" for _, html in page.paragraphs)
        return self.laid_out(layout, page.title_html, body, "../" if page.folder else "")

    def laid_out(self, layout: str, title: str, body: str, root: str) -> str:
        menu = " ".join(f'<a href="{root}{name}">{name.split(".")[0]}</a>\n' for name in self.menu)
        pieces = {"title": title, "root": root, "menu": menu, "body": body.replace("@root@", root)}
        for name, text in pieces.items():
            layout = layout.replace("{" + name + "}", text)
        return layout

    def front(self, layout: str, pages: Sequence[_Page]) -> str:
        newest = sorted((page for page in pages if not page.draft), key=lambda page: page.date, reverse=True)
        items = [
            f'<li><a href="{page.name}">{page.title_html}</a></li>' for page in newest[: int(str(self.names["limit"]))]
        ]
        return self.laid_out(layout, str(self.names["site"]), "\n".join(items), "")


def draw(rng: random.Random) -> Project:
    """Draw a project: names of folders, layout, style and pages."""
    menu = rng.sample(["about", "contact", "team", "shops", "imprint"], 3)
    names = {
        "pages": rng.choice(["pages", "content", "texts"]),
        "tools": rng.choice(["tools", "generator", "bin"]),
        "logo": rng.choice(["logo.svg", "mark.svg", "sign.svg"]),
        "limit": rng.randint(4, 6),
        "site": f"{rng.choice(COLOURS).title()} {rng.choice(GOODS).title()}",
        "footer": f"Printed on {rng.choice(COLOURS)} paper",
        "first": menu[0],
    }
    style = "".join(f".{rng.choice(GOODS)} {{ color: {rng.choice(COLOURS)} }}\n" for _ in range(rng.randint(3, 9)))
    site = _Site(names, [f"{name}.html" for name in menu], style)
    texts = {
        "Makefile": _MAKEFILE,
        "@tools@/render.py": _RENDER,
        "@tools@/content.py": _CONTENT,
        "@tools@/markup.py": _MARKUP,
        "@tools@/links.py": _LINKS,
        "layout/page.html": _LAYOUT,
        "layout/page.old.html": _LAYOUT.replace("<h1>{title}</h1>", "<h2>{heading}</h2>"),
        "layout/menu.txt": "".join(f"{name}\n" for name in site.menu),
        "assets/style.css": style,
        "assets/@logo@": f"<svg><circle r='{rng.randint(2, 99)}'/></svg>\n",
        "assets/unused.svg": "<svg/>\n",
        "docs/notes.md": notes(rng, "Notes on the site", 9),
    }
    files = {filled(path, names): filled(text, names) for path, text in texts.items()}
    questions = _questions(rng, files, str(names["pages"]), menu)
    fixed = frozenset(path for path in files if path.startswith(f"{names['pages']}/"))
    logo = f"assets/{names['logo']}"
    looks = ["ls *", "cat Makefile", "make links OUT=/tmp/site | head"]
    asset = Fault(
        "missing-asset",
        "make ends with an error about a file, or the pages have no logo.",
        looks,
        f"printf %s {quote(files[logo])} > {logo}",
        removed=[logo],
    )

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, site, files[logo])

    about = (
        f"`make` builds a site in `public/` from the pages in `{names['pages']}/`, and `make links` lists links that "
        "lead nowhere. The logo is a circle, as the notes on the brand ask."
    )
    files["docs/brand.md"] = f"# Brand\n\nThe file of the logo, {logo}, is exactly this line:\n\n{files[logo]}"
    return Project(about, files, [*faults_of(_EDITS, names, looks), asset], checks, fixed=fixed, questions=questions)


def _page(rng: random.Random, folder: str, title: str, date: tuple[int, int, int], targets: Sequence[str]) -> _Page:
    """Draw a page with text, bold words, characters that HTML must escape, and links."""
    one, other = rng.sample(GOODS, 2)
    number = rng.randint(2, 99)
    source = f"The *{one}* & the *{other}*: {number} < {number + 1}."
    paragraphs = [(source, f"The <b>{one}</b> &amp; the <b>{other}</b>: {number} &lt; {number + 1}.")]
    links = [f'<a href="@root@{target.lower().replace(" ", "-")}.html">{target}</a>' for target in targets]
    paragraphs.append(("See " + " and ".join(f"[[{target}]]" for target in targets), "See " + " and ".join(links)))
    return _Page(folder, title, date, paragraphs)


def _checks(rng: random.Random, site: _Site, logo: str) -> list[Check]:
    """Draw two sources; compute their pages. The second one gets another layout after it was built."""
    checks = []
    layout = filled(_LAYOUT, site.names)
    for number in range(2):
        pages = _source(rng, site)
        ready = [page for page in pages if not page.draft]
        samples = [ready[3], ready[-1], ready[-2]]
        inputs = {
            f"src/{page.folder}{token(rng)}.md": page.source(upper=place % 2 == 0) for place, page in enumerate(pages)
        }
        build = f"SRC=$IN/src OUT=/tmp/site{number}"
        lists = [*(page.name for page in ready), "index.html", "style.css", str(site.names["logo"])]
        listing = "\n".join(sorted(f"./{name}" for name in [*lists, ".built"]))
        cat = f"cat index.html {' '.join(page.name for page in samples)}"
        if number:
            layout = layout.replace("</h1>", f"</h1>\n<p>{token(rng)}</p>")
            inputs["page.html"] = layout
            command = (
                f"make -s {build}; cp $IN/page.html layout/page.html; touch -d 2040-01-01 layout/page.html; "
                f"make -s {build}; cd /tmp/site{number} && {cat}"
            )
            expected = ""
        else:
            missing = f"{ready[3].name.rpartition('/')[2]} {'../' if ready[3].folder else ''}no-such-page.html\n"
            assets = f"cat style.css {site.names['logo']}"
            command = (
                f"make -s links {build}; cd /tmp/site{number} && find . -type f | LC_ALL=C sort && {assets} && {cat}"
            )
            expected = f"{missing}{listing}\n{site.style}{logo}"
        expected += site.front(layout, pages) + "".join(site.html(layout, page) for page in samples)
        checks.append(Check("changed-layout" if number else "site", command, expected, inputs))
    return checks


def _source(rng: random.Random, site: _Site) -> list[_Page]:
    """Draw pages: those of the menu, one with a link that leads nowhere, similar titles, a draft, and a folder."""
    folder = f"{rng.choice(GOODS)}s/"
    dates = [
        (2000 + rng.randint(1, 25), month, day)
        for month, day in zip((9, 10, 11, 2, 3, 12, 1, 6, 7), range(4, 13), strict=True)
    ]
    rng.shuffle(dates)
    menu = [name.split(".")[0].title() for name in site.menu]
    one, other = (f"{rng.choice(COLOURS)} {rng.choice(GOODS)} {token(rng, 4)}" for _ in range(2))
    pages = [_page(rng, "", title, dates.pop(), [menu[0], menu[1]]) for title in menu]
    pages.append(_page(rng, "", f"{one} & more", dates.pop(), [menu[2], "No such page"]))
    pages.append(_page(rng, "", f"{other} < {rng.randint(3, 9)}", dates.pop(), menu[:2]))
    pages.append(_page(rng, "", f"{other} {token(rng, 3)}", dates.pop(), menu[1:]))
    pages.append(replace(_page(rng, "", f"Draft {token(rng, 3)}", dates.pop(), menu[:2]), draft=True))
    pages.append(_page(rng, folder, f"{one} {token(rng, 3)}", dates.pop(), menu[:2]))
    pages.append(_page(rng, folder, f"{token(rng, 5)} & {rng.choice(GOODS)}", dates.pop(), menu[1:]))
    return pages


def _questions(rng: random.Random, files: dict[str, str], folder: str, menu: Sequence[str]) -> list[Question]:
    """Draw the pages of the site and a log of its builds, and ask about them."""
    titles = [f"{colour} {item}".capitalize() for colour in rng.sample(COLOURS, 7) for item in rng.sample(GOODS, 7)]
    titles = [*(name.capitalize() for name in menu), *titles[: rng.randint(30, 45)]]
    part, pages = f"{rng.choice(GOODS)}-guides", dict[str, _Page]()
    for place, title in enumerate(titles):
        where = f"{part}/" if place % 4 == 3 else ""
        page = _page(rng, where, title, (2015 + place % 10, 1 + place % 12, 1 + place % 28), rng.sample(titles[3:], 2))
        path = f"{folder}/{page.name.removesuffix('.html')}.md"
        pages[path] = replace(page, reference=token(rng))
        files[path] = pages[path].source(upper=True)
    lines, spent = list[str](), dict[int, dict[str, int]]()
    for build in range(1, 71):
        spent[build] = dict(zip(pages, rng.sample(range(2, 9000), len(pages)), strict=True))
        lines += [f"build {build} rendered {path} in {milliseconds} ms" for path, milliseconds in spent[build].items()]
    files["logs/builds.log"] = "\n".join(lines) + "\n"
    build, page = rng.randint(10, 60), rng.choice(list(pages.values()))
    target = page.paragraphs[1][0].split("[[")[-1].rstrip("]")
    slowest = max(spent[build], key=lambda path: spent[build][path])
    link = f"$(grep -rh -A9 'Reference: {page.reference}' {folder} | grep -o '\\[\\[[^]]*' | tail -1 | cut -c3-)"
    reference = "xargs sed -n 's/^Reference: //p'"
    return [
        Question(
            "reference-of-link",
            f"The page of reference {page.reference} links to two pages. What is the reference of the second one?",
            next(other.reference for other in pages.values() if other.title == target),
            [f"grep -rl {page.reference} {folder}", f'grep -rlx "Title: {link}" {folder} | {reference}'],
        ),
        Question(
            "slowest-page",
            f"What is the reference of the page that took longest in build {build}, by logs/builds.log?",
            pages[slowest].reference,
            [
                "head -3 logs/builds.log",
                f"grep '^build {build} ' logs/builds.log | sort -k6,6n | tail -1 | cut -d' ' -f4 | {reference}",
            ],
        ),
    ]
