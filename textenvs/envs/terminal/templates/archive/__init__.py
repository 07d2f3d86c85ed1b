"""The template *archive*: photos with sidecars are imported by rules, and put into albums, by make and bash.

It needs make, bash, sed, grep and coreutils; the expert's answers need awk.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from ...project import Check, Project, Question
from ..parts import ASKED, CITIES, COLOURS, GOODS, TOWNS, asked_together, fault_of_edits, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ALBUM, FORMAT, IMPORT, MAKEFILE, NAMES, ORPHANS, SCAN, YEARS

_PROGRAMS = ("bin/scan", "bin/import", "bin/album", "bin/years", "bin/orphans")
_KEYS = ("taken", "camera", "place", "rating", "tags", "title")
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass
class _Photo:
    """A photo: the lines of its sidecar, if it has one, and how this is written."""

    name: str
    content: str
    lines: list[tuple[str, str]] | None
    style: str = ""

    @property
    def sidecar(self) -> str:
        lines = [f"{key}: {value}" for key, value in self.lines or ()]
        if self.style == "other":
            return "".join(f"{line}\r\n" for line in lines)
        if self.style == "upper":
            lines = [f"{key.upper()}:    {value}" for key, value in self.lines or ()]
        return "\n".join(["# sidecar", *lines]) + "\n" * (self.style != "open")


#: A line of the index: path, day, rating, tags, title, place.
_Row = tuple[str, str, int, str, str, str]


@dataclass
class _Folder:
    """Photos, cameras and albums, which are drawn one by one."""

    rng: random.Random
    photos: list[_Photo] = field(default_factory=list)
    cameras: dict[str, int] = field(default_factory=dict)
    albums: dict[str, dict[str, str]] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)

    def photo(self, time: str, *extra: tuple[str, str], style: str = "", content: str = "", **values: str) -> _Photo:
        """Add a photo; of equal times, the names have the order of the photos."""
        rng = self.rng
        own = {
            "taken": time,
            "camera": rng.choice([*self.cameras]),
            "place": rng.choice(CITIES),
            "tags": "-",
            "title": f"{rng.choice(COLOURS)} {rng.choice(GOODS)} {token(rng, 4)}",
        }
        lines = [(key, value) for key, value in (own | values).items() if key in _KEYS and (value != "-")]
        if style == "open":
            lines.sort(key=lambda line: line[0] == "taken")
        end = "JPG" if len(self.photos) % 3 == 1 else "jpg"
        photo = _Photo(f"p{900 - 7 * len(self.photos)}.{end}", content or token(rng), [*lines, *extra], style)
        self.photos.append(photo)
        return photo

    def files(self) -> dict[str, str]:
        files = {f"src/{photo.name}": f"{photo.content}\n" for photo in self.photos}
        files |= {f"src/{photo.name}.txt": photo.sidecar for photo in self.photos if photo.lines is not None}
        files |= {f"src/{name}": f"title: {token(self.rng)}\n" for name in self.orphans}
        files["cameras.txt"] = "".join(f"{minutes:05} {name}\n" for name, minutes in self.cameras.items())
        for name, rule in self.albums.items():
            files[f"albums/{name}.rule"] = "\n".join(f"{key}: {value}" for key, value in rule.items())
        return files


@dataclass(frozen=True)
class _Archive:
    """The output of the programs for photos, by the rules of a project."""

    variant: Variant

    def _values(self, photo: _Photo) -> dict[str, str]:
        values = dict.fromkeys(_KEYS, "-") | {"rating": str(self.variant["missing-rating"])}
        seen = set[str]()
        for key, text in photo.lines or ():
            values[key] = self.variant["repeated-key"](values[key], text) if key in seen else text or "-"
            seen.add(key)
        return values

    def index(self, folder: _Folder) -> tuple[list[_Row], dict[str, str]]:
        """Return the lines of the index, and the contents of the copies by path."""
        variant, rows, copies = self.variant, list[_Row](), dict[str, str]()
        photos = list[tuple[int, str, dict[str, str], _Photo]]()
        for photo in folder.photos:
            values = self._values(photo)
            time = values["taken"]
            moment = datetime.datetime.fromisoformat(time) if time != "-" else _EPOCH
            photos.append((int((moment - _EPOCH).total_seconds()), photo.name, values, photo))
        for seconds, _, values, photo in sorted(photos, key=lambda one: one[:2]):
            if values["taken"] == "-":
                if variant["undated"] is None:
                    continue
                seconds = variant["undated"]
            else:
                seconds += variant["clock"] * folder.cameras.get(values["camera"], 0)
            moment = _EPOCH + datetime.timedelta(seconds=seconds)
            day = f"{moment - datetime.timedelta(hours=variant['night-hours']):%Y-%m-%d}"
            slug = variant["slug"](values["place"])
            place = variant["folder"](day, slug)
            name = variant["name-of-photo"].format(day.replace("-", ""), f"{moment:%H%M%S}", slug, day)
            if photo.content in copies.values():
                if variant["same-content"] == "skip":
                    continue
                place = "twice" if variant["same-content"] == "folder" else place
                name += "-copy" * (variant["same-content"] == "name")
            start, number = name, 1
            while f"{place}/{name}.jpg" in copies:
                number += 1
                name = variant["collision"].format(start, number, number - 1)
            copies[f"{place}/{name}.jpg"] = photo.content
            row = (f"{place}/{name}.jpg", day, int(values["rating"]), values["tags"], values["title"], values["place"])
            rows.append(row)
        return rows, copies

    def text(self, folder: _Folder) -> str:
        """Return what a check prints: the index, the copies, the albums, the years and the orphans."""
        rows, copies = self.index(folder)
        lines = ["\t".join(map(str, row)) for row in rows]
        lines += sorted(f"photos/{path}:{content}" for path, content in copies.items())
        for name, rule in sorted(folder.albums.items()):
            lines += self._album(name, rule, rows, copies)
        lines += self._years(rows)
        lines += [self.variant["orphan-photo"].format(p.name) for p in self._sorted(folder) if p.lines is None]
        for orphan in sorted(folder.orphans):
            lines.append(self.variant["orphan-sidecar"].format(orphan, orphan.removesuffix(".txt")))
        return "\n".join(lines)

    def _sorted(self, folder: _Folder) -> list[_Photo]:
        return sorted(folder.photos, key=lambda photo: photo.name)

    def _album(self, name: str, rule: Mapping[str, str], rows: Sequence[_Row], copies: Mapping[str, str]) -> list[str]:
        variant, chosen = self.variant, list[_Row]()
        labels = [label.lower() for label in rule["tags"].split(", ")] if rule.get("tags") else []
        for row in rows:
            tags = row[3].lower().split(", ")
            if row[2] < int(rule.get("rating", "0")) or row[1] < rule.get("from", ""):
                continue
            hits = sum(label in tags for label in labels)
            if variant["last-day"](row[1], rule.get("to", "9999")) and variant["tags-of-album"](hits, len(labels)):
                chosen.append(row)
        order = variant["order-of-album"]
        chosen.sort(key=order or (lambda row: row[0]))
        if order is None:
            chosen.sort(key=lambda row: row[1], reverse=True)
        chosen = chosen[: variant["longest-album"]]
        lines = [copies[row[0]] for row in chosen]
        lines += [variant["album-title"](rule.get("title", ""), name)]
        lines += [variant["album-line"].format(*row) for row in chosen]
        return [*lines, str(len(chosen))]

    def _years(self, rows: Sequence[_Row]) -> list[str]:
        groups = dict[str, list[int]]()
        for row in rows:
            groups.setdefault(self.variant["group-of-years"](row), []).append(row[2])
        counts = [(group, len(ratings), sum(ratings)) for group, ratings in groups.items()]
        counts.sort(key=self.variant["order-of-years"])
        return [self.variant["line-of-years"].format(*row) for row in counts]


def _draw_folder(rng: random.Random) -> _Folder:
    """Draw photos in which each rule and each fault shows."""
    folder, year = _Folder(rng), rng.randint(2005, 2023)
    folder.cameras = {"Pix 3": 8, "Pix 30": rng.randint(20, 63), "Lomo": 9}
    if rng.random() < 0.5:
        folder.cameras["Lomo"] = 19
    month = rng.randint(2, 7)

    def at(number: int, clock: str = "", *, later: int = 0) -> str:
        clock = clock or f"{rng.randint(9, 19):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
        return f"{year + later}-{month + (number > 28):02}-{number - 28 * (number > 28):02} {clock}"

    one, two, three = rng.sample(COLOURS, 3)
    town, other = rng.sample(TOWNS, 2)
    # Tags in albums: both, one of them, similar ones, and of other cases.
    folder.photo(at(3), tags=f"{one}, {two}", rating="4", place=town)
    folder.photo(at(5), tags=f"{two}, {one.upper()}", rating="3", place=town, style="upper")
    folder.photo(at(7), tags=one, rating="5", style="other")
    folder.photo(at(9), tags=f"dark{one}, {two}ish", rating="4", place=town)
    folder.photo(at(11), tags=f"{rng.choice(GOODS)}, {two}", rating="2", style="open")
    for number in (13, 15, 16, 17, 18):
        folder.photo(at(number), tags=f"{one}, {two}", rating=str(rng.randint(3, 5)), place=other)
    folder.photo(at(20), tags=f"{one}, x", rating="3")
    folder.photo(at(22), tags=f"{two}, {one}", rating="4")
    folder.photo(at(26), tags=f"{one}, {two}, y", rating="4")
    folder.photo(at(29), tags=one, rating="4")
    # Nights, with hours after midnight for each option of the rule.
    for hour in (1, 2, 3, 5, 7):
        folder.photo(at(33, f"0{hour}:30:00"), ("title", f"night {token(rng, 4)}"), camera="none", rating="1")
    folder.photo(at(34, "02:00:00"), camera="Pix 3", rating="1")
    folder.photo(at(35, "12:00:00"), camera="Pix 30", rating="1")
    folder.photo(at(36, "03:05:00"), camera="Lomo", rating="1")
    # Photos of a second and a place, of the same content, without a rating, and without a date.
    for _ in range(3):
        folder.photo(at(37, "10:11:12"), camera="none", place=town, rating="0", style="open")
    same = token(rng)
    for number in (39, 38):
        folder.photo(at(number, later=1), content=same, rating="2")
    for number in (40, 41, 42):
        folder.photo(at(number, later=2), tags=f"{one}, {two}")
    for after in (2, 3, 3, 3):
        folder.photo(f"{year + 3}-{month + after:02}-1{rng.randint(1, 9)} 12:00:0{len(folder.photos) % 10}", rating="0")
    folder.photo("-", place="-", rating="1")
    folder.photo(at(43, later=2), place="", rating="1", title=f"a\\b {token(rng, 4)}: *")
    folder.photos.append(_Photo(f"q{token(rng, 3)}.JPG", token(rng), None))
    folder.photos.append(_Photo(f"r{token(rng, 3)}.jpg", token(rng), None))
    folder.orphans = [f"gone{token(rng, 3)}.JPG.txt"]
    for number, tags in ((4, f"x, {three.upper()}"), (6, f"dark{three}"), (8, three), (12, three)):
        folder.photo(at(number), tags=tags, rating="2")
    edge = {"rating": "2", "from": at(4)[:10], "to": at(8)[:10]}
    folder.albums = {
        "edge": {**edge, "tags": three},
        "edges": {**edge, "tags": f"{token(rng, 4)}, {three}"},
        "both": {"title": f"{one} and {two}", "tags": f"{one}, {two}", "from": at(5)[:10], "to": at(26)[:10]},
        "cased": {"tags": two.upper(), "rating": "3", "from": at(4)[:10]},
        "good": {"rating": "4", "title": token(rng, 5), "to": at(18)[:10]},
        "rated": {"rating": "2", "from": f"{year + 2}-01-01"},
        "rough": {"rating": "3", "from": f"{year + 2}-01-01"},
        "some": {"rating": "1", "from": f"{year + 2}-01-01"},
    }
    return folder


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of folders, photos, albums, and a record of loans."""
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "parts", "inside"]),
        "etc": rng.choice(["etc", "conf", "settings"]),
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    archive = _Archive(variant)
    texts = {
        "Makefile": MAKEFILE,
        "bin/scan": SCAN,
        "bin/import": IMPORT,
        "bin/album": ALBUM,
        "bin/years": YEARS,
        "bin/orphans": ORPHANS,
        "@lib@/names.sh": NAMES,
    }
    files = variant.files(texts) | variant.document(rng)
    files["old/album"] = variant.outdated(ALBUM)
    files |= {"docs/photos.md": FORMAT.format(etc=names["etc"]), "docs/notes.md": notes(rng, "Notes on photos", 10)}
    folder = _draw_folder(rng)
    for path, text in folder.files().items():
        files[path.replace("src/", "incoming/", 1) if path.startswith("src/") else f"{names['etc']}/{path}"] = text
    questions = _questions(rng, files)
    fixed = frozenset(path for path in files if path.startswith(("incoming/", "loans/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_photos(fresh, archive), _changes(fresh, archive)]

    about = (
        "`make` imports the photos of `incoming/` and makes albums of them; `make years` and `make orphans` report. "
        f"`docs/photos.md` describes all that, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -120", f"cat Makefile bin/* {names['lib']}/* docs/photos.md", "make OUT=/tmp/o"]
    subshell = [
        ('done < "$1"\n', "done\n"),
        ("while IFS=$'\\t' read -r path day rating", "cat \"$1\" | while IFS=$'\\t' read -r path day rating"),
    ]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        fault_of_edits(
            "subshell",
            "Nothing is counted any more.",
            [("bin/years", variant.text(old), variant.text(new)) for old, new in subshell],
            [*looks, "cat bin/years"],
        ),
        lost_permission("bin/scan", ["make OUT=/tmp/o"], "No photo is imported."),
    ]
    return Project(about, files, faults, checks, dict.fromkeys(_PROGRAMS, 0o755), fixed=fixed, questions=questions)


_MAKE = "make -s all SRC=/tmp/i/src OUT=/tmp/o RULES=/tmp/i/albums CAMERAS=/tmp/i/cameras.txt > /tmp/years"
_SHOW = (
    "(cd /tmp/o; cat index.tsv; grep -r . photos | LC_ALL=C sort; for a in albums/*; do cat $a/*.jpg $a/list.txt; "
    "done); cat /tmp/years"
)


def _photos(rng: random.Random, archive: _Archive) -> Check:
    """Import many photos, and make albums."""
    folder = _draw_folder(rng)
    return Check("photos", f"cp -r $IN /tmp/i; {_MAKE}; {_SHOW}", archive.text(folder), folder.files())


def _changes(rng: random.Random, archive: _Archive) -> Check:
    """Import a few photos; the cameras change, then a sidecar, and all is made again."""
    folder, year, colour = _Folder(rng, cameras={"Pix 3": 1980}), rng.randint(2005, 2023), rng.choice(COLOURS)
    for month in (3, 5, 8):
        folder.photo(f"{year}-{month:02}-{rng.randint(10, 20)} 12:{rng.randint(10, 59)}:10", tags=colour, rating="3")
    folder.albums = {"all": {"tags": colour}}
    inputs, texts = folder.files(), [archive.text(folder)]
    folder.cameras = {"Pix 3": rng.randint(4800, 4899)}
    inputs["new-cameras.txt"] = folder.files()["cameras.txt"]
    texts.append(archive.text(folder))
    photo = folder.photos[1]
    photo.lines = [(key, token(rng) if key == "title" else value) for key, value in photo.lines or ()]
    inputs["new.txt"] = photo.sidecar
    texts.append(archive.text(folder))
    # The time of what has changed is behind that of all that is made, and then before it again.
    changed, steps = {"new-cameras.txt": "cameras.txt", "new.txt": f"src/{photo.name}.txt"}, list[str]()
    for new, path in changed.items():
        steps.append(
            f"cp $IN/{new} /tmp/i/{path}; touch -d 2040-01-01 /tmp/i/{path}; {_MAKE}; {_SHOW}; "
            f"touch -d 2000-01-01 /tmp/i/{path}"
        )
    command = "; ".join([f"cp -r $IN /tmp/i; {_MAKE}; {_SHOW}", *steps])
    return Check("changes", command, "\n".join(texts), inputs)


def _questions(rng: random.Random, files: dict[str, str]) -> list[Question]:
    """Draw a record of loans of prints, and ask about it."""
    places = rng.sample(CITIES, 8)
    prices = iter(rng.sample(range(10, 9_999), 30 * 60))
    by_place, by_kind = dict[str, list[tuple[int, str]]](), dict[tuple[str, str], list[tuple[int, str]]]()
    for month in range(rng.randint(18, 30)):
        name, lines = f"{2023 + month // 12}-{month % 12 + 1:02}", list[str]()
        for day in sorted(rng.choices(range(1, 29), k=60)):
            place, paper, price, loan = rng.choice(places), rng.choice(("matt", "glossy")), next(prices), token(rng)
            lines += [f"loan: {loan}", f"day: {day}", f"place: {place}", f"paper: {paper}", f"price: {price}", ""]
            by_place.setdefault(place, []).append((price, loan))
            by_kind.setdefault((place, paper), []).append((price, loan))
        files[f"loans/{name}.txt"] = "\n".join(lines) + "\n"
    kinds = rng.sample(sorted(by_kind), ASKED)
    return [
        asked_together([_dearest_loan(place, max(by_place[place])[1]) for place in rng.sample(places, ASKED)]),
        asked_together([_cheapest_print(*kind, min(by_kind[kind])[1]) for kind in kinds]),
    ]


def _paragraphs(condition: str) -> str:
    program = f'{condition} {{ split($5, p, ": "); split($1, l, ": "); print p[2], l[2] }}'
    return f"awk -v RS= -F'\\n' {quote(program)} loans/*.txt"


def _dearest_loan(place: str, loan: str) -> Question:
    condition = f'$3 == "place: {place}"'
    return Question(
        "dearest-loan",
        f"Which loan in loans/ had the highest price of those in {place}?",
        loan,
        ["head -7 loans/2023-01.txt", f"{_paragraphs(condition)} | sort -rn | sed -n '1s/.* //p'"],
    )


def _cheapest_print(place: str, paper: str, loan: str) -> Question:
    condition = f'$3 == "place: {place}" && $4 == "paper: {paper}"'
    return Question(
        "cheapest-print",
        f"Which loan in loans/ had the lowest price of those in {place} on {paper} paper?",
        loan,
        ["head -7 loans/2023-01.txt", f"{_paragraphs(condition)} | sort -n | sed -n '1s/.* //p'"],
    )
