"""Files of the template `website`; what stands between @ is drawn."""

from __future__ import annotations

MAKEFILE = """# Builds the site. Usage: make [SRC=@pages@] [OUT=public]
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

RENDER = '''"""Render pages. Usage: render.py SOURCE OUT PAGES"""
import os
import sys

import content
import markup


def menu(root):
    with open("layout/menu.txt") as file:
        return @menu_separator@'<a href="{root}{line.strip()}">{@menu_label@}</a>\\n' for line in file)


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
        name = os.path.join(folder, markup.slug(meta["title"]) + "@suffix@")
        root = "../" * name.count("/")
        title = markup.escape(meta["title"])
        page = layout.format(title=title, root=root, menu=menu(root), body=markup.html(body, root))
        write(os.path.join(out, name), page)
        entries.append((content.order(meta), name, title))
    @order_of_front@
    items = "\\n".join(@item_of_front@ for _, name, title in entries[:@limit@])
    write(os.path.join(out, "index.html"), layout.format(title="@site@", root="", menu=menu(""), body=items))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
'''

CONTENT = '''"""Pages: lines NAME: VALUE, an empty line, text."""


def read(path):
    with open(path, encoding="utf-8") as file:
        head, _, body = file.read().partition("\\n\\n")
    meta = {}
    for line in head.splitlines():
        name, _, value = line.partition(":")
        meta[name.strip().lower()] = value.strip()
    return meta, body


def published(meta):
    return meta.get("@draft@", "no").lower() != "yes"


def order(meta):
    """Return what pages are sorted by."""
    day, month, year = meta["date"].split(".")
    return @date_order@
'''

MARKUP = '''"""Markup: bold text, links to [[Title of a page]], and paragraphs between empty lines."""


def escape(text):
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, entity)
    return text


def slug(title):
    """Return the name of the file of a page."""
    words = "".join(char if char.isalnum() else " " for char in title.lower()).split()
    return @name_of_page@


def bold(text):
    pieces = @bold_mark@
    return "".join(@bold_element@ if place % 2 else piece for place, piece in enumerate(pieces))


def linked(text, root):
    while "[[" in text:
        before, _, rest = text.partition("[[")
        title, _, after = rest.partition("]]")
        text = f'{before}@link_element@"{root}{slug(title)}@suffix@">{title}</a>{after}'
    return text


def html(body, root):
    parts = [part.strip() for part in body.split("\\n\\n")]
    return @between_paragraphs@{bold(linked(escape(part), root))}</p>" for part in parts if part)
'''

LINKS = '''"""List links to files that do not exist. Usage: links.py FOLDER"""
import os
import sys

for folder, _, names in sorted(os.walk(sys.argv[1])):
    for name in sorted(names):
        if not name.endswith("@suffix@"):
            continue
        with open(os.path.join(folder, name)) as file:
            targets = [part.split('"')[0] for part in file.read().split('href="')[1:]]
        for target in targets:
            if not os.path.exists(os.path.join(folder, target)):
                @broken_link@
'''

LAYOUT = """<title>{title}</title>
<link rel="stylesheet" href="{root}style.css">
{menu}<h1>{title}</h1>
{body}
<p>@footer@</p>
"""
