"""Messages about an instrument each, of the template `exchange`, in which each rule decides something.

A scene has messages of three days. A word is `MEMBER:SIDE:LOTS:PRICE`, and perhaps a validity (else `day`);
`MEMBER:cancel:N` and `MEMBER:change:N:LOTS:PRICE` are about order N of the scene. Prices are ticks more than the
reference price, or per cent of it with `%`, and `m` for a market order. Members `a` to `e` have codes in the order of
the alphabet; `a` and `b` are banks, `r` is a private customer, `p`, `q` and `u` sell nothing else. `=` is a message of
the same time as the one before, `<` one before the opening, `>` one behind the closing, `~` one late in the afternoon.
"""

_NOTHING = ""


def _sales(member: str, count: int) -> str:
    """Return sales of one lot, each to another member; every second one comes behind the purchase."""
    words = [
        [f"{member}:sell:1:+0", f"{'abcde'[number % 5]}:buy:1:+0"][:: 1 - number % 2 * 2] for number in range(count)
    ]
    return " ".join(word for pair in words for word in pair)


SCENES: tuple[tuple[str, str, str], ...] = (
    ("a:sell:1:+0 =b:sell:1:+0 c:buy:1:+0", _NOTHING, _NOTHING),
    ("b:sell:1:+0 a:buy:1:+0 b:sell:1:+1 a:buy:1:+1 b:sell:1:+2 =c:sell:1:+3", _NOTHING, _NOTHING),
    ("b:sell:1:+0 a:buy:1:+0 =b:cancel:1", _NOTHING, _NOTHING),
    ("a:sell:1:+0:gtc =a:sell:1:+0:gtc c:buy:1:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+0 b:sell:3:+0 c:sell:2:+0 d:buy:1:+0", _NOTHING, _NOTHING),
    ("a:buy:1:+0 b:buy:1:+1 c:sell:1:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+1 b:sell:1:+0 d:buy:1:+2", _NOTHING, _NOTHING),
    ("a:sell:1:+0 b:buy:1:+3", _NOTHING, _NOTHING),
    ("a:sell:1:-1:gtc b:sell:1:+1", _NOTHING, _NOTHING),
    ("a:buy:1:+4 b:sell:1:+1", _NOTHING, _NOTHING),
    ("a:sell:1:+0 b:sell:1:+1 a:buy:2:+2", _NOTHING, _NOTHING),
    ("a:sell:2:+1 c:buy:1:+1 b:buy:4:m", _NOTHING, _NOTHING),
    ("a:sell:1:+0 b:buy:2:+0:now", _NOTHING, _NOTHING),
    ("a:sell:3:+0 b:buy:2:+0:now", _NOTHING, _NOTHING),
    # Changes.
    ("a:sell:2:+0 b:sell:1:+0 a:change:1:1:+0 c:buy:1:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+0 b:sell:2:+0 a:change:1:2:+0 c:buy:2:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+4 b:buy:1:+0 a:change:1:1:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+4 a:change:1:3:+3", _NOTHING, _NOTHING),
    ("a:sell:1:+1 b:cancel:1 b:sell:1:+2 c:cancel:1", _NOTHING, _NOTHING),
    ("a:sell:1:+1 a:cancel:1 b:buy:1:+1", _NOTHING, _NOTHING),
    # Ticks, lots, limits of prices, and times.
    ("a:buy:1:-1.4 b:sell:1:+1.4", _NOTHING, _NOTHING),
    ("a:buy:2.5:-1", _NOTHING, _NOTHING),
    (
        "a:sell:1:+5% b:sell:1:+10% c:sell:1:+20% d:sell:1:+6% a:sell:1:+15% b:sell:1:+21% c:buy:1:-25% d:buy:1:-1%",
        _NOTHING,
        _NOTHING,
    ),
    ("a:sell:1:+4% b:buy:1:+4%", "c:sell:1:+9% d:sell:1:+14% a:sell:1:+24%", _NOTHING),
    ("<a:sell:1:+0:gtc b:buy:1:+0", _NOTHING, _NOTHING),
    ("a:sell:1:+2:gtc", "<a:cancel:1 b:buy:1:+2", _NOTHING),
    (">a:sell:1:+0:gtc", _NOTHING, _NOTHING),
    # Private customers.
    ("r:sell:5:+0 a:buy:5:+0", _NOTHING, _NOTHING),
    ("r:sell:5:+1", _NOTHING, _NOTHING),
    ("a:sell:3:+0 r:buy:3:+0", "r:sell:3:+0 b:buy:3:+0", _NOTHING),
    # Orders of several days.
    ("~a:sell:1:+0:gtc", "b:sell:1:+0:gtc c:buy:1:+0", _NOTHING),
    ("a:sell:1:+1:gtc b:sell:1:+2:day", "b:sell:1:+1:gtc", "d:sell:1:+3"),
    # Fees.
    (_sales("p", 5), _NOTHING, _NOTHING),
    (_sales("q", 7), _NOTHING, _NOTHING),
    (_sales("u", 9), _NOTHING, _NOTHING),
    ("a:sell:9:+0 b:buy:7:+0 c:sell:60:+1 d:buy:50:+1", _NOTHING, _NOTHING),
    # Costs and profits.
    (
        "b:sell:2:+0 a:buy:2:+0 b:sell:2:+4 a:buy:2:+4 a:sell:3:+9 c:buy:3:+9 a:sell:1:+6 c:buy:1:+6 c:sell:1:-4 "
        "b:buy:1:-4",
        _NOTHING,
        _NOTHING,
    ),
    ("b:sell:2:+0 a:buy:2:+0 b:sell:3:+4 a:buy:3:+4", "a:sell:1:+8 d:buy:1:+8 a:sell:4:+7 d:buy:4:+7", _NOTHING),
    ("a:sell:1:+0 b:buy:1:+0 a:sell:3:+4 c:buy:3:+4 d:sell:1:+1 e:buy:1:+1", _NOTHING, "e:sell:1:+2 a:buy:1:+2"),
)
#: Scenes whose reference price is not drawn: prices of four and of five digits, and of thousands.
USUAL = {"a:sell:1:-1:gtc b:sell:1:+1": 10_000, "a:sell:1:+0 b:buy:1:+3": 105_000, "a:buy:2.5:-1": 234_000}
#: Scenes in which the private customer holds something: lots of each holding.
HELD = {"r:sell:5:+0 a:buy:5:+0": (2, 1), "r:sell:5:+1": (4, 1)}
