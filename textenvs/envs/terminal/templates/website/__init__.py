"""The template *website*: pages in a plain markup, a generator in Python, and a Makefile.

It needs make, sh, Python 3 and coreutils.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from ...project import Check, Fault, Project, Question
from ..parts import ASKED, COLOURS, GOODS, asked_together, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import CONTENT, LAYOUT, LINKS, MAKEFILE, MARKUP, RENDER


@dataclass(frozen=True)
class _Page:
    """A page; ``paragraphs`` in markup beside what they are in HTML, up to the links, which have ``@root@``."""

    folder: str
    title: str
    name: str  # of its file, with the folder
    date: tuple[int, int, int]
    paragraphs: Sequence[tuple[str, str]]
    draft: bool = False
    reference: str = ""

    @property
    def title_html(self) -> str:
        return self.title.replace("&", "&amp;").replace("<", "&lt;")

    def source(self, draft: object, *, upper: bool) -> str:
        """Return the text of the page; ``draft`` is the name of the line that says whether it is one."""
        year, month, day = self.date
        head = [f"Title: {self.title}", f"Date: {day}.{month}.{year}"]
        head.append(f"{str(draft).title()}: {'Yes' if self.draft else 'no'}")
        head += [f"Reference: {self.reference}"] if self.reference else []
        head = [line if upper else line[0].lower() + line[1:] for line in head]
        return "\n".join(head) + "\n\n" + "\n\n\n\n".join(source for source, _ in self.paragraphs) + "\n"


@dataclass(frozen=True)
class _Site:
    """The rules and names of a drawn site, the pages of its menu, and its style."""

    variant: Variant
    menu: Sequence[str]
    style: str

    def file_name(self, title: str) -> str:
        words = title.lower().replace("&", " ").replace("<", " ").split()
        return f"{self.variant['name-of-page'](words)}{self.variant.names['suffix']}"

    def html(self, layout: str, page: _Page) -> str:
        body = self.variant["between-paragraphs"].join(f"<p>{html}</p>" for _, html in page.paragraphs)
        return self.laid_out(layout, page.title_html, body, "../" if page.folder else "")

    def laid_out(self, layout: str, title: str, body: str, root: str) -> str:
        label, suffix = self.variant["menu-label"], self.variant.names["suffix"]
        entries = (f'<a href="{root}{name}{suffix}">{label(name)}</a>\n' for name in self.menu)
        menu = self.variant["menu-separator"].join(entries)
        pieces = {"title": title, "root": root, "menu": menu, "body": body.replace("@root@", root)}
        for name, text in pieces.items():
            layout = layout.replace("{" + name + "}", text)
        return layout

    def front(self, layout: str, pages: Sequence[_Page]) -> str:
        variant = self.variant
        ready = [page for page in pages if not page.draft]
        ready.sort(key=lambda page: [page.date[place] for place in variant["date-order"]])
        chosen = ready[variant["order-of-front"]][: int(str(variant.names["limit"]))]
        items = [variant["item-of-front"].format(page.name, page.title_html) for page in chosen]
        return self.laid_out(layout, str(variant.names["site"]), "\n".join(items), "")


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
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
        "suffix": rng.choice([".html", ".htm", ".xhtml"]),
        "draft": rng.choice(["draft", "hidden", "unfinished", "internal"]),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    style = "".join(f".{rng.choice(GOODS)} {{ color: {rng.choice(COLOURS)} }}\n" for _ in range(rng.randint(3, 9)))
    site = _Site(variant, menu, style)
    texts = {
        "Makefile": MAKEFILE,
        "@tools@/render.py": RENDER,
        "@tools@/content.py": CONTENT,
        "@tools@/markup.py": MARKUP,
        "@tools@/links.py": LINKS,
        "layout/page.html": LAYOUT,
        "layout/page.old.html": LAYOUT.replace("<h1>{title}</h1>", "<h2>{heading}</h2>"),
        "layout/menu.txt": "".join(f"{name}@suffix@\n" for name in menu),
    }
    logo = f"assets/{names['logo']}"
    files = variant.files(texts) | variant.document(rng)
    files |= {
        "assets/style.css": style,
        logo: f"<svg><circle r='{rng.randint(2, 99)}'/></svg>\n",
        "assets/unused.svg": "<svg/>\n",
        "docs/notes.md": notes(rng, "Notes on the site", 9),
    }
    questions = _questions(rng, files, site)
    fixed = frozenset(path for path in files if path.startswith(f"{names['pages']}/"))
    looks = ["ls *", "cat Makefile", "make links OUT=/tmp/site | head"]
    asset = Fault(
        "missing-asset",
        "make ends with an error about a file, or the pages have no logo.",
        looks,
        f"printf %s {quote(files[logo])} > {logo}",
        removed=[logo],
    )

    code = variant.chosen["name-of-page"].code
    short = (
        "truncated-name",
        "Some pages are missing: others of a similar title stand in their place.",
        "@tools@/markup.py",
        code,
        code.replace("words", "words[:2]"),
    )

    def checks(fresh: random.Random) -> Sequence[Check]:
        return _checks(fresh, site, files[logo])

    about = (
        f"`make` builds a site in `public/` from the pages in `{names['pages']}/`, and `make links` lists links that "
        f"lead nowhere; `{variant.page}` says how they look. The logo is a circle, as the notes on the brand ask."
    )
    files["docs/brand.md"] = f"# Brand\n\nThe file of the logo, {logo}, is exactly this line:\n\n{files[logo]}"
    return Project(
        about,
        files,
        [*variant.edits([*EDITS, short], files, looks), *variant.faults(rng, files, looks), asset],
        checks,
        fixed=fixed,
        questions=questions,
    )


def _page(
    rng: random.Random, site: _Site, folder: str, title: str, date: tuple[int, int, int], targets: Sequence[str]
) -> _Page:
    """Draw a page with text, bold words, characters that HTML must escape, and links."""
    one, other = rng.sample(GOODS, 2)
    number, mark, bold = rng.randint(2, 99), site.variant["bold-mark"], site.variant["bold-element"]
    source = f"The {mark}{one}{mark} & the {mark}{other}{mark}: {number} < {number + 1}."
    html = f"The <{bold}>{one}</{bold}> &amp; the <{bold}>{other}</{bold}>: {number} &lt; {number + 1}."
    begin = site.variant["link-element"]
    links = [f'{begin}"@root@{site.file_name(target)}">{target}</a>' for target in targets]
    paragraphs = [
        (source, html),
        ("See " + " and ".join(f"[[{target}]]" for target in targets), "See " + " and ".join(links)),
    ]
    return _Page(folder, title, folder + site.file_name(title), date, paragraphs)


def _checks(rng: random.Random, site: _Site, logo: str) -> list[Check]:
    """Draw two sources; compute their pages. The second one gets another layout after it was built."""
    checks = []
    variant = site.variant
    layout = variant.text(LAYOUT)
    for number in range(2):
        pages = _source(rng, site)
        ready = [page for page in pages if not page.draft]
        samples = [ready[3], ready[-1], ready[-2]]
        inputs = {
            f"src/{page.folder}{token(rng)}.md": page.source(variant.names["draft"], upper=place % 2 == 0)
            for place, page in enumerate(pages)
        }
        build = f"SRC=$IN/src OUT=/tmp/site{number}"
        lists = [*(page.name for page in ready), "index.html", "style.css", str(variant.names["logo"])]
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
            missing = variant["broken-link"].format(ready[3].name, site.file_name("No such page")) + "\n"
            assets = f"cat style.css {variant.names['logo']}"
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
    menu = [name.title() for name in site.menu]
    one, other = (f"{rng.choice(COLOURS)} {rng.choice(GOODS)} {token(rng, 4)}" for _ in range(2))
    pages = [_page(rng, site, "", title, dates.pop(), [menu[0], menu[1]]) for title in menu]
    pages.append(_page(rng, site, "", f"{one} & more", dates.pop(), [menu[2], "No such page"]))
    pages.append(_page(rng, site, "", f"{other} < {rng.randint(3, 9)}", dates.pop(), menu[:2]))
    pages.append(_page(rng, site, "", f"{other} {token(rng, 3)}", dates.pop(), menu[1:]))
    pages.append(replace(_page(rng, site, "", f"Draft {token(rng, 3)}", dates.pop(), menu[:2]), draft=True))
    pages.append(_page(rng, site, folder, f"{one} {token(rng, 3)}", dates.pop(), menu[:2]))
    pages.append(_page(rng, site, folder, f"{token(rng, 5)} & {rng.choice(GOODS)}", dates.pop(), menu[1:]))
    return pages


def _questions(rng: random.Random, files: dict[str, str], site: _Site) -> list[Question]:
    """Draw the pages of the site and a log of its builds, and ask about them."""
    titles = [f"{colour} {item}".capitalize() for colour in rng.sample(COLOURS, 7) for item in rng.sample(GOODS, 7)]
    folder, suffix = str(site.variant.names["pages"]), str(site.variant.names["suffix"])
    titles = [*(name.capitalize() for name in site.menu), *titles[: rng.randint(30, 45)]]
    part, pages = f"{rng.choice(GOODS)}-guides", dict[str, _Page]()
    for place, title in enumerate(titles):
        where = f"{part}/" if place % 4 == 3 else ""
        page = _page(
            rng, site, where, title, (2015 + place % 10, 1 + place % 12, 1 + place % 28), rng.sample(titles[3:], 2)
        )
        path = f"{folder}/{page.name.removesuffix(suffix)}.md"
        pages[path] = replace(page, reference=token(rng))
        files[path] = pages[path].source(site.variant.names["draft"], upper=True)
    lines, spent = list[str](), dict[int, dict[str, int]]()
    for build in range(1, 71):
        spent[build] = dict(zip(pages, rng.sample(range(2, 9000), len(pages)), strict=True))
        lines += [f"build {build} rendered {path} in {milliseconds} ms" for path, milliseconds in spent[build].items()]
    files["logs/builds.log"] = "\n".join(lines) + "\n"
    chosen = rng.sample(list(pages.values()), ASKED)
    references = {page.title: page.reference for page in pages.values()}
    builds = rng.sample(range(10, 60), ASKED)
    slowest = {build: max(spent[build], key=spent[build].__getitem__) for build in builds}
    return [
        asked_together([_reference_of_link(folder, page, references) for page in chosen]),
        asked_together([_slowest_page(build, pages[path].reference) for build, path in slowest.items()]),
    ]


def _reference_of_link(folder: str, page: _Page, references: Mapping[str, str]) -> Question:
    target = page.paragraphs[1][0].split("[[")[-1].rstrip("]")
    link = f"$(grep -rh -A9 'Reference: {page.reference}' {folder} | grep -o '\\[\\[[^]]*' | tail -1 | cut -c3-)"
    return Question(
        "reference-of-link",
        f"The page of reference {page.reference} links to two pages. What is the reference of the second one?",
        references[target],
        [
            f"grep -rl {page.reference} {folder}",
            f"grep -rlx \"Title: {link}\" {folder} | xargs sed -n 's/^Reference: //p'",
        ],
    )


def _slowest_page(build: int, reference: str) -> Question:
    path = f"grep '^build {build} ' logs/builds.log | sort -k6,6n | tail -1 | cut -d' ' -f4"
    return Question(
        "slowest-page",
        f"What is the reference of the page that took longest in build {build}, by logs/builds.log?",
        reference,
        ["head -3 logs/builds.log", f"{path} | xargs sed -n 's/^Reference: //p'"],
    )
