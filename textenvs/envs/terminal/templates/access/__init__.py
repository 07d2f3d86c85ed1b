"""The template *access*: users, groups in groups, rules about paths, decisions on requests, and an audit of a log.

It needs bash, awk (mawk is enough), sed, sort and coreutils.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    COLOURS,
    FIRST_NAMES,
    GOODS,
    SURNAMES,
    asked_together,
    lost_permission,
    notes,
    token,
)
from ..records import draw_journal, draw_lists
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import AUDIT, DECIDE, DOOR, FORMATS, LOAD, MATRIX, MEMBERS, RULES_TEXT

_STATES = ("locked", "left", "guest", "expired")
_TRUSTED = ("admins", "owners", "wheel", "keepers")


@dataclass(frozen=True)
class _User:
    login: str
    name: str
    state: str
    groups: Sequence[str] = ()


@dataclass(frozen=True)
class _Rule:
    """A rule; ``hours`` has two times, and ``file`` is the one in which it stands."""

    effect: str
    who: str
    actions: str
    pattern: str
    hours: str = ""
    end: str = ""
    file: str = "rules.conf"

    def line(self, *, reversed_order: bool) -> str:
        limits = [f"from {self.hours}"] * bool(self.hours) + [f"until {self.end}"] * bool(self.end)
        return " ".join(
            [self.effect, self.who, self.actions, self.pattern, *(limits[::-1] if reversed_order else limits)]
        )


@dataclass(frozen=True)
class _Request:
    day: str
    time: str
    login: str
    action: str
    path: str

    @property
    def line(self) -> str:
        return f"{self.day} {self.time} {self.login} {self.action} {self.path}"

    @property
    def plain(self) -> str:
        """Its path without ``//``, ``.``, ``..`` and ``/`` at the end."""
        parts = list[str]()
        for part in self.path.split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                parts.append(part)
        return "/" + "/".join(parts)


def _minutes(time: str) -> int:
    hours, minutes = map(int, time.split(":"))
    return 60 * hours + minutes


@dataclass(frozen=True)
class _Site:
    """Users, groups and rules, and what is decided by the rules of a project."""

    variant: Variant
    users: Sequence[_User]
    groups: Sequence[tuple[str, Sequence[str]]]
    rules: Sequence[_Rule]
    words: Mapping[str, str] = field(default_factory=dict)

    def members(self, group: str, depth: int = 0) -> set[str]:
        result = {user.login for user in self.users if group in user.groups}
        for name, words in self.groups:
            for word in words if name == group else ():
                if not word.startswith("@"):
                    result.add(word.lower())
                elif depth < self.variant["group-depth"]:
                    result |= self.members(word[1:], depth + 1)
        return result

    def applies(self, rule: _Rule, request: _Request) -> bool:
        login, variant = request.login.lower(), self.variant
        if rule.who.startswith("@"):
            if login not in self.members(rule.who[1:]):
                return False
        elif rule.who not in ("*", login) and rule.who.lower() != login:
            return False
        named = rule.actions.split(",")
        if rule.actions != "all" and request.action not in variant["implied-action"](named, request.action):
            return False
        parts = {"*": variant["star"], "?": "[^/]", "%u": re.escape(login)}
        regex = "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\*|\?|%u)", rule.pattern))
        if not re.fullmatch(regex, request.plain):
            return False
        if rule.hours:
            begin, end = map(_minutes, rule.hours.split("-"))
            now = _minutes(request.time)
            before = variant["end-of-hours"](now, end)
            if not ((now >= begin or before) if begin > end else (now >= begin and before)):
                return False
        return not rule.end or bool(variant["last-day"](request.day, rule.end))

    def decision(self, request: _Request) -> tuple[str, str]:
        """Return the decision, and its reason."""
        login, variant = request.login.lower(), self.variant
        user = next((user for user in self.users if user.login == login), None)
        if user is None:
            return "deny", "unknown"
        if user.state == variant["refused-state"]:
            return "deny", "state"
        if login in self.members(variant["trusted-group"]):
            return "allow", "trusted"
        rules = [rule for rule in self.rules if self.applies(rule, request)]
        if not rules:
            return variant["otherwise"](request.action), variant["reason-without-rule"]
        rule = variant["matching-rule"](rules)
        return rule.effect, str([one is rule for one in self.rules].index(True) + 1)

    def decided(self, request: _Request) -> str:
        decision, reason = self.decision(request)
        line = self.variant["decision-line"]
        return str(line.format(decision, request.login.lower(), request.action, request.plain, reason))

    def listed(self, group: str) -> list[str]:
        """Return the lines about a group."""
        users = {user.login: user for user in self.users}
        members = (users[login] for login in sorted(self.members(group)))
        return [f"{group}:", *(self.variant["member-line"].format(one.login, one.name, one.state) for one in members)]

    def matrix(self, day: str, time: str, path: str) -> list[str]:
        lines = list[str]()
        for user in self.users:
            decisions = {
                action: self.decision(_Request(day, time, user.login, action, path))[0]
                for action in ("read", "write", "manage")
            }
            letters = "".join(action[0] if decision == "allow" else "-" for action, decision in decisions.items())
            lines.append(self.variant["matrix-line"].format(user.login, letters, letters.replace("-", "")))
        return lines

    def audit(self, log: Sequence[tuple[_Request, str]]) -> list[str]:
        lines, denials = list[str](), Counter[str]()
        for request, outcome in log:
            expected = "granted" if self.decision(request)[0] == "allow" else "refused"
            denials[request.login.lower()] += expected == "refused"
            if outcome != expected:
                parts = (request.day, request.time, request.login.lower(), request.action, request.plain, outcome)
                lines.append(self.variant["audit-line"].format(*parts))
        status = self.variant["status-of-audit"] if lines else 0
        often = [(name, number) for name, number in denials.items() if number >= self.variant["many-denials"]]
        often.sort(key=lambda row: (-row[1], row[0]))
        return [*lines, *(f"{name} {number} denials" for name, number in often), f"status {status}"]

    def files(self, rng: random.Random, folder: str) -> dict[str, str]:
        """Return its files; one has ends of lines of another system."""
        users = [
            f"{user.login.upper() if place == 1 else user.login}:{user.name}:{','.join(user.groups)}:{user.state}"
            for place, user in enumerate(self.users)
        ]
        groups = [f"  {name}: {'  '.join(words)}  # {token(rng, 3)}" for name, words in self.groups]
        files = {"rules.conf": [f"# {self.rules[0].line(reversed_order=False)}", ""], "parts/more.conf": [""]}
        for place, rule in enumerate(self.rules):
            if rule.file not in str(files["rules.conf"]) and rule.file != "rules.conf":
                files["rules.conf"].append(f"include {rule.file}")
            files[rule.file].append(rule.line(reversed_order=place % 2 == 1))
        texts = {name: "\n".join([*lines, ""]) for name, lines in files.items()}
        texts |= {"users.txt": "\r\n".join([*users, ""]), "groups.txt": "\n".join([*groups, "# none", ""])}
        return {f"{folder}/{name}": text for name, text in texts.items()}


def _users(rng: random.Random) -> list[_User]:
    """Draw nineteen users; the second login begins with the first one."""
    logins = sorted(name.lower() for name in rng.sample(FIRST_NAMES, 18))
    rng.shuffle(logins)
    logins = [logins[0], f"{logins[0]}x", *logins[1:]]
    return [_User(login, f"{login.title()} {rng.choice(SURNAMES)}", "active") for login in logins]


def _site(rng: random.Random, variant: Variant) -> _Site:
    """Draw a site in which each rule decides something."""
    drawn = _users(rng)
    ring = [f"{colour}{rng.randint(1, 9)}" for colour in rng.sample(COLOURS, 7)]
    outer, second, third, fourth, fifth, pair, other = ring
    short, longer, *levels = (user.login for user in drawn)
    # A user of each depth, of each state, and of each group that may be trusted; the others are in rules.
    groups_of: dict[str, Sequence[str]] = {longer: [outer], short: [other, pair], levels[16]: [outer]}
    groups_of |= {login: [group] for login, group in zip(levels[8:12], _TRUSTED, strict=True)}
    states = dict(zip(levels[4:8], _STATES, strict=True))
    users = [
        _User(user.login, user.name, states.get(user.login, "active"), groups_of.get(user.login, ())) for user in drawn
    ]
    groups = [
        (outer, [f"@{second}", levels[0].upper()]),
        (second, [levels[1], f"@{third}"]),
        (third, [f"@{fourth}"]),
        (third, [levels[2]]),
        (fourth, [levels[3], f"@{fifth}"]),
        (fifth, [levels[12]]),
        (pair, [levels[12], levels[12].title()]),
    ]
    names = ("base", "deep", "night", "plan", "star", "one", "home", "dots", "mark", "imp", "mng", "all", "both", "cut")
    words = {name: f"{rng.choice(GOODS)}{rng.randint(10, 99)}" for name in names}
    w, (one, two, three, four) = words, levels[12:16]
    rules = [
        _Rule("allow", f"@{outer}", "read", f"/{w['base']}/*"),
        _Rule("allow", one, "read,write", f"/{w['star']}/*/{w['plan']}"),
        _Rule("allow", one, "rewrite", f"/{w['one']}"),
        # The first, the last, the one that denies and the longest are different.
        _Rule("deny", "*", "write", f"/{w['deep']}/*/file"),
        _Rule("allow", two, "write", f"/{w['deep']}/{w['plan']}/file"),
        _Rule("allow", "*", "write", f"/{w['deep']}/*/*"),
        _Rule("allow", "*", "manage", f"/{w['deep']}/*/*"),
        _Rule("deny", two, "manage", f"/{w['deep']}/*/{w['mark']}"),
        _Rule("allow", two, "manage", f"/*/{w['plan']}/*"),
        _Rule("allow", three.upper(), "read", f"/{w['night']}/day", "08:30-17:15"),
        _Rule("allow", three, "read", f"/{w['night']}/late", "22:00-05:09", file="parts/more.conf"),
        _Rule("allow", three, "read", f"/{w['night']}/end", "", "2025-06-30", file="parts/more.conf"),
        _Rule("deny", three, "read", f"/{w['night']}/{w['both']}", "08:00-18:00", "2025-06-30"),
        _Rule("allow", "*", "write", f"/{w['home']}/%u/*"),
        _Rule("allow", three, "read", f"/{w['dots']}/file.txt"),
        _Rule("allow", three, "read", f"/{w['mark']}/?.log"),
        _Rule("allow", four, "write", f"/{w['imp']}/x"),
        _Rule("deny", four, "write", f"/{w['imp']}/y"),
        _Rule("allow", four, "manage", f"/{w['mng']}/x"),
        _Rule("deny", four, "manage", f"/{w['mng']}/y"),
        _Rule("allow", f"@{pair}", "all", f"/{w['all']}/x"),
        _Rule("allow", f"@{other}", "all", f"/{w['all']}/y"),
        _Rule("allow", four, "read", f"/{w['cut']}*"),
    ]
    return _Site(variant, users, groups, rules, words)


def _requests(rng: random.Random, site: _Site) -> list[_Request]:
    """Draw requests that each rule, each limit and each form of a path is decisive for."""
    logins, w = [user.login for user in site.users], site.words
    short, longer, *levels = logins
    one, two, three, four = levels[12:16]
    noon = "12:00"
    rows = [
        *((noon, login, "read", f"/{w['base']}/{token(rng, 4)}") for login in (short, longer, *levels)),
        (noon, longer.title(), "read", f"//{w['base']}/{token(rng, 3)}/../x//./y/"),
        (noon, longer, "read", f"/{w['base']}/{token(rng, 3)} with spaces"),
        (noon, longer, "read", f"/{w['base']}/{token(rng, 3)}\\n"),
        (noon, longer, "read", f"/{w['base']}/*"),
        (noon, one, "write", f"/{w['star']}/{token(rng, 3)}/{w['plan']}"),
        (noon, one, "write", f"/{w['star']}/{token(rng, 3)}/{token(rng, 3)}/{w['plan']}"),
        (noon, one, "write", f"/{w['one']}"),
        (noon, two, "write", f"/{w['deep']}/{w['plan']}/file"),
        (noon, two, "manage", f"/{w['deep']}/{w['plan']}/{w['mark']}"),
        (noon, two, "write", f"/{w['deep']}/{token(rng, 3)}"),
        *(
            (time, three, "read", f"/{w['night']}/day")
            for time in ("08:29", "08:30", "09:08", "17:14", "17:15", "17:16")
        ),
        *((time, three, "read", f"/{w['night']}/late") for time in ("21:59", "23:30", "05:08", "05:09", "05:10", noon)),
        *((noon, three, "read", f"/{w['night']}/{name}") for name in ("end", w["both"])),
        *((noon, login, "write", f"/{w['home']}/{three}/a") for login in (three, four)),
        *((noon, three, "read", f"/{w['dots']}/{name}") for name in ("file.txt", "filextxt", "file.txt.old")),
        (noon, three, "read", f"/{w['base']}/{w['dots']}/file.txt"),
        *((noon, three, "read", f"/{w['mark']}/{name}.log") for name in ("a", "ab")),
        *((noon, four, action, f"/{w['imp']}/{name}") for action in ("read", "write") for name in "xy"),
        *((noon, four, action, f"/{w['mng']}/{name}") for action in ("read", "manage") for name in "xy"),
        *((noon, login, "write", f"/{w['all']}/{name}") for login in (one, short, longer) for name in "xy"),
        *((noon, four, "read", f"/{w['cut']}{end}") for end in ("", "a")),
        *((noon, f"{token(rng, 4)}z", action, f"/{w['cut']}/{token(rng, 3)}") for action in ("read", "write")),
    ]
    requests = [_Request("2025-06-30", *row) for row in rows]
    requests += [_Request("2025-07-01", noon, three, "read", f"/{w['night']}/{name}") for name in ("end", w["both"])]
    return rng.sample(requests, len(requests))


def _log(rng: random.Random, site: _Site, requests: Sequence[_Request]) -> list[tuple[_Request, str]]:
    """Draw a log of doors: of some users the denials are as many as the rule about them may say, or one less."""
    path = f"/{site.words['base']}/myresult=1 a"
    rows = [replace(one, login=one.login.upper()) for one in rng.sample(list(requests), 14)]
    for number in range(2, 9):
        row = _Request("2025-03-04", "08:09", f"{'abcdefgh'[number - 1]}{token(rng, 4)}z", "read", path)
        rows += [row] * number
    log = list[tuple[_Request, str]]()
    for place, row in enumerate(rng.sample(rows, len(rows))):
        allowed = site.decision(row)[0] == "allow"
        log.append((row, "granted" if allowed == (place % 7 != 0) else "refused"))
    return log


def _check(rng: random.Random, variant: Variant) -> Check:
    """Decide on requests, list members, print two matrices, and audit a log."""
    site = _site(rng, variant)
    requests = _requests(rng, site)
    log, groups, w = _log(rng, site, requests), [name for name, _ in site.groups], site.words
    inputs = site.files(rng, "site") | {"requests": "\r\n".join(one.line for one in requests)}
    lines = [
        f'{one.day}T{one.time}:{rng.randint(10, 59)} action={one.action} login={one.login} path="{one.path}" '
        f"result={outcome}"
        for one, outcome in log
    ]
    lines.insert(2, f"2025-03-04T08:00:00 system=up load=0.{rng.randint(1, 9)}")
    inputs["doors.log"] = "\n".join(lines) + "\n"
    chosen = dict.fromkeys([groups[0], *rng.sample(groups, 2), groups[2], groups[-1]])
    matrices = [("2025-06-29", "09:08", f"/{w['night']}/day"), ("2025-06-29", "12:00", f"/{w['night']}/{w['both']}")]
    command = "; ".join(
        [
            "bin/decide $IN/site $IN/requests",
            f"bin/members $IN/site {' '.join(chosen)}",
            *(f"bin/matrix $IN/site {' '.join(matrix)}" for matrix in matrices),
            'bin/audit $IN/site $IN/doors.log; echo "status $?"',
        ]
    )
    expected = [
        *map(site.decided, requests),
        *(line for name in chosen for line in site.listed(name)),
        *(line for matrix in matrices for line in site.matrix(*matrix)),
        *site.audit(log),
    ]
    return Check("access", command, "\n".join(expected), inputs)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, an example of a site, logs of doors, and badges."""
    names = {"lib": rng.choice(["lib", "share", "inside", "functions", "core"])}
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/decide": DECIDE,
        "bin/members": MEMBERS,
        "bin/matrix": MATRIX,
        "bin/audit": AUDIT,
        "@lib@/load.sh": LOAD,
        "@lib@/rules.sh": RULES_TEXT,
        "@lib@/door.awk": DOOR,
        # Nothing reads this one.
        "old/door.awk": DOOR.replace('tolower(field("login"))', 'toupper(field("login"))').replace("12, 5", "12, 8"),
    }
    files = variant.files(texts) | variant.document(rng)
    files |= {"docs/files.md": FORMATS, "docs/notes.md": notes(rng, "Notes on access", 10)}
    # Nothing reads this one, either.
    files["old/rules.sh"] = variant.outdated(RULES_TEXT).replace("10#", "")
    site = _site(rng, variant)
    files |= site.files(rng, "site")
    files["site/requests.txt"] = "".join(f"{one.line}\n" for one in _requests(rng, site)[:20])
    questions = _questions(rng, files, [user.login for user in site.users])
    fixed = frozenset(path for path in files if path.startswith(("site/", "doors/", "badges/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant)]

    about = (
        "`bin/decide` decides who may do what with which path, `bin/members` and `bin/matrix` print groups and rights, "
        "and `bin/audit` compares a log of doors with decisions. `site/` is an example, `docs/files.md` describes the "
        f"files and the programs, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", "tail -n +1 bin/*; cat docs/files.md", variant.words("tail -n +1 @lib@/*")]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/decide", "bin/members", "bin/matrix", "bin/audit"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    path = variant.words("@lib@/door.awk")
    return [
        Fault(
            "missing-file",
            "The audit finds nothing any more.",
            [*looks, "cat old/door.awk"],
            f"sed 's/toupper/tolower/; s/12, 8/12, 5/' old/door.awk > {path}",
            removed=[path],
        ),
        lost_permission("bin/audit", looks),
    ]


def _questions(rng: random.Random, files: dict[str, str], logins: Sequence[str]) -> list[Question]:
    """Draw logs of doors and lists of badges, and ask about them."""
    longest = draw_journal(
        rng,
        files,
        "doors/2025-{:02}.log",
        logins,
        range(10, 90_000),
        lambda month, login, seconds, visit: (
            f"2025-{month:02}-{rng.randint(1, 28):02} visit={visit} login={login} seconds={seconds}"
        ),
    )
    kinds = ("visitor", "staff", "press", "driver")
    box_of = draw_lists(rng, files, "badges", "box", lambda badge: f"{rng.choice(kinds)} {badge}")
    return [
        asked_together([_longest_visit(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_box_of_badge(one, box_of[one]) for one in rng.sample(sorted(box_of), ASKED)]),
    ]


def _longest_visit(login: str, visit: str) -> Question:
    command = (
        f"grep -h ' login={login} ' doors/* | sed 's/.*visit=\\(.*\\) login.*seconds=/\\1 /' | sort -k2,2n | tail -1"
    )
    return Question(
        "longest-visit",
        f"Which visit of {login} was the longest, by doors/?",
        visit,
        ["head -3 doors/2025-01.log", f"{command} | cut -d' ' -f1"],
    )


def _box_of_badge(badge: str, box: str) -> Question:
    return Question(
        "box-of-badge",
        f"Which box is the badge {badge} from, by badges/?",
        box,
        [f"grep -r {badge} badges", f"grep -l ' {badge}$' badges/* | xargs sed -n 's/^box //p'"],
    )
