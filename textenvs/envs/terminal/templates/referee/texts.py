"""Files of the template `referee`; what stands between @ is drawn.

A program is a head and functions, whose order is drawn; functions of two programs may stand in one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..programs import Program

_PLACES = "from squares import behind, is_inside"

MAKEFILE = """# Judges records of games. Usage: make -s [TARGET] [D=league] [OUT=out]
D = league
OUT = out
RECORDS = $(sort $(wildcard $(D)/records/*.rec))

.PHONY: all results boards table reasons

all: results boards table reasons

results: $(OUT)/judged.tsv
	bin/report results $<

boards: $(OUT)/judged.tsv
	bin/report boards $<

table: $(OUT)/table.txt
	cat $<

reasons: $(OUT)/judged.tsv
	cut -f6 $< | LC_ALL=C sort | uniq -c | awk '{ print $$2, $$1 }'

$(OUT)/judged.tsv: $(RECORDS) etc/@conf@.conf
	mkdir -p $(OUT)
	bin/judge $(RECORDS) > $@

$(OUT)/table.txt: $(OUT)/judged.tsv $(D)/players.tsv
	bin/report table $< $(D)/players.tsv > $@
"""

JUDGE = """#!/bin/sh
# Prints a line of fields about each game. Usage: bin/judge RECORD...
exec python3 -S -E -X utf8 "$(dirname "$0")/../@code@/judge.py" "$@"
"""

REPORT = """#!/bin/sh
# Prints results, boards, or the table. Usage: bin/report results|boards|table JUDGED [PLAYERS]
exec python3 -S -E -X utf8 "$(dirname "$0")/../@code@/report.py" "$@"
"""

JUDGE_PROGRAM = '''"""Judges records of games."""
import sys
from pathlib import Path

import records
from @play@ import judge
from settings import settings, start


def main(*paths):
    rules, opening = settings(), records.pieces_of(start())
    for path in map(Path, paths):
        record = records.read(path, opening)
        print(*judge(record, rules), sep="\\t")


main(*sys.argv[1:])
'''

REPORT_PROGRAM = '''"""Prints reports on games that are judged."""
import sys

import table
from lines import result, rows
from players import ids_of, read


def judged(path):
    """Return the fields of games by number; of repeated games, one alone."""
    games = {}
    for line in open(path, encoding="utf-8"):
        game = table.Judged(*line.rstrip("\\n").split("\\t"))
        @repeated_game@
    return @sorted_games@


def main(report, path, names=None):
    games = judged(path)
    if report == "results":
        for game in games:
            print(result(game))
    elif report == "boards":
        for game in games:
            print(f"game {game.number}")
            print(*rows(game.board), sep="\\n")
    else:
        players = read(names)
        for line in table.standings(games, players, ids_of(players)):
            print(line)


main(*sys.argv[1:])
'''

SETTINGS_PROGRAM = '''"""Settings of the board, and the position at the beginning."""
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def settings():
    rules = {}
    for line in (HERE / "etc" / "@conf@.conf").read_text().splitlines():
        key, sign, value = line.partition("=")
        if sign:
            rules[key.strip()] = int(value.partition("#")[0])
    return rules


def size_of(rules):
    return rules["@columns_key@"], rules["@rows_key@"]


def start():
    return (HERE / "etc" / "start.txt").read_text().strip()
'''

SQUARES = '''"""Squares as pairs: columns from 0 at the left, and lines from 0 at the top."""
STRAIGHT = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
DIAGONAL = {"ne": (1, -1), "se": (1, 1), "sw": (-1, 1), "nw": (-1, -1)}
DIRECTIONS = STRAIGHT | DIAGONAL


def place_of(text, size):
    """Return the place of a square such as c10."""
    number = int(text[1:])
    return ord(text[0]) - @row_numbers@


def behind(place, way, steps=1):
    return place[0] + steps * way[0], place[1] + steps * way[1]


def is_inside(place, size):
    return @inside@
'''

RECORDS = Program(
    "Reads records of games; docs/records.md describes them.",
    ("import re", "from collections import namedtuple"),
    'Record = namedtuple("Record", "heads pieces words")',
    (
        '''def heads_of(text):
    """Return the values of the lines before the board, by their keys."""
    heads = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            key, _, value = line.partition(":")
            heads[key.strip().lower()] = value.strip()
    return heads''',
        """def pieces_of(board):
    pieces = {}
    for number, line in enumerate(board.splitlines()):
        for column, sign in enumerate(line.replace(" ", "")):
            if sign != ".":
                pieces[column, number] = sign
    return pieces""",
        '''def words_of(text):
    """Return the moves of a text, without comments, numbers and marks."""
    text = re.sub(@comments@, " ", text)
    text = re.sub(r";.*", " ", text)
    text = re.sub(r"\\b\\d+\\.+", " ", text.lower())
    return @words@''',
        '''def read(path, opening):
    """Return a record; without a board, the game begins with the usual position."""
    text = path.read_text(encoding="utf-8-sig").strip()
    text, rest = re.split(r"\\n\\s*\\n", text, maxsplit=1)
    heads = heads_of(text)
    if heads.get("board") == "usual":
        return Record(heads, opening, words_of(rest))
    board, rest = re.split(r"\\n\\s*\\n", rest, maxsplit=1)
    return Record(heads, pieces_of(board), words_of(rest))''',
    ),
)

LEGAL = Program(
    "Moves that are legal.",
    (
        "import re",
        "from settings import size_of",
        "from squares import DIAGONAL, DIRECTIONS, STRAIGHT, place_of",
        _PLACES,
    ),
    'MOVE = re.compile(r"([a-z]\\d+)([ns]?[ew]?)(\\d+)")',
    (
        '''def ways_of(sign):
    """Return the directions in which a piece moves; a chief has a capital letter."""
    if sign.isupper():
        @directions_of_chiefs@
    return STRAIGHT''',
        """def reach_of(sign, rules):
    return rules["@chief_key@"] if sign.isupper() @reach_of_stones@""",
        '''def is_free(pieces, side, place, way, steps):
    """Tell whether nothing is in the way of a piece."""
    between = [pieces.get(behind(place, way, number)) for number in range(1, steps)]
    return @pieces_in_the_way@''',
        '''def parsed(word, size):
    """Return the place, the direction and the steps of a move, or nothing."""
    match = MOVE.fullmatch(word)
    if not match or match[2] not in DIRECTIONS:
        return None
    return place_of(match[1], size), match[2], int(match[3])''',
        '''def target_of(pieces, side, word, rules):
    """Return the places from which and to which a piece moves, or nothing if the move is not legal."""
    move = parsed(word, size_of(rules))
    if move is None:
        return None
    place, name, steps = move
    sign = pieces.get(place, ".")
    if sign.lower() != side or name not in ways_of(sign) or not 1 <= steps <= reach_of(sign, rules):
        return None
    target = behind(place, DIRECTIONS[name], steps)
    if not is_inside(target, size_of(rules)) or target in pieces:
        return None
    return (place, target) if is_free(pieces, side, place, DIRECTIONS[name], steps) else None''',
    ),
)

CAPTURES = Program(
    "Captures: lines of enemies that a move closes.",
    ("from squares import DIAGONAL, STRAIGHT", _PLACES),
    "LINES = @lines_of_captures@",
    (
        '''def run_of(pieces, side, place, way):
    """Return the places of the enemies in a line, and the place behind them."""
    @run@''',
        '''def closer_of(pieces, side, place, size):
    """Return what closes a line at a place: the sign of a piece, `edge`, or nothing."""
    if not is_inside(place, size):
        @captures_at_the_edge@
    sign = pieces.get(place, "")
    return sign if sign.lower() == side else ""''',
        """def strength(pieces, side):
    return sum(sign.lower() == side for sign in pieces.values())""",
        '''def worth(pieces, run):
    """Return the places of a closed line that are captured, and as how many captures they count."""
    chiefs = [place for place in run if pieces[place].isupper()]
    @captured_chief@''',
        '''def captured(pieces, side, place, size):
    """Return the places that a move to a place captures, and as how many captures they count."""
    prey, count = [], 0
    for way in LINES.values():
        run, end = run_of(pieces, side, place, way)
        closer, mover = closer_of(pieces, side, end, size), pieces[place]
        @captures_by_chiefs@ @length_of_lines@
            places, number = worth(pieces, run)
            prey += places
            count += number
    return prey, count''',
        '''def is_between(pieces, side, place):
    """Tell whether a place is between two enemies in one line."""
    enemies = {one for one, sign in pieces.items() if sign.lower() != side}
    return any(behind(place, way) in enemies and behind(place, way, -1) in enemies for way in LINES.values())''',
    ),
)

ENDS = Program(
    "Ends of games.",
    ("from @captures@ import strength",),
    "",
    (
        '''def end_after(pieces, side, other, repeated, quiet):
    """Return the winner and the reason where a move ends a game."""
    for winner, loser in ((side, other), (other, side)):
        if strength(pieces, loser) @few_pieces@
            return winner, "few"
    if @repeated_position@:
        return "draw", "repeated"
    if @quiet_moves@:
        return "draw", "quiet"
    return None''',
        '''def counted(pieces, captures, side, other):
    """Return the winner where a game is counted."""
    own, foreign = [@counted_game@ for one in (side, other)]
    if own == foreign:
        return "draw"
    return side if own > foreign else other''',
        '''def end_without(pieces, captures, side, other):
    """Return the winner and the reason where a record has no end."""
    @record_without_end@''',
    ),
)

PLAY = Program(
    "Plays games by their records.",
    (
        "from collections import Counter",
        "from @captures@ import captured, is_between, strength",
        "from @legal@ import target_of",
        "from settings import size_of",
    ),
    'SIDES = "@first@", "@second@"',
    (
        '''def order_of(heads, pieces):
    """Return the letters of the side that begins, and of the other one."""
    first, second = (name[0] for name in SIDES)
    begins = heads.get("begins")
    if begins is None:
        @who_begins@
    else:
        is_first = begins == SIDES[0]
    return (first, second) if is_first else (second, first)''',
        '''def moved(pieces, side, place, target, size):
    """Move a piece; return how many captures it makes, and whether the piece itself is lost."""
    pieces[target] = pieces.pop(place)
    prey, count = captured(pieces, side, target, size)
    doomed = pieces[target] == side and @entering_between@
    chiefs = [sign for sign in map(pieces.pop, dict.fromkeys(prey)) if sign.isupper()]
    if doomed:
        del pieces[target]
    return count, doomed, bool(chiefs)''',
        '''def play(record, pieces, captures, rules):
    """Return the winner, the reason, and the number of moves."""
    side, other = order_of(record.heads, pieces)
    positions, moves, quiet, passes = Counter(), 0, 0, 0
    for word in record.words:
        if word == "resigns":
            return other, "resigned", moves
        if word == "agreed":
            return "draw", "agreed", moves
        if word == "pass":
            passes += 1
            if passes == 2:
                return counted(pieces, captures, side, other), "counted", moves
            side, other = other, side
            continue
        places = target_of(pieces, side, word, rules)
        if places is None:
            @illegal_move@
        passes = 0
        moves += 1
        count, doomed, has_chief = moved(pieces, side, *places, size_of(rules))
        captures[side] += count
        captures[other] += doomed
        if has_chief:
            return side, "chief", moves
        quiet = 0 if count or doomed else quiet + 1
        key = side + @position@
        positions[key] += 1
        end = end_after(pieces, side, other, positions[key], quiet)
        if end:
            return *end, moves
        side, other = other, side
    return *end_without(pieces, captures, side, other), moves''',
        '''def judge(record, rules):
    """Return number, date, ids, winner, reason, moves, captures of both sides, and the board at the end."""
    pieces, captures = dict(record.pieces), Counter()
    winner, reason, moves = play(record, pieces, captures, rules)
    heads, (columns, lines) = record.heads, size_of(rules)
    first, second = (name[0] for name in SIDES)
    names = {first: SIDES[0], second: SIDES[1]}
    board = "/".join("".join(pieces.get((c, n), ".") for c in range(columns)) for n in range(lines))
    ids = [heads[name] for name in SIDES]
    figures = [moves, captures[first], captures[second]]
    return heads["game"], heads["date"], *ids, names.get(winner, winner), reason, *figures, board''',
    ),
)

PLAYERS = '''"""Players, and the ids that they had before."""
from collections import namedtuple

Player = namedtuple("Player", "id name club former")


def read(path):
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\\n").split("\\t") for line in file]
    return [Player(*row) for row in rows[1:]]


def ids_of(players):
    """Return the present ids of players, by all ids that they had."""
    @ids@
'''

TABLE = Program(
    "Points of players, and their table.",
    ("from collections import Counter, namedtuple", "from lines import place"),
    'Judged = namedtuple("Judged", "number date first second winner reason moves captures_first captures_second board")'
    "\n# The points of a victory, of a draw, and of a defeat.\nPOINTS = @points_of_games@",
    (
        '''def bonus(outcome, made, suffered):
    """Return the points that one gets beside those of the result."""
    return int(@bonus_point@)''',
        '''def sides_of(game):
    """Return id, outcome, captures made and captures suffered of both players."""
    made, suffered = int(game.captures_first), int(game.captures_second)
    outcomes = {"@first@": (0, 2), "@second@": (2, 0), "draw": (1, 1)}[game.winner]
    return (game.first, outcomes[0], made, suffered), (game.second, outcomes[1], suffered, made)''',
        '''def standings(games, players, ids):
    """Return the lines of the table."""
    points, wins, made, net, played = Counter(), Counter(), Counter(), Counter(), Counter()
    for game in games:
        if game.winner == "open":
            continue
        for id, outcome, gains, losses in sides_of(game):
            one = ids[id]
            points[one] += POINTS[outcome] + bonus(outcome, gains, losses)
            wins[one] += outcome == 0
            made[one] += gains
            net[one] += gains - losses
            played[one] += 1
    def key(player):
        one = player.id
        return (-points[one], @tie_break_of_table@)
    ranked = sorted(players, key=key)
    return [place(rank, p.name, points[p.id], played[p.id], made[p.id]) for rank, p in enumerate(ranked, start=1)]''',
    ),
)

LINES = '''"""Lines of reports."""


def result(game):
    g = game
    return @line_of_result@


def place(rank, name, points, played, made):
    return @line_of_place@


def rows(board):
    """Return the lines of a board, the upper one first."""
    lines = board.split("/")
    return [@row_of_board@ for number, line in enumerate(lines)]
'''

CONF = """# The board
@columns_key@ = @columns@
@rows_key@ = @rows@  # see docs/records.md
@chief_key@ = @chief_steps@
"""

FORMAT = """# Records of games

The board has @columns@ columns, `a` and so on from the left, and @rows@ rows. The sides are `@first@` and `@second@`:
`@a@` and `@b@` are their stones, `@A@` and `@B@` their chiefs.

A record, `NAME.rec`, begins with lines of a key and a value: `game` (a number), `date`, `@first@` and `@second@` (ids
of players), and perhaps `begins` (a side). Keys may be in any case of letters; a line that begins with `#` is none of
them. After an empty line comes the board, the upper row first, with spaces or without; where a line says
`board: usual`, it is that of `etc/start.txt`, and no board follows. After another empty line come the moves.

A move such as `c10ne2` is a square, a direction (`n` is towards the upper row) and a number of steps. `x`, `!` and `?`
behind a move mean nothing, nor do numbers such as `12.` or `12...` before it, nor what stands in braces, perhaps in
several lines, or behind a `;` (which in braces is a letter like all others). Moves may be in capital letters. Other
words are `pass`, `resigns` and `agreed` (a draw); whatever else is an illegal move. What comes behind the end of a game
does not matter.

# Moves

A stone moves straight, to an empty square; a chief moves at most @chief_steps@ steps. A move captures the enemies in a
line that begins next to the square where the piece arrives, and that another piece of the mover closes at its other
end. All captures of a move are made at once. A chief is never captured for entering between enemies.

A game is lost by who has lost the chief (`chief`), has too few pieces (`few`), or `resigned`; it is a draw if `agreed`,
`repeated` (a side has made the same position too often by its moves) or `quiet`. It is `counted` after two passes, one
behind the other, with no move between. These reasons are looked at in the order few (first of the enemy), repeated,
quiet.

# Players

`players.tsv`: id, name, club, and former ids with commas between them; games with former ids are theirs as well. The
table has all players: points, then a tie-break, then the id decide. `make reasons` counts all records, and all else the
games that hold.
"""

#: Ways to write a part of a program, the second of them a wrong one.
SHAPES: Mapping[str, Sequence[tuple[str, str]]] = {
    "inside": (
        ("0 <= place[0] < size[0] and 0 <= place[1] < size[1]", "0 <= place[0] < size[0] and 0 <= place[1]"),
        ("place[0] in range(size[0]) and place[1] in range(size[1])", "place[0] in range(size[0]) and place[1] >= 0"),
        (
            "all(0 <= one < most for one, most in zip(place, size))",
            "all(0 <= one < max(size) for one, most in zip(place, size))",
        ),
    ),
    "run": (
        (
            "run, end = [], behind(place, way)\n    while pieces.get(end, side).lower() != side:\n"
            "        run.append(end)\n        end = behind(end, way)\n    return run, end",
            "run, end = [], behind(place, way)\n    while pieces.get(end, side).lower() != side:\n"
            "        run.append(end)\n        end = behind(end, way)\n    return run, place",
        ),
        (
            "end = behind(place, way)\n    if pieces.get(end, side).lower() == side:\n        return [], end\n"
            "    run, last = run_of(pieces, side, end, way)\n    return [end, *run], last",
            "end = behind(place, way)\n    if pieces.get(end, side).lower() == side:\n        return [], end\n"
            "    run, last = run_of(pieces, side, end, way)\n    return [end, *run], end",
        ),
    ),
    "comments": (
        ('r"\\{[^}]*\\}"', 'r"\\{[^}\\n]*\\}"'),
        ('r"(?s)\\{.*?\\}"', 'r"(?s)\\{.*\\}"'),
    ),
    "words": (
        ('[word.rstrip("x!?") for word in text.split()]', '[word.removesuffix("x") for word in text.split()]'),
        ('re.sub(r"[x!?]+(?!\\S)", "", text).split()', 're.sub(r"[x!?](?!\\S)", "", text).split()'),
        ('[re.sub("[x!?]*$", "", word) for word in text.split()]', '[word.rstrip("x") for word in text.split()]'),
    ),
    "position": (
        (
            '"".join(f"{c},{n}{pieces[c, n]} " for c, n in sorted(pieces))',
            '"".join(f"{c}{pieces[c, n]} " for c, n in sorted(pieces))',
        ),
        ("str(sorted(pieces.items()))", "str(sorted(pieces.values()))"),
    ),
    "ids": (
        (
            'return {one: p.id for p in players for one in (p.id, *p.former.split(","))}',
            'return {one: p.id for p in players for one in (p.id, p.former.partition(",")[0])}',
        ),
        (
            "ids = {p.id: p.id for p in players}\n    for p in players:\n"
            '        ids |= dict.fromkeys(p.former.split(","), p.id)\n    return ids',
            "ids = {p.id: p.id for p in players}\n    for p in players:\n"
            "        ids |= dict.fromkeys([p.former], p.id)\n    return ids",
        ),
    ),
    "sorted_games": (
        ("sorted(games.values(), key=lambda game: int(game.number))", "sorted(games.values())"),
        ("[games[number] for number in sorted(games, key=int)]", "[games[number] for number in sorted(games)]"),
    ),
}

IMPORT_OF_ENDS = "from @ends@ import counted, end_after, end_without"
