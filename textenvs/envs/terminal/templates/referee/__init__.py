"""The template *referee*: records of a board game in a notation of its own; moves, captures, ends, and a table.

It needs make, sh, awk (mawk is enough), sort, cut, uniq and Python 3.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...project import Check, Fault, Project, Question
from ..parts import (
    ASKED,
    CITIES,
    FIRST_NAMES,
    SURNAMES,
    asked_together,
    day,
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
from .oracle import WAYS, Board, Game, League, Move
from .rules import IDENTIFIERS, RULES
from .scenes import SCENES

#: Rules whose options may give the same table by chance.
_BY_CHANCE = ("points-of-games", "bonus-point", "tie-break-of-table")
_SIDES = ("moss", "sand", "clay", "fern", "jade", "rust", "teal")


def _players(rng: random.Random) -> list[tuple[str, str, str, Sequence[str]]]:
    """Draw players; the first one has two former ids, and a name with a letter that is not ASCII."""
    ids = [f"{rng.choice('ABCDE')}{number}" for number in rng.sample(range(10, 99), 12)]
    names = rng.sample([f"{first} {last}" for first in FIRST_NAMES for last in SURNAMES], 9)
    names[0] = "Zoë " + names[0].split()[1]
    return [
        (ids[n], names[n], rng.choice(CITIES), [ids[9:11], [ids[11]], []][min(n, 2)]) for n in rng.sample(range(9), 9)
    ]


def _scene_pieces(
    text: str, board: Board, side: int, flips: tuple[bool, bool]
) -> tuple[dict[complex, tuple[int, bool]], bool]:
    """Return the pieces of a scene, and those that stand far away; see ``scenes.py``."""
    pieces, words = dict[complex, tuple[int, bool]](), text.split()
    stones = [word for word in words if re.fullmatch(r"[aAbB]\d\d", word)]
    signs = "".join(word[0] for word in stones)
    for letter, line in (("a", 0), ("b", board.rows - 1)):
        if f"-{letter}" not in words:
            has_chief = letter.upper() not in signs and f"~{letter}" not in words
            for x in (1, 3, 5, 7):
                pieces[complex(x, line)] = ((letter == "b") ^ side, has_chief and x == 1)
    for word in stones:
        pieces[complex(int(word[1]), int(word[2]))] = ((word[0] in "bB") ^ side, word[0].isupper())
    return {board.turned(place, flips): piece for place, piece in pieces.items()}, "?" in words


def _scene_move(word: str, board: Board, flips: tuple[bool, bool]) -> Move | str:
    match = re.fullmatch(r"(\d)(\d)([nsew]+)(\d+|c|d)(z?)", word)
    if match is None:
        return word
    way = WAYS[match[3]]
    way = complex(-way.real if flips[0] else way.real, -way.imag if flips[1] else way.imag)
    steps = {"c": board.chief_steps, "d": board.chief_steps + 1}.get(match[4]) or int(match[4])
    return Move(board.turned(complex(int(match[1]), int(match[2])), flips), way, steps, match[5])


def _at_edges(board: Board) -> list[tuple[Mapping[complex, tuple[int, bool]], Move]]:
    """Return pieces and moves at the right and at the lower edge: two are legal, two leave the board."""
    scenes = list[tuple[Mapping[complex, tuple[int, bool]], Move]]()
    edge, low = board.columns - 1, board.rows - 1
    for x, y, way in ((edge - 1, 4, 1 + 0j), (4, low - 1, 1j), (edge, 4, 1 + 0j), (4, low, 1j)):
        pieces = {complex(n, 0): (0, n == 1) for n in (1, 3, 5, 7)} | {complex(n, 2): (1, n == 1) for n in (1, 3, 5, 7)}
        scenes.append(({**pieces, complex(x, y): (0, False)}, Move(complex(x, y), way, 1)))
    return scenes


def _walk(rng: random.Random, board: Board) -> list[Move | str]:
    """Draw moves from the usual position that would be legal if nothing were ever captured."""
    pieces, moves = board.usual(), list[Move | str]()
    for turn in range(14):
        for _ in range(DRAWS):
            place = rng.choice([place for place, (side, chief) in pieces.items() if side == turn % 2 and not chief])
            way, steps = WAYS[rng.choice("nsew")], 1 if turn < 2 else rng.randint(1, 3)
            targets = [place + step * way for step in range(1, steps + 1)]
            if all(board.has(one) and one not in pieces for one in targets):
                pieces[targets[-1]] = pieces.pop(place)
                moves.append(Move(place, way, steps))
                break
    return moves


def _league(rng: random.Random, variant: Variant, board: Board) -> League:
    """Draw a league in which each rule and each fault shows."""
    players, games = _players(rng), list[Game]()
    ranks = sorted(id for id, *_ in players)
    number = iter(rng.sample(range(2, 400), 99))

    def pair() -> tuple[str, str]:
        one, other = rng.sample(ranks[:6], 2)
        return one, other

    for text, moves in SCENES:
        flips, side = (rng.random() < 0.5, rng.random() < 0.5), rng.randrange(2)
        if text.startswith("?"):
            side = sum(game.begins is None for game in games)
        pieces, is_open = _scene_pieces(text, board, side, flips)
        words = [_scene_move(word, board, flips) for word in moves.split()]
        style = "styled" if "styled" in text else ""
        games.append(Game(next(number), day(rng), pair(), None if is_open else side, pieces, words, style))
        if is_open:
            # The side with more pieces has the id that is first in the alphabet.
            fewer = ranks[-1], ranks[0]
            games[-1] = replace(games[-1], ids=fewer if side == 0 else fewer[::-1])
    for position, move in _at_edges(board):
        games.append(Game(next(number), day(rng), pair(), 0, position, [move]))
    for _ in range(2):
        games.append(Game(next(number), day(rng), pair(), 0, board.usual(), _walk(rng, board), "usual"))
    # Results of players, some of them by ids that they had before.
    former = [one for _, _, _, olds in players for one in olds]
    for one in former:
        other = rng.choice([id for id, *_, olds in players if one not in olds])
        games.append(replace(games[0], number=next(number), ids=(one, other), begins=0, moves=["resigns"]))
    names = [f"{n:02}-{token(rng, 3)}" for n in range(len(games) + 4)]
    rng.shuffle(games)
    records = dict(zip(names, games, strict=False))
    # Four records of one game, whose dates are not in the order of files.
    pieces, _ = _scene_pieces("a24 b27", board, 0, (False, False))
    steps = [_scene_move(word, board, (False, False)) for word in ("24e1", "27e1", "34e1", "37e1")]
    repeated = Game(next(number), "", pair(), 0, pieces, ["agreed"])
    for count, (name, date) in enumerate(zip(names[len(games) :], ("03-04", "11-20", "01-09", "08-17"), strict=True)):
        records[name] = replace(repeated, date=f"2025-{date}", moves=[*steps[: count + 1], "agreed"])
    return League(variant, board, players, records)


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: the rules of a game, how its programs are written, and a league."""
    first, second = rng.sample(_SIDES, 2)
    columns, rows = rng.sample(range(9, 12), 1)[0], rng.randint(11, 13)
    board = Board(columns, rows + (rows == columns), rng.choice([1, 5]))
    columns_key, rows_key, chief_key = (
        rng.choice(keys) for keys in (("columns", "width"), ("rows", "height"), ("chief", "leap"))
    )
    is_joined, has_ends = rng.random() < 0.5, rng.random() < 0.5
    shapes = {name: rng.choice(forms) for name, forms in texts.SHAPES.items()}
    play = rng.choice(["play", "game", "turns"])
    names: dict[str, object] = {
        "code": rng.choice(["code", "src", "rules", "lib"]),
        "conf": rng.choice(["board", "game-settings", "sizes"]),
        "play": play,
        "legal": "moves" if is_joined else "legal",
        "captures": "moves" if is_joined else rng.choice(["captures", "lines_closed"]),
        "ends": play if has_ends else "ends",
        "first": first,
        "second": second,
        "a": first[0],
        "b": second[0],
        "A": first[0].upper(),
        "B": second[0].upper(),
        "columns_key": columns_key,
        "rows_key": rows_key,
        "chief_key": chief_key,
        "columns": board.columns,
        "rows": board.rows,
        "chief_steps": board.chief_steps,
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    codes = {
        f"{name}{end}": variant.text(code)
        for name, pair in shapes.items()
        for end, code in zip(("", "_wrong"), pair, strict=True)
    }
    variant = replace(variant, names={**names, **codes})
    files = variant.files(_programs(rng, is_joined, has_ends)) | variant.document(rng)
    league = _league(rng, variant, board)
    files["etc/start.txt"] = "\n".join([*league.drawn(board.usual()), ""])
    files |= {
        # Nothing reads these.
        f"etc/{names['conf']}-small.conf": variant.words(texts.CONF.replace("@columns@", "7").replace("@rows@", "8")),
        "old/captures.py": variant.outdated(texts.CAPTURES.text(rng)),
        "old/squares.py": variant.outdated(texts.SQUARES),
        "docs/records.md": variant.words(texts.FORMAT),
        "docs/notes.md": notes(rng, "Notes on the league", 10),
    }
    chosen = dict(rng.sample(sorted(league.records.items()), 9))
    files |= {f"league/{name}": text for name, text in replace(league, records=chosen).files(rng).items()}
    questions = _questions(rng, files, [id for id, *_ in league.players])
    fixed = frozenset(path for path in files if path.startswith(("league/", "clocks/", "sets/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        return [_check(fresh, variant, board)]

    about = (
        "`make` judges the records of games in `league/` and prints results, boards, the table, and how many records "
        "end for which reason; `make results`, `make boards`, `make table` and `make reasons` print one of them. "
        f"`docs/records.md` describes the game, and `{variant.page}` says what was agreed."
    )
    code = names["code"]
    looks = ["ls * | head -90", "cat Makefile bin/* docs/records.md", f"tail -n +1 {code}/*.py"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        *_faults_of_files(variant, looks),
    ]
    modes = dict.fromkeys(["bin/judge", "bin/report"], 0o755)
    return Project(about, files, faults, checks, modes, fixed=fixed, questions=questions)


def _programs(rng: random.Random, is_joined: bool, has_ends: bool) -> dict[str, str]:
    """Return the texts of the programs by path: moves and captures are in one file, or ends of games with the play."""
    play, ends = texts.PLAY, texts.ENDS
    if has_ends:
        play = play.joined(ends._replace(imports=()), play.about)
    else:
        play = play._replace(imports=[*play.imports[:2], texts.IMPORT_OF_ENDS, *play.imports[2:]])
    programs = {"@play@": play, "records": texts.RECORDS, "table": texts.TABLE}
    if is_joined:
        programs["@legal@"] = texts.LEGAL.joined(
            texts.CAPTURES, "Moves that are legal, and the captures that they make."
        )
    else:
        programs |= {"@legal@": texts.LEGAL, "@captures@": texts.CAPTURES}
    if not has_ends:
        programs["@ends@"] = ends
    return {
        "Makefile": texts.MAKEFILE,
        "bin/judge": texts.JUDGE,
        "bin/report": texts.REPORT,
        "@code@/judge.py": texts.JUDGE_PROGRAM,
        "@code@/report.py": texts.REPORT_PROGRAM,
        "@code@/settings.py": texts.SETTINGS_PROGRAM,
        "@code@/squares.py": texts.SQUARES,
        "@code@/players.py": texts.PLAYERS,
        "@code@/lines.py": texts.LINES,
        "etc/@conf@.conf": texts.CONF,
        **{f"@code@/{name}.py": program.text(rng) for name, program in programs.items()},
    }


def _check(rng: random.Random, variant: Variant, board: Board) -> Check:
    """Judge a league, again with other names of players, and again with another record."""
    league = _league(rng, variant, board)
    played, ids = league.outcomes(), sorted(id for id, *_ in league.players)[:6]
    for _ in range(DRAWS):
        league = league.with_other_pairs(rng, ids)
        outcomes = league.paired(played)
        if variant.separates(_BY_CHANCE, functools.partial(league.table_by, outcomes)):
            break
    id, player, club, former = league.players[0]
    renamed = [(id, f"{player} II", club, former), *league.players[1:]]
    other = replace(league, players=renamed)
    name, game = next((name, game) for name, game in sorted(league.records.items()) if game.style == "styled")
    changed = replace(game, moves=[*game.moves[:6], *game.moves[:1], "resigns"], style="")
    later = replace(other, records={**league.records, name: changed})
    inputs = {f"league/{path}": text for path, text in league.files(rng).items()}
    inputs |= {"new.rec": league.text(rng, changed, 1), "players.tsv": other.files(rng)["players.tsv"]}
    make = "D=/tmp/l OUT=/tmp/o/p"
    command = (
        f"cp -R $IN/league /tmp/l; make -s {make}; "
        f"cp $IN/players.tsv /tmp/l/; touch -d 2040-01-01 /tmp/l/players.tsv; make -s table {make}; "
        f"cp $IN/new.rec /tmp/l/records/{name}.rec; touch -d 2040-01-01 /tmp/l/records/*; "
        f"make -s table {make}; cd /tmp; /project/bin/judge l/records/* | cut -f5-9"
    )
    new = later.outcomes()
    expected = [
        *league.results(outcomes),
        *league.boards(outcomes),
        *league.table(outcomes),
        *league.reasons(outcomes),
        *other.table(outcomes),
        *later.table(new),
        *later.raw(new),
    ]
    return Check("league", command, "\n".join(expected), inputs)


def _faults_of_files(variant: Variant, looks: Sequence[str]) -> list[Fault]:
    code = variant.names["code"]
    wrong = variant.text(texts.SQUARES).replace('"n": (0, -1)', '"n": (0, 1)').replace('"s": (0, 1)', '"s": (0, -1)')
    return [
        Fault(
            "package-before-module",
            "Pieces go up where they should go down, whatever is changed in the table of directions.",
            [*looks, f"ls -R {code}"],
            f"rm -r {code}/squares",
            added={f"{code}/squares/__init__.py": wrong},
        ),
        file_in_the_way(
            f"{code}/enum.py",
            '"""Numbers of the boxes in which the sets are."""\n\nBOXES = {"oak": 3, "beech": 5, "travel": 8}\n',
            looks,
            "Nothing is judged, and the error names a module that nobody has changed.",
            "box-list-as-module",
        ),
        file_in_the_way(
            "makefile",
            "# For the printer in the hall.\nall results boards table reasons:\n\t@lpr -P hall out/table.txt || true\n",
            looks,
            "make prints nothing at all, and there is no error about records either.",
            "makefile-of-printer",
        ),
        fault_of_command(
            "dangling-start",
            "Nothing is judged since somebody has put positions into a folder of their own.",
            [*looks, "ls -lR etc"],
            "mkdir etc/positions && mv etc/start.txt etc/positions/start.txt && ln -s position/start.txt etc/start.txt",
            "rm etc/start.txt && mv etc/positions/start.txt etc/start.txt && rmdir etc/positions",
        ),
        lost_permission("bin/judge", looks, "make ends with an error before there is any result."),
    ]


def _questions(rng: random.Random, files: dict[str, str], ids: Sequence[str]) -> list[Question]:
    """Draw journals of clocks, and lists of the pieces of sets; ask about them."""
    longest = draw_journal(
        rng,
        files,
        "clocks/2025-{:02}.log",
        ids,
        range(10, 90_000),
        lambda month, id, seconds, move: (
            f"2025-{month:02}-{rng.randint(1, 28):02} {id} thought {seconds} s, note {move}"
        ),
    )
    woods = ("oak", "beech", "walnut", "maple")
    set_of = draw_lists(rng, files, "sets", "set", lambda piece: f"{piece} {rng.choice(woods)}", counts=(14, 24))
    return [
        asked_together([_longest_thought(id, longest[id]) for id in rng.sample([*longest], ASKED)]),
        asked_together([_set_of_piece(one, set_of[one]) for one in rng.sample(sorted(set_of), ASKED)]),
    ]


def _longest_thought(id: str, note: str) -> Question:
    command = f"grep -h ' {id} thought ' clocks/* | sed 's/.* thought //; s/ s, note / /' | sort -n | tail -n 1"
    return Question(
        "longest-thought",
        f"Which note belongs to the move about which {id} thought longest, by clocks/?",
        note,
        ["head -n 3 clocks/2025-01.log", f"{command} | cut -d' ' -f2"],
    )


def _set_of_piece(piece: str, owner: str) -> Question:
    return Question(
        "set-of-piece",
        f"Which set is the piece {piece} from, by sets/?",
        owner,
        [f"grep -r {piece} sets", f"grep -l '^{piece} ' sets/* | xargs sed -n 's/^set //p'"],
    )
