"""Rules that the programs of the template `referee` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "row-numbers",
        "@code@/squares.py",
        "Moves that everybody saw are called illegal, or are made at another place of the board.",
        [
            Option(
                'ord("a"), size[1] - number',
                "Rows are numbered from 1, the lowest one first.",
                lambda line, rows: rows - line,
            ),
            Option(
                'ord("a"), number - 1',
                "Rows are numbered from 1, the uppermost one first.",
                lambda line, rows: line + 1,
            ),
            Option(
                'ord("a"), size[1] - 1 - number',
                "Rows are numbered from 0, the lowest one first.",
                lambda line, rows: rows - 1 - line,
            ),
            Option('ord("a"), number', "Rows are numbered from 0, the uppermost one first.", lambda line, rows: line),
        ],
        shows=True,
    ),
    Rule(
        "who-begins",
        "@code@/@play@.py",
        "Games that do not say who begins are played by the wrong side first.",
        [
            Option("is_first = True", "Where a record does not say who begins, it is `@first@`.", lambda ids, many: 0),
            Option(
                "is_first = False", "Where a record does not say who begins, it is `@second@`.", lambda ids, many: 1
            ),
            Option(
                "is_first = heads[SIDES[0]] < heads[SIDES[1]]",
                "Where a record does not say who begins, it is the player whose id in it is first in the alphabet.",
                lambda ids, many: ids.index(min(ids)),
            ),
            Option(
                "is_first = strength(pieces, first) < strength(pieces, second)",
                "Where a record does not say who begins, it is the side with fewer pieces; `@second@`, if both have as "
                "many.",
                lambda ids, many: 1 - (many[0] < many[1]),
            ),
        ],
    ),
    numbers(
        "reach-of-stones",
        "@code@/@legal@.py",
        "Moves of stones are too long, or good ones are refused.",
        (2, 3, 4),
        "else {}",
        "A stone moves at most {} steps.",
    ),
    Rule(
        "directions-of-chiefs",
        "@code@/@legal@.py",
        "Chiefs are refused moves of theirs, or make those of others.",
        [
            Option("return DIRECTIONS", "A chief moves straight or diagonally.", (1, 2)),
            Option("return DIAGONAL", "A chief moves diagonally.", (2,)),
            Option("return STRAIGHT  # as stones", "A chief moves straight.", (1,)),
        ],
    ),
    Rule(
        "pieces-in-the-way",
        "@code@/@legal@.py",
        "Moves over pieces are not judged as agreed.",
        [
            Option("not any(between)", "No piece moves over another one.", ""),
            Option(
                "all(sign is None or sign.lower() == side for sign in between)",
                "Pieces move over those of their own side, and not over enemies.",
                "own",
            ),
            Option(
                "all(sign is None or sign.lower() != side for sign in between)",
                "Pieces move over enemies, and not over those of their own side.",
                "enemies",
            ),
        ],
    ),
    Rule(
        "lines-of-captures",
        "@code@/@captures@.py",
        "Pieces are captured in lines that are none, or are not captured.",
        [
            Option(
                "STRAIGHT | DIAGONAL",
                "Lines are rows, columns and diagonals.",
                (1, -1, 1j, -1j, 1 + 1j, 1 - 1j, -1 + 1j, -1 - 1j),
            ),
            Option("{**STRAIGHT}", "Lines are rows and columns.", (1, -1, 1j, -1j)),
            Option("{**DIAGONAL}", "Lines are diagonals.", (1 + 1j, 1 - 1j, -1 + 1j, -1 - 1j)),
            Option('{name: STRAIGHT[name] for name in "ew"}', "Lines are rows, and no columns or diagonals.", (1, -1)),
        ],
    ),
    Rule(
        "length-of-lines",
        "@code@/@captures@.py",
        "Of long lines, too many or too few pieces are captured.",
        [
            Option("and run:", "A line of enemies may have any length to be captured.", 99),
            Option("and len(run) == 1:", "A line of more than one enemy is not captured.", 1),
            Option("and 0 < len(run) < 3:", "A line of more than two enemies is not captured.", 2),
        ],
    ),
    Rule(
        "captures-at-the-edge",
        "@code@/@captures@.py",
        "Pieces at the edge of the board are captured, or are not, against the rules.",
        [
            Option('return ""', "The edge of the board closes no line.", lambda own, all: False),
            Option('return "edge"', "The edge of the board closes a line as a piece does.", lambda own, all: True),
            Option(
                'return "edge" if 2 * strength(pieces, side) < len(pieces) else ""',
                "The edge of the board closes a line for a mover with fewer pieces than the enemy, before captures.",
                lambda own, all: 2 * own < all,
            ),
        ],
    ),
    Rule(
        "captures-by-chiefs",
        "@code@/@captures@.py",
        "Chiefs capture, or do not capture, against the rules.",
        [
            Option("if closer", "A chief captures and closes lines as a stone does.", (True, True)),
            Option(
                "if closer and closer != side.upper()",
                "A chief captures by its moves, but closes no line of others.",
                (True, False),
            ),
            Option(
                "if closer and mover == side", "A chief closes lines, but its moves capture nothing.", (False, True)
            ),
            Option(
                'if mover == side and closer in (side, "edge")',
                "A chief captures nothing, and closes no line.",
                (False, False),
            ),
        ],
    ),
    Rule(
        "captured-chief",
        "@code@/@captures@.py",
        "Lines with a chief in them are not captured as agreed.",
        [
            Option(
                "return ([], 0) if chiefs else (run, len(run))",
                "A line with a chief in it is not captured at all.",
                lambda stones, chiefs: (0, False, 0) if chiefs else (stones, False, stones),
            ),
            Option(
                "return run, len(run) + 2 * len(chiefs)",
                "A captured chief counts as three captures.",
                lambda stones, chiefs: (stones, True, stones + 3 * chiefs),
            ),
            Option(
                "return run, len(run)",
                "A captured chief counts as one capture.",
                lambda stones, chiefs: (stones, True, stones + chiefs),
            ),
            Option(
                "return [place for place in run if place not in chiefs], len(run)",
                "Of a line with a chief in it, the stones are captured; the chief stays, but counts as a capture.",
                lambda stones, chiefs: (stones, False, stones + chiefs),
            ),
        ],
    ),
    Rule(
        "entering-between",
        "@code@/@play@.py",
        "A stone that went between two enemies has, or has not, survived it.",
        [
            Option("False  # it is safe", "A stone that enters between two enemies is safe.", lambda prey: False),
            Option(
                "is_between(pieces, side, target)",
                "A stone that moves in between two enemies, next to it in one line, is captured, even where its move "
                "captures one of them.",
                lambda prey: True,
            ),
            Option(
                "not prey and is_between(pieces, side, target)",
                "A stone that moves in between two enemies, next to it in one line, is captured, unless its move "
                "captures something.",
                lambda prey: not prey,
            ),
        ],
    ),
    Rule(
        "illegal-move",
        "@code@/@play@.py",
        "Games with illegal moves do not end as agreed.",
        [
            Option('return other, "illegal", moves', "Who makes an illegal move has lost (`illegal`).", "lost"),
            Option(
                "side, other = other, side; continue", "An illegal move is not made, and the turn is over.", "skipped"
            ),
            Option(
                "continue  # another try",
                "An illegal move is not made, and the same side moves again: the next move is its own.",
                "again",
            ),
        ],
    ),
    numbers(
        "few-pieces",
        "@code@/@ends@.py",
        "Games end too early, or do not end, where a side has few pieces.",
        (2, 3, 4),
        "< {}:",
        "Who has fewer than {} pieces, the chief among them, has lost.",
    ),
    numbers(
        "repeated-position",
        "@code@/@ends@.py",
        "Games in which moves are repeated end too early, or too late.",
        (2, 3, 4),
        "repeated >= {}",
        "A game is a draw when a side makes the same position for time number {} by its moves.",
    ),
    numbers(
        "quiet-moves",
        "@code@/@ends@.py",
        "Games without captures end too early, or too late.",
        (8, 10, 12),
        "quiet >= {}",
        "A game is a draw after {} moves of both sides, one behind the other, by which nothing is captured.",
    ),
    Rule(
        "record-without-end",
        "@code@/@ends@.py",
        "Games whose records have no end have the wrong result.",
        [
            Option(
                'return counted(pieces, captures, side, other), "unfinished"',
                "A record that has no end is counted (`unfinished`).",
                "counted",
            ),
            Option('return "draw", "unfinished"', "A record that has no end is a draw (`unfinished`).", "draw"),
            Option(
                'return "open", "unfinished"',
                "A record that has no end is `open` (`unfinished`), and the table is without it.",
                "open",
            ),
            Option(
                'return other, "unfinished"',
                "In a record that has no end, the side has lost that is to move (`unfinished`).",
                "lost",
            ),
        ],
    ),
    Rule(
        "counted-game",
        "@code@/@ends@.py",
        "Where a game is counted, the wrong side wins.",
        [
            Option(
                "strength(pieces, one)",
                "Where a game is counted, the side with more pieces wins.",
                lambda stones, chiefs, captures: stones + chiefs,
            ),
            Option(
                "captures[one]",
                "Where a game is counted, the side with more captures wins.",
                lambda stones, chiefs, captures: captures,
            ),
            Option(
                "sum(1 + 2 * sign.isupper() for sign in pieces.values() if sign.lower() == one)",
                "Where a game is counted, the side with more points wins: 1 for a stone and 3 for a chief.",
                lambda stones, chiefs, captures: stones + 3 * chiefs,
            ),
            Option(
                "list(pieces.values()).count(one)",
                "Where a game is counted, the side with more stones wins: chiefs do not count.",
                lambda stones, chiefs, captures: stones,
            ),
        ],
    ),
    Rule(
        "repeated-game",
        "@code@/report.py",
        "Of games with two records, the wrong one holds.",
        [
            Option(
                "games.setdefault(game.number, game)",
                "Of records with one number, the one whose file is first in the alphabet holds.",
                lambda rows: rows[0],
            ),
            Option(
                "games[game.number] = game",
                "Of records with one number, the one whose file is last in the alphabet holds.",
                lambda rows: rows[-1],
            ),
            Option(
                "games[game.number] = max(game, games.get(game.number, game), key=lambda one: one.date)",
                "Of records with one number, the one with the latest date holds.",
                lambda rows: max(rows, key=lambda row: row.date),
            ),
            Option(
                "games[game.number] = min(game, games.get(game.number, game), key=lambda one: one.date)",
                "Of records with one number, the one with the earliest date holds.",
                lambda rows: min(rows, key=lambda row: row.date),
            ),
        ],
    ),
    Rule(
        "points-of-games",
        "@code@/table.py",
        "The points are not those of our league.",
        [
            Option(f"{win}, {draw}, {defeat}", f"A victory has {win} points, a draw {draw}, a defeat {defeat}.", row)
            for row in ((3, 1, 0), (2, 1, 0), (4, 2, 1), (5, 2, 0))
            for win, draw, defeat in [row]
        ],
    ),
    Rule(
        "bonus-point",
        "@code@/table.py",
        "Some players have a point more or less than they should.",
        [
            Option(
                "outcome == 0 and suffered == 0",
                "Who wins without a loss of pieces gets one more point.",
                lambda outcome, made, suffered: outcome == 0 and not suffered,
            ),
            Option(
                "outcome == 0 and made > 0",
                "Who wins and has made a capture gets one more point.",
                lambda outcome, made, suffered: outcome == 0 and made,
            ),
            Option(
                "outcome == 2 and made > 0",
                "Who loses and has made a capture gets one more point.",
                lambda outcome, made, suffered: outcome == 2 and made,
            ),
            Option(
                "outcome == 1 and made > suffered",
                "Who has more captures than the enemy, in a draw, gets one more point.",
                lambda outcome, made, suffered: outcome == 1 and made > suffered,
            ),
        ],
    ),
    Rule(
        "tie-break-of-table",
        "@code@/table.py",
        "Players with equal points are in the wrong order.",
        [
            Option(
                "-wins[one], one",
                "Of players with equal points, who has more victories is first.",
                lambda row: -row.wins,
            ),
            Option(
                "-made[one], one",
                "Of players with equal points, who has made more captures is first.",
                lambda row: -row.made,
            ),
            Option(
                "-net[one], one",
                "Of players with equal points, the larger difference of captures made and suffered is first.",
                lambda row: row.suffered - row.made,
            ),
            Option(
                "played[one], one",
                "Of players with equal points, who has fewer games is first.",
                lambda row: row.played,
            ),
        ],
    ),
    Rule(
        "line-of-result",
        "@code@/lines.py",
        "The newspaper does not print the results any more.",
        [
            Option(
                'f"{g.number}: {g.winner}, {g.reason} ({g.moves} moves, {g.captures_first}:{g.captures_second})"',
                "A line of `results` is such as `17: @first@, few (31 moves, 5:2)`, captures of `@first@` first.",
                "{0}: {1}, {2} ({3} moves, {4}:{5})",
            ),
            Option(
                'f"{g.winner} {g.number} {g.captures_first}-{g.captures_second} {g.reason}/{g.moves}"',
                "A line of `results` is such as `@first@ 17 5-2 few/31`, captures of `@first@` first, moves last.",
                "{1} {0} {4}-{5} {2}/{3}",
            ),
            Option(
                'f"{g.number};{g.reason};{g.winner};{g.moves};{g.captures_second};{g.captures_first}"',
                "A line of `results` is such as `17;few;@first@;31;2;5`: moves, captures of `@second@`, of `@first@`.",
                "{0};{2};{1};{3};{5};{4}",
            ),
            Option(
                'f"[{g.number}] {g.moves} {g.reason} {g.winner} {g.captures_first}+{g.captures_second}"',
                "A line of `results` is such as `[17] 31 few @first@ 5+2`: captures of `@first@` before the +.",
                "[{0}] {3} {2} {1} {4}+{5}",
            ),
        ],
    ),
    Rule(
        "line-of-place",
        "@code@/lines.py",
        "The table on the wall cannot be filled in.",
        [
            Option(
                'f"{rank}. {name} {points} ({played}, {made})"',
                "A line of the table is RANK. NAME POINTS (GAMES, CAPTURES).",
                "{0}. {1} {2} ({3}, {4})",
            ),
            Option(
                'f"{name} ({rank}): {points} of {played}, {made} captures"',
                "A line of the table is NAME (RANK): POINTS of GAMES, CAPTURES captures.",
                "{1} ({0}): {2} of {3}, {4} captures",
            ),
            Option(
                'f"{points:3} {made:3} {played:2} {rank}. {name}"',
                "A line of the table is POINTS CAPTURES GAMES RANK. NAME; the first three have 3, 3 and 2 columns.",
                "{2:3} {4:3} {3:2} {0}. {1}",
            ),
            Option(
                'f"{rank};{points};{name};{made};{played}"',
                "A line of the table is RANK;POINTS;NAME;CAPTURES;GAMES.",
                "{0};{2};{1};{4};{3}",
            ),
        ],
    ),
    Rule(
        "row-of-board",
        "@code@/lines.py",
        "The boards are not printed as agreed.",
        [
            Option(
                '" ".join(line)', "Boards are printed with a space between squares.", lambda line, n: " ".join(line)
            ),
            Option('f"|{line}|"', "Boards are printed with `|` on both sides.", lambda line, n: f"|{line}|"),
            Option(
                'line.replace(".", "-")',
                "Boards are printed with `-` for empty squares.",
                lambda line, n: line.replace(".", "-"),
            ),
            Option(
                'f"{number + 1:2} {line}"',
                "Rows of boards are printed behind their numbers from 1, the uppermost one first, whatever moves call "
                "them, in two columns and with a space behind.",
                lambda line, n: f"{n + 1:2} {line}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "place way steps sign target side other run end prey closer mover pieces column number line rest heads value "
    "passes positions doomed chiefs between word winner loser opening record size own foreign points wins made net "
    "outcome suffered gains losses rank behind is_inside is_free ways_of reach_of target_of worth strength captured "
    "is_between heads_of pieces_of words_of order_of"
)
