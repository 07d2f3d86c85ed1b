"""The template *deploy*: configurations of hosts rendered from templates and layers, checked, and a plan of changes.

It needs make, bash, awk (mawk is enough), sed, diff and coreutils.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    COLOURS,
    FIRST_NAMES,
    GOODS,
    asked_together,
    fault_of_command,
    file_in_the_way,
    lost_permission,
    notes,
    token,
)
from ..records import draw_journal, draw_lists
from ..variation import DRAWS, Variant
from . import texts
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .site import Entry, Node, Row, Site

_STATES = ("retired", "off", "spare", "broken")
#: Rules whose options may give the same plan by chance.
_BY_CHANCE = ("order-of-waves", "hosts-of-wave")
#: Prints the permissions and the contents of rendered files.
_SHOW = (
    "show() { cd $1; find . -type f ! -name done ! -name '*.tsv' -printf '%m %P\\n' | LC_ALL=C sort -k2; "
    "find . -type f ! -name done ! -name '*.tsv' | LC_ALL=C sort | "
    "xargs -d '\\n' awk 'FNR == 1 { print FILENAME } 1'; }"
)


def _site(rng: random.Random, variant: Variant, reserved: Sequence[int]) -> Site:
    """Draw a site in which each rule and each fault shows."""
    here, there, third = (city.lower() for city in rng.sample(CITIES, 3))
    role, *plain = rng.sample(GOODS, 3)
    longer, names = f"{role}s", rng.sample(COLOURS, 7)
    first, second = names[0], names[1]
    rows = [
        Row(f"{first}[09-10]", [f"{first}09", f"{first}10"], here, sorted([role, plain[0]])),
        Row(second.upper(), [second], there, [longer, role]),
        Row(f"{names[2]}[1-2]-lab", [f"{names[2]}{n}-lab" for n in "12"], third, [plain[0], longer]),
        Row(first, [first], third, [plain[1]]),
    ]
    for name, state in zip(names[3:], rng.sample(_STATES, 4), strict=True):
        rows.append(Row(name, [name], rng.choice([here, there, third]), [rng.choice([role, plain[1]])], state))
    keys = (f"{one}_{other}" for one, other in zip(rng.sample(GOODS, 20), rng.choices(COLOURS, k=20), strict=True))
    twice, users, server, url, long, behind, banner, raw = (next(keys) for _ in range(8))
    positive, negative, number, empty, none, unset, login, both = (next(keys) for _ in range(8))
    by_site, by_host, by_role, port = (next(keys) for _ in range(4))
    secrets = [f"{rng.choice(GOODS)}-{token(rng, 3)}" for _ in range(2)]
    people = [name.lower() for name in rng.sample(FIRST_NAMES, 8)]
    layers = {
        "common": [
            Entry(twice, token(rng, 3)),
            Entry(users, f"{people[0]}, {people[1]} {people[2]}"),
            Entry(twice, token(rng, 3)),
            Entry(url, f"http://${{{server}}}:${{{port}}}/?of=${{host}}#top"),
            Entry(server, f"ns.{token(rng, 4)}"),
            Entry(long, f"{token(rng, 4)} {token(rng, 4)} {token(rng, 4)}", style="lines"),
            Entry(behind, token(rng, 4), style="tight"),
            Entry(banner, f'  say "{token(rng, 3)}" to #{rng.randint(2, 9)}', style="quotes"),
            Entry(raw, f"{{{{{token(rng, 3)}}}}}"),
            *(Entry(key, value) for key, value in ((positive, "yes"), (negative, "no"), (empty, ""), (none, "none"))),
            Entry(number, f"{rng.randint(1, 9)}"),
            Entry(login, f"{people[3]}:secret({secrets[0]})"),
            Entry(both, f"secret({secrets[0]})/secret({secrets[1]})"),
            Entry(port, f"{rng.randint(8100, 8900)}"),
            Entry(f"{port}_admin", f"{rng.randint(8100, 8900)}"),
            Entry(by_site, "common"),
        ],
        f"site/{here}": [Entry(server, f"ns.{here}"), Entry(by_site, f"of-{token(rng, 3)}")],
        f"site/{there}": [Entry(server, f"ns.{there}"), Entry(users, people[4], adds=True)],
        f"role/{role}": [
            Entry(by_site, f"of-{token(rng, 3)}"),
            Entry(by_host, token(rng, 3)),
            Entry(by_role, token(rng, 3)),
            Entry(users, people[5], adds=True, style="tight"),
        ],
        f"role/{longer}": [Entry(by_role, token(rng, 3))],
        f"role/{plain[0]}": [Entry(by_role, token(rng, 3)), Entry(users, people[6], adds=True)],
        f"host/{first}09": [Entry(by_host, token(rng, 3))],
        f"host/{second}": [Entry(behind, token(rng, 4))],
    }
    secret_texts = {secrets[0]: f"{token(rng, 4)} &{token(rng, 3)}\\1", secrets[1]: token(rng)}
    secret_texts[f"{there}/{secrets[0]}"] = f"&{token(rng, 4)} {token(rng, 3)}"
    base: list[Node] = [
        ("#", f"asked for by {people[7]}"),
        "",
        "Host {{host}} at {{site}} as {{roles}}",
        "",
        "",
        f"users {{{{{users}}}}}",
        ("each", users, "user {{item}} of {{host}}"),
        f"url {{{{{url}}}}} by {{{{{server}}}}}",
        f"long {{{{{long}}}}}, {{{{{behind}}}}}",
        f"{{{{{banner}}}}}",
        f"raw {{{{{raw}}}}}",
        f"twice {{{{{twice}}}}}",
        f"layers {{{{{by_site}}}}} {{{{{by_host}:-nothing}}}} {{{{{by_role}:-http://{token(rng, 3)}:80}}}}",
        f"without {{{{{unset}}}}} end",
        f"defaults {{{{{unset}:-7}}}} {{{{{empty}:-8}}}} {{{{{none}:-9}}}}",
        *(("if", key, [f"with {key}"], [f"no {key}"]) for key in (positive, negative, number, empty, unset)),
        ("unless", positive, [f"unless {positive}"], []),
        ("if", unset, ["outer", ("if", positive, ["inner"], ["not inner"]), "behind inner"], []),
        *(("include", name) for name in ("part1", "mark1", "mark2", "mark3", "mark4", "mark1")),
        "",
        "# Written for {{host}}",
        "end",
    ]
    service: list[Node] = [
        f"port {{{{{port}}}}}",
        f"listen = {{{{{port}_admin}}}}",
        f"# port {rng.randint(80, 99)}",
        ("if", positive, ["  port 900"], ["  port 910"]),
        *(f"port {low + rng.randint(0, 99)}" for low in (1500, 3000, 7000)),
        f"listen {reserved[0]}",
        *["port 9400"] * 2,
        "port 9500",
        ("include", "mark1"),
        "end",
    ]
    access: list[Node] = [
        f"login {{{{{login}}}}}",
        f"again {{{{{login}}}}}",
        f"dsn {{{{{both}}}}}",
        "Port 22 is closed",
        "listen=9500",
    ]
    templates: dict[str, Sequence[Node]] = {
        "base.tmpl": base,
        "service.tmpl": service,
        "access.tmpl": access,
        **{f"part{n}": [f"part {n} {token(rng, 3)}", *[("include", f"part{n + 1}")] * (n < 4)] for n in range(1, 5)},
        **{f"mark{n}": [f"mark {n} {token(rng, 3)}"] for n in range(1, 5)},
    }
    files = [
        ("*", "base.tmpl", "etc/host.conf"),
        (f"{role},{plain[0]}", "service.tmpl", "etc/run/service.conf"),
        (longer, "access.tmpl", "etc/who may.conf"),
        (role, "mark4", "etc/mark.conf"),
    ]
    site = Site(variant, reserved, rows, layers, secret_texts, files, templates, frozenset(["service.tmpl"]))
    return replace(site, live=_live(rng, site))


def _live(rng: random.Random, site: Site) -> dict[str, dict[str, list[str]]]:
    """Draw the files that hosts have: the second host has what is rendered, others lack something, or have more."""
    live = {name: {path: [*lines] for path, (lines, _) in files.items()} for name, files in site.rendered.items()}
    names = [*live]
    main, stray = "etc/host.conf", "etc/by hand.conf"
    text = live[names[0]][main]
    text[3] = f"{text[3]} {token(rng, 3)}"
    text.insert(6, f"by hand {token(rng, 3)}")
    del live[names[0]]["etc/run/service.conf"]
    live[names[2]][main].insert(4, f"  # {token(rng, 3)}")
    live[names[2]]["etc/who may.conf"][4] = live[names[2]]["etc/who may.conf"][4].upper()
    text = live[names[3]][main]
    text[3:5] = [f"{line}  " for line in text[3:5]]
    live[names[3]][stray] = [token(rng) for _ in range(3)]
    text = live[names[4]][main]
    text[-2:-2] = [f"by hand {token(rng, 3)}"]
    text.insert(4, "")
    del live[names[4]]["etc/run/service.conf"]
    live[names[4]][stray] = [token(rng) for _ in range(4)]
    live[names[4]]["notes"] = [token(rng)]
    del live[names[5]]
    for name in names[6:]:
        live[name][main][-1] = f"end {token(rng, 3)}"
    for name in rng.sample(names[6:], 2):
        live[name][stray] = [token(rng) for _ in range(rng.randint(1, 5))]
    return live


def _steps(rng: random.Random, variant: Variant, reserved: Sequence[int]) -> tuple[dict[str, str], str, list[str]]:
    """Draw a host that is rendered anew after changes; return inputs, commands, and what these print."""
    name, city, role = rng.choice(COLOURS), rng.choice(CITIES).lower(), rng.choice(GOODS)
    files = [("*", "base.tmpl", "a.conf"), (role, "base.tmpl", "etc/b.conf")]
    site = Site(
        variant,
        reserved,
        [Row(name, [name], city, [role])],
        {"common": [Entry("login", "secret(main)")]},
        {"main": token(rng)},
        files,
        {"base.tmpl": [f"login {{{{login}}}} {token(rng)}", "port 99"]},
    )
    changed = replace(site, templates={"base.tmpl": [f"login {{{{login}}}} {token(rng)}", f"new {token(rng)}"]})
    secret = replace(changed, secrets={"main": token(rng)})
    last = replace(secret, files=files[:1])
    sources, make = [one.sources("") for one in (site, changed, secret, last)], "make -s render SRC=/tmp/f OUT=/tmp/p"
    inputs = {f"few{path}": text for path, text in sources[0].items()}
    commands = ["cp -R $IN/few /tmp/f", make.replace("render", "check")]
    for number, path in enumerate(("/templates/base.tmpl", "/secrets/main", "/files.map"), start=1):
        inputs[f"new{number}"] = sources[number][path]
        commands.append(
            f"find /tmp/f -type f -exec touch -d 2020-01-01 {{}} +; cp $IN/new{number} /tmp/f{path}; "
            f"touch -d 2040-01-01 /tmp/f{path}; {make}; (show /tmp/p)"
        )
    printed = [*site.problems(), *(line for one in (changed, secret, last) for line in one.printed_files())]
    return inputs, "; ".join(commands), printed


def _check(rng: random.Random, variant: Variant, reserved: Sequence[int]) -> Check:
    """Check and plan a site, show its files, explain values, and render another one after changes."""
    for _ in range(DRAWS):
        site = _site(rng, variant, reserved)
        if variant.separates(_BY_CHANCE, lambda other, site=site: replace(site, variant=other).plan()):  # type: ignore[misc]
            break
    few, steps, printed = _steps(rng, variant, reserved)
    hosts = [site.hosts[0], site.hosts[2]]
    # Secrets, a key that begins like another one, and keys of which several layers have values.
    keys = [
        entry.key for entry in site.layers["common"] if "secret" in entry.value or f"{entry.key}_admin" in site.keys
    ]
    keys += [entry.key for layer, entries in site.layers.items() for entry in entries if layer != "common"]
    chosen = [rng.sample([*dict.fromkeys(keys)], len({*keys})) for _ in hosts]
    folders = "SRC=$IN/site OUT=/tmp/o LIVE=$IN/live"
    command = "; ".join(
        [
            _SHOW,
            f"make -s plan {folders}; (show /tmp/o)",
            "bin/check $IN/site /tmp/o; echo status $?",
            *(f"bin/explain /tmp/o {host.name} {' '.join(own)}" for host, own in zip(hosts, chosen, strict=True)),
            steps,
        ]
    )
    expected = [
        *site.plan(),
        *site.printed_files(),
        *site.problems(),
        f"status {variant['status-of-problems']}",
        *(line for host, own in zip(hosts, chosen, strict=True) for line in site.explained(host, own)),
        *printed,
    ]
    return Check("deploy", command, "\n".join(expected), site.sources("site") | site.live_files("live") | few)


def _shapes(rng: random.Random) -> tuple[dict[str, str], bool]:
    """Draw how the programs are divided and written; return parts of texts, and whether layers have a file."""
    apart = rng.random() < 0.5
    steps = [texts.STEP_OF_HOSTS, texts.STEP_OF_CHECK, texts.STEP_OF_PLAN]
    parts = {
        "steps": "\n".join(rng.sample(steps, 3)),
        "sourced": '. "$lib/layers.sh"\n' if apart else "",
        "loop_over_files": rng.choice(texts.LOOPS),
        "functions_of_merge": "\n".join(rng.sample([texts.TRIMMED, texts.RESOLVED], 2)),
        "functions_of_fill": "\n".join(rng.sample([texts.SECRETS, texts.PLACEHOLDERS, texts.CONDITIONS], 3)),
    }
    return parts, apart


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the programs, an example of a site, logs of rollouts, and racks."""
    reserved = sorted(rng.sample(range(9600, 9900), 4))
    parts, apart = _shapes(rng)
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "share", "core", "inside"]),
        "src": rng.choice(["site", "fleet", "source", "park"]),
        "reserved": rng.choice(["reserved", "ports", "blocked"]),
        "reserved_port": reserved[0],
    }
    names["home"] = "@lib@/layers.sh" if apart else "@lib@/hosts.sh"
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    programs = {
        "Makefile": texts.MAKEFILE,
        "bin/hosts": texts.HOSTS,
        "bin/render": texts.RENDER,
        "bin/check": texts.CHECK,
        "bin/plan": texts.PLAN,
        "bin/explain": texts.EXPLAIN,
        "@lib@/hosts.sh": texts.HOSTS_LIBRARY if apart else texts.HOSTS_LIBRARY + texts.LAYERS,
        "@lib@/merge.awk": texts.MERGE,
        "@lib@/fill.awk": texts.FILL,
        "@lib@/lint.awk": texts.LINT,
    }
    if apart:
        programs["@lib@/layers.sh"] = f"# Functions about the layers of hosts.\n{texts.LAYERS}"
    shaped = re.compile(f"@({'|'.join(parts)})@")
    programs = {path: shaped.sub(lambda match: parts[match[1]], text) for path, text in programs.items()}
    files = variant.files(programs) | variant.document(rng)
    # Nothing reads these.
    files["old/fill.awk"] = variant.outdated(shaped.sub(lambda match: parts[match[1]], texts.FILL))
    old = "".join(f"{port} # since 2019\n" for port in range(9000, 9003))
    table = "".join(f"{port} # {rng.choice(GOODS)}\n" for port in reserved)
    files |= {
        f"etc/{names['reserved']}.txt": f"# Ports\n{table}",
        f"etc/{names['reserved']}-2019.txt": f"# Ports\n{old}",
    }
    files |= {"docs/rendering.md": variant.words(texts.PAGE), "docs/notes.md": notes(rng, "Notes on hosts", 10)}
    # The example must not show which rules hold.
    first = replace(variant, chosen={rule.name: rule.options[0] for rule in RULES})
    site = _site(rng, first, reserved)
    files |= site.sources(str(names["src"]))
    files |= {path: text for path, text in site.live_files("live").items() if "/etc/host" in path}
    questions = _questions(rng, files, [host.name for host in site.hosts])
    fixed = frozenset(path for path in files if path.startswith((f"{names['src']}/", "live/", "rollouts/", "racks/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant, reserved)]

    about = (
        "`make render` writes configurations of hosts, `make check` looks for mistakes in them, and `make plan` prints "
        f"what is to be changed; `bin/explain` says where values are from. `{names['src']}/` is an example, "
        f"`docs/rendering.md` describes the files and the programs, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -80", "cat Makefile bin/* docs/rendering.md", f"tail -n +1 {names['lib']}/* etc/*"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys([path for path in programs if path.startswith("bin/")], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    table = variant.words("etc/@reserved@")
    return [
        fault_of_command(
            "program-of-another-system",
            "`bin/explain` cannot be started: there is no such file, it says.",
            [*looks, "head -1 bin/explain | cat -A"],
            r"sed -i 's/$/\r/' bin/explain",
            r"sed -i 's/\r$//' bin/explain",
        ),
        fault_of_command(
            "link-to-old-ports",
            "Ports are not reported that were reserved this year.",
            [*looks, "ls -l etc"],
            f"mv {table}.txt {table}-2025.txt && ln -s $(basename {table})-2019.txt {table}.txt",
            f"ln -sf $(basename {table})-2025.txt {table}.txt",
        ),
        file_in_the_way(
            "makefile",
            "# A trial without files\nrender check plan:\n\t@echo nothing to do\n",
            looks,
            "There is nothing to do any more, make says.",
            "makefile-of-trial",
        ),
        Fault(
            "unreadable-ports",
            "Ports are not reported that are reserved, and there is an error.",
            [*looks, "ls -l etc"],
            f"chmod 644 {table}.txt",
            modes={f"{table}.txt": 0o200},
        ),
        lost_permission("bin/render", looks, "make render ends with an error."),
    ]


def _questions(rng: random.Random, files: dict[str, str], names: Sequence[str]) -> list[Question]:
    """Draw logs of rollouts and lists of racks, and ask about them."""
    longest = draw_journal(
        rng,
        files,
        "rollouts/2025-{:02}.log",
        names,
        range(20, 80_000),
        lambda month, name, seconds, mark: (
            f"2025-{month:02}-{rng.randint(1, 28):02} rollout={mark} host={name} seconds={seconds} ok"
        ),
    )
    rack_of = draw_lists(
        rng, files, "racks", "rack", lambda part: f"{rng.choice(['disk', 'card', 'fan'])} {part}", counts=(12, 22)
    )
    return [
        asked_together([_longest_rollout(one, longest[one]) for one in rng.sample([*longest], ASKED)]),
        asked_together([_rack_of_part(one, rack_of[one]) for one in rng.sample(sorted(rack_of), ASKED)]),
    ]


def _longest_rollout(name: str, mark: str) -> Question:
    fields = r"s/.*rollout=\([^ ]*\).*seconds=\([0-9]*\).*/\2 \1/"
    return Question(
        "longest-rollout",
        f"Which rollout of {name} took the most seconds, by rollouts/?",
        mark,
        [
            "head -3 rollouts/2025-01.log",
            f"grep -h ' host={name} ' rollouts/* | sed '{fields}' | sort -n | sed -n '$s/.* //p'",
        ],
    )


def _rack_of_part(part: str, rack: str) -> Question:
    return Question(
        "rack-of-part",
        f"Which rack is the part {part} in, by racks/?",
        rack,
        [f"grep -r {part} racks", f"grep -l ' {part}$' racks/* | xargs sed -n 's/^rack //p'"],
    )
