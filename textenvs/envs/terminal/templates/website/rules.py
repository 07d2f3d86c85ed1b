"""Rules that the programs of the template `website` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule

RULES = (
    Rule(
        "menu-label",
        "@tools@/render.py",
        "The menu does not look as the brand asks.",
        [
            Option('line.split(".")[0]', "The menu has names in lower case.", str),
            Option('line.split(".")[0].upper()', "The menu has names in upper case.", str.upper),
            Option('line.split(".")[0].title()', "The menu has names with a capital letter.", str.title),
            Option('line.split(".")[0][:4]', "The menu has the first four letters of names.", lambda name: name[:4]),
            Option(
                '"to " + line.split(".")[0]', "The menu has names with `to` before them.", lambda name: f"to {name}"
            ),
        ],
    ),
    Rule(
        "menu-separator",
        "@tools@/render.py",
        "The entries of the menu are not told apart as the brand asks.",
        [
            Option(f'"{mark}".join(f', f"Between two entries of the menu is `{mark}`.", mark)
            for mark in (" ", " | ", " / ", "- ", "+ ")
        ],
    ),
    Rule(
        "order-of-front",
        "@tools@/render.py",
        "New pages do not appear on the front page where they should.",
        [
            Option(
                "entries.sort(reverse=True)",
                "The front page has @limit@ pages, the last one first.",
                slice(None, None, -1),
            ),
            Option("entries.sort()", "The front page has @limit@ pages, the first one first.", slice(None)),
            Option(
                "entries = sorted(entries)[1:]",
                "The front page has @limit@ pages, beginning with the second one; the first one is left out.",
                slice(1, None),
            ),
            Option(
                "entries = sorted(entries, reverse=True)[1:]",
                "The front page has @limit@ pages, beginning with the last but one; the last one is left out.",
                slice(-2, None, -1),
            ),
        ],
    ),
    Rule(
        "item-of-front",
        "@tools@/render.py",
        "The entries of the front page do not look as the brand asks.",
        [
            Option(
                "f'<li><a href=\"{name}\">{title}</a></li>'",
                "An entry of the front page is an `li` with the link.",
                '<li><a href="{0}">{1}</a></li>',
            ),
            Option(
                "f'<p><a href=\"{name}\">{title}</a></p>'",
                "An entry of the front page is a `p` with the link.",
                '<p><a href="{0}">{1}</a></p>',
            ),
            Option(
                "f'<a href=\"{name}\">{title}</a><br>'",
                "An entry of the front page is the link, then a `br`.",
                '<a href="{0}">{1}</a><br>',
            ),
            Option(
                "f'<li>{title}: <a href=\"{name}\">{name}</a></li>'",
                "An entry of the front page is an `li` such as `Title: name`, with the link at the file's name.",
                '<li>{1}: <a href="{0}">{0}</a></li>',
            ),
        ],
    ),
    Rule(
        "date-order",
        "@tools@/content.py",
        "The front page is in another order than the editors agreed.",
        [
            Option(
                "int(year), int(month), int(day)",
                "Pages are ordered by date, which is DAY.MONTH.YEAR in their head.",
                (0, 1, 2),
            ),
            Option(
                "int(month), int(day), int(year)",
                "Pages are ordered by their day in the year, whatever the year; a date is DAY.MONTH.YEAR.",
                (1, 2, 0),
            ),
            Option(
                "int(day), int(month), int(year)",
                "Pages are ordered by the day, then the month, then the year of their date, DAY.MONTH.YEAR.",
                (2, 1, 0),
            ),
        ],
    ),
    Rule(
        "name-of-page",
        "@tools@/markup.py",
        "Addresses of pages that others link to do not exist any more.",
        [
            Option(
                '"-".join(words)', "The file of a page is its title in lower case, with `-` between words.", "-".join
            ),
            Option(
                '"_".join(words)', "The file of a page is its title in lower case, with `_` between words.", "_".join
            ),
            Option('"".join(words)', "The file of a page is its title in lower case, without spaces.", "".join),
            Option(
                '"-".join(words[::-1])',
                "The file of a page is its title in lower case, the last word first, with `-` between.",
                lambda words: "-".join(words[::-1]),
            ),
            Option(
                '".".join(words)',
                "The file of a page is its title in lower case, with `.` between words.",
                ".".join,
            ),
        ],
        shows=True,
    ),
    Rule(
        "bold-mark",
        "@tools@/markup.py",
        "Words that should be bold are between strange characters.",
        [Option(f'text.split("{mark}")', f"Bold words are written between two `{mark}`.", mark) for mark in "*~^+%"],
        shows=True,
    ),
    Rule(
        "bold-element",
        "@tools@/markup.py",
        "Bold words do not look as the brand asks.",
        [
            Option(f'f"<{name}>{{piece}}</{name}>"', f"Bold words become the element `{name}`.", name)
            for name in ("b", "strong", "em", "mark", "u")
        ],
    ),
    Rule(
        "link-element",
        "@tools@/markup.py",
        "Links in texts do not look as the brand asks.",
        [
            Option("<a href=", "A link in a text has no class.", "<a href="),
            *(
                Option(
                    f'<a class="{name}" href=', f"A link in a text has the class `{name}`.", f'<a class="{name}" href='
                )
                for name in ("in", "inner", "own", "soft")
            ),
        ],
    ),
    Rule(
        "between-paragraphs",
        "@tools@/markup.py",
        "Paragraphs are not set apart as the brand asks.",
        [
            Option(f'"{mark}\\n".join(f"<p>', f"Paragraphs have a line's end between them{before}.", f"{mark}\n")
            for mark, before in (
                ("", ""),
                ("<hr>", ", and `<hr>` before it"),
                ("<br>", ", and `<br>` before it"),
                ("<wbr>", ", and `<wbr>` before it"),
            )
        ],
    ),
    Rule(
        "broken-link",
        "@tools@/links.py",
        "The editors' program cannot read the list of links that lead nowhere.",
        [
            Option("print(name, target)", "`make links` prints lines `PAGE TARGET`.", "{0} {1}"),
            Option("print(target, name)", "`make links` prints lines `TARGET PAGE`.", "{1} {0}"),
            Option('print(f"{name}: {target}")', "`make links` prints lines `PAGE: TARGET`.", "{0}: {1}"),
            Option('print(f"{target} in {name}")', "`make links` prints lines `TARGET in PAGE`.", "{1} in {0}"),
        ],
    ),
)

IDENTIFIERS = (
    "main source out paths entries meta folder page published order escape char entity slug words bold pieces piece "
    "place linked before rest after parts part targets target items name"
)
