"""Short games of the template `referee`, in which each rule decides something.

`a` is a stone of the side that begins and `A` its chief, `b` and `B` are those of the other side; behind them stand the
column and the line, from 0, of a board that may be turned. Both sides have pieces far away, a chief among them where a
scene has none, but for those of `-a` or `-b`; with `~a` or `~b` they are stones. `?` is a record that does not say who
begins. A move such as `24e2` is a column, a line, a direction and steps; `c` are those of a chief, and `d` one more.
"""

#: The moves of a record with comments, marks and numbers that mean nothing.
AGAIN = """1.{0}x! {{m; n, or resigns}} {1} {{two
lines; of it: resigns}} 2... {2}!? {{short}} {3}
; or {4}, or pass, or resigns
12. {4}xx {5} {6}"""

_STEPS = "13e1 16e1 23e1 26e1 33e1 36e1 43e1 46e1 53e1 56e1 63e1 66e1"
_LATER = "17e1 13e1 27e1 23e1 37e1 33e1 47e1 43e1 57e1 53e1 67e1"
_BACK = " ".join(["pass 37w1 pass 27e1"] * 3)
SCENES = (
    ("a24", "24e2"),
    ("a24", "24e3"),
    ("a24", "24e4"),
    ("a24", "24e5"),
    ("A24", "24ec"),
    ("A24", "24ed"),
    ("A26", "26nec"),
    ("A26", "26ned"),
    ("A24", "24e1"),
    ("A26", "26ne1"),
    ("a24 a34", "24e2"),
    ("a24 b34", "24e2"),
    ("a24 b44", "24e2"),
    # Lines of one, two and three enemies, one in a column, and lines that nothing closes.
    ("a26 b46 a56 b45 a54", "26e1 resigns"),
    ("a26 b46 a56 b45 a54", "26e1 pass resigns"),
    ("a26 b46 b56 a66 b45 b54 a63", "26e1"),
    ("a26 b46 b56 b66 a76 b45 b54 b63 a72", "26e1"),
    ("a26 b35 a34", "26e1"),
    ("a26 b46 b45", "26e1"),
    # Two lines at once.
    ("a37 b26 a16 b46 a56 b45 a54 b25 a14", "37n1"),
    ("a24 b04 b05", "24w1"),
    ("a24 b04 b05 a72 a74 a76", "24w1"),
    # Between enemies.
    ("b24 b44 b23 b45 a36", "36n2"),
    ("b24 b44 b23 b45 a36 a14 a12", "36n2"),
    ("b24 b44 b23 b45 A35", "35n1"),
    ("b24 b44 b23 b45 A25", "25ne1"),
    # Chiefs close, move, and are captured.
    ("a26 b46 A56", "26e1"),
    ("a26 b45 A54", "26e1"),
    ("A26 b46 a56 b45 a54", "26e1"),
    ("A27 b46 a56 b45 a54", "27ne1"),
    ("a26 B46 a56", "26e1"),
    ("a26 B45 a54", "26e1"),
    ("a26 b46 B56 a66", "26e1"),
    ("a26 b45 B54 a63", "26e1"),
    # Moves that are illegal.
    ("b24 a26", "24e1 24e1 26e1"),
    ("b24 a26", "24e1"),
    ("a24 b27", "24e1z 27e1"),
    # Few pieces.
    ("-b b72 B74 b76 a24", "24e1"),
    ("-b B74 b76 a24", "24e1"),
    ("-a a24 A26", "24e1"),
    # Quiet games, and games with repetitions.
    ("a13 b16", _STEPS),
    ("a26 b46 a56 b45 a54 a13 b17", f"26e1 {_LATER}"),
    ("a32 b62", "32s1 62s1 33s1 63s1 34s1 64s1 35s1 65s1"),
    ("a24", " ".join(["24e1 pass 34w1 pass"] * 4)),
    ("a24 b27", f"24e1 27e1 {_BACK}"),
    # Games that are counted.
    ("a26 b46 a56 b45 a54 b12 b32 b52 b72", "26e1 pass pass"),
    ("~a a24", "24e1 pass pass"),
    ("~b", "pass pass"),
    # Who begins?
    ("? a24 b27 b73", "24e1 27e1"),
    ("? a24 b27 b73", "24e1 27e1"),
    ("a24 b27", "24e1 27e1 agreed"),
    ("styled a24 b27", "24e1 27e1 34e1 37e1 44e1 47e1 agreed"),
)
