"""Files of the template `agenda`; what stands between @ is drawn."""

#: Names of zones, and their offsets from UTC in minutes.
ZONES = {
    "bern": 60,
    "delhi": 330,
    "helsinki": 120,
    "kathmandu": 345,
    "quito": -300,
    "stjohns": -210,
    "tokyo": 540,
    "utc": 0,
}

AGENDA = """#!/bin/sh
# Prints the events of some days. Usage: bin/agenda FOLDER FROM DAYS
ROOT=$(cd "$(dirname "$0")/.." && pwd)
"$ROOT/bin/occurrences" "$@" | awk -f "$ROOT/@app@/show.awk"
"""

HOURS = """#!/bin/sh
# Prints how long the events of some days are, by tag. Usage: bin/hours FOLDER FROM DAYS
ROOT=$(cd "$(dirname "$0")/.." && pwd)
TAB=$(printf '\\t')
"$ROOT/bin/occurrences" "$@" | awk -f "$ROOT/@app@/hours.awk" | LC_ALL=C sort -t "$TAB" @order_of_tags@ | cut -f 1,3
"""

FREE = """#!/bin/sh
# Prints when nothing is planned on the working days among some days. Usage: bin/free FOLDER FROM DAYS
ROOT=$(cd "$(dirname "$0")/.." && pwd)
"$ROOT/bin/occurrences" "$@" | python3 -S -E "$ROOT/@app@/free.py" "$@"
"""

OCCURRENCES = """#!/bin/sh
# Prints a line for each time that an event takes place: day, first minute, last minute, title, tag.
ROOT=$(cd "$(dirname "$0")/.." && pwd)
TAB=$(printf '\\t')
python3 -S -E "$ROOT/@app@/expand.py" "$@" | LC_ALL=C sort -t "$TAB" -k1,1 -k2,2n @order_of_ties@ | uniq
"""

EXPAND = '''"""Print all times at which events of some days take place, in the time of the own zone."""
import sys
from datetime import date, timedelta

from calendars import events
from daysoff import DaysOff
from repeat import dates
from settings import ROOT, load
from zones import shift


def main():
    first = date.fromisoformat(sys.argv[2])
    last = first + timedelta(days=int(sys.argv[3]) - 1)
    conf, off = load(), DaysOff(ROOT / "etc" / "daysoff.txt")
    for event in events(sys.argv[1]):
        for planned in dates(event, off):
            start, minute = shift(planned, event.minute, event.zone, conf["zone"])
            if first <= start <= last:
                print(start, minute, minute + event.length, event.title, event.tag, sep="\\t")


main()
'''

CALENDARS = r'''"""Read the calendars of a folder and of all folders in it: files that end with .txt."""
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace


def minutes(piece):
    """Return the minutes of a length such as 45m, 2h or 1h30m."""
    hours, rest = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", piece).groups()
    return int(hours or 0) * 60 + int(rest or 0)


def read(line):
    """Read DAY TIME ZONE LENGTH REPEAT TAG EXCEPT TITLE, with the separator between them."""
    start, clock, zone, length, repeat, tag, without, title = line.split("@sep@", 7)
    hour, minute = clock.split(":")
    unit, _, count = repeat.partition(" ")
    unit, _, every = unit.partition("/")
    return SimpleNamespace(
        start=date.fromisoformat(start),
        minute=int(hour) * 60 + int(minute),
        zone=zone,
        length=minutes(length),
        unit=unit,
        every=int(every or 1),
        count=int(count or 1),
        tag=tag,
        without=without.split(","),
        title=title.replace("\t", " "),
    )


def events(folder):
    for path in sorted(Path(folder).rglob("*.txt")):
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            if line.strip() and not line.strip().startswith("#"):
                yield read(line)
'''

REPEAT = '''"""The days of an event."""
from calendar import monthrange
from datetime import date, timedelta


def later(start, unit, number):
    """Return the day some days, weeks, months or years later; None where there is none."""
    if unit in ("once", "daily", "weekly"):
        return start + timedelta(days=number * (7 if unit == "weekly" else 1))
    months = start.year * 12 + start.month - 1 + number * (12 if unit == "yearly" else 1)
    year, month = months // 12, months % 12 + 1
    length = monthrange(year, month)[1]
    if start.day > length:
        @month_without_day@
    return date(year, month, start.day)


def dates(event, off):
    """Yield the days on which an event takes place."""
    number = count = 0
    while @counted_repetitions@:
        planned = later(event.start, event.unit, number * event.every)
        number += 1
        if planned is not None and str(planned) not in event.without:
            count += 1
            if event.tag != @tag_on_days_off@ and off.has(planned):
                @on_day_off@
            yield planned
'''

DAYSOFF = '''"""Days on which nobody works."""
from datetime import timedelta

WEEKEND = @weekend@  # Monday is 0


class DaysOff:
    def __init__(self, path):
        lines = path.read_text(encoding="utf-8").splitlines()
        self.entries = {line.split()[0] for line in lines if line and not line.startswith("#")}

    def has(self, planned):
        if planned.weekday() in WEEKEND:
            return True
        return str(planned) in self.entries or str(planned)[5:] in self.entries

    def next(self, planned, step=1):
        """Return the first working day after a day, or before it where the step is -1."""
        while self.has(planned):
            planned += timedelta(days=step)
        return planned
'''

ZONES_TEXT = '''"""Zones, as offsets from UTC in minutes."""
from datetime import timedelta

from settings import ROOT


def offset(zone):
    for line in (ROOT / "etc" / "zones.txt").read_text(encoding="utf-8").splitlines():
        name, _, amount = line.partition(" ")
        if name == zone:
            hours, rest = amount[1:].split(":")
            return (-1 if amount[0] == "-" else 1) * (int(hours) * 60 + int(rest))
    raise SystemExit(f"no such zone: {zone}")


def shift(planned, minute, zone, own):
    """Return the day and the minute in the own zone."""
    days, minute = divmod(minute - offset(zone) + offset(own), 1440)
    return planned + timedelta(days=days), minute
'''

SETTINGS = '''"""Settings: lines of KEY = VALUE."""
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load():
    lines = (ROOT / "etc" / "agenda.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): setting.strip() for key, _, setting in pairs}
'''

FREE_TEXT = '''"""Print the free times of the working days."""
import sys
from datetime import date, timedelta

from daysoff import DaysOff
from settings import ROOT, load


def minute(clock):
    hour, rest = clock.split(":")
    return int(hour) * 60 + int(rest)


def gaps(spans, opens, closes, shortest):
    """Return the times in which nothing takes place; spans are in the order of their beginning."""
    result, end = [], opens
    for start, stop in sorted(spans):
        if min(start, closes) - end >= shortest:
            result.append((end, min(start, closes)))
        @pause@
    if closes - end >= shortest:
        result.append((end, closes))
    return result


def main():
    conf, off, busy = load(), DaysOff(ROOT / "etc" / "daysoff.txt"), {}
    for line in sys.stdin:
        planned, start, stop, *_ = line.split("\\t")
        planned = date.fromisoformat(planned)
        busy.setdefault(planned, []).append((int(start), int(stop)))
        busy.setdefault(planned + timedelta(days=1), []).append((int(start) - 1440, int(stop) - 1440))
    first = date.fromisoformat(sys.argv[2])
    for planned in (first + timedelta(days=number) for number in range(int(sys.argv[3]))):
        if off.has(planned):
            continue
        spans = gaps(busy.get(planned, []), minute(conf["opens"]), minute(conf["closes"]), int(conf["shortest"]))
        print(planned, *("%02d:%02d-%02d:%02d" % (*divmod(one, 60), *divmod(two, 60)) for one, two in spans))


main()
'''

SHOW_AWK = r"""# Shows lines of bin/occurrences as an agenda; what begins while something else goes on is marked.
BEGIN { FS = "\t" }
function clock(minute) { return sprintf("%02d:%02d", int(minute / 60), minute % 60) }
function end(minute) {
    if (minute >= 1440) return @past_midnight@
    return clock(minute)
}
$1 != shown {
    shown = $1
    busy = 0
    print @day_heading@
}
{
    mark = (@clash@) ? "! " : "  "
    print mark @event_line@
    if ($3 > busy) busy = $3
}
"""

HOURS_AWK = r"""# Adds lines of bin/occurrences by tag.
BEGIN { FS = "\t" }
{ total[$5] += $3 - $2 }
END {
    for (tag in total) {
        minutes = total[tag]
        print tag "\t" minutes "\t" @hours_of_tag@
    }
}
"""

CONF = """# All times are printed in the time of this zone.
zone = @zone@
# Free times are looked for between these hours.
opens = @opens@
closes = @closes@
# In minutes.
shortest = @shortest@
"""

DAYS_OFF = """# Days on which nobody works; without a year, in all years.
01-01 New Year
@single@ moving house
12-25 Christmas
12-26 Boxing Day
"""

FORMAT = """# Calendars

A calendar is a file that ends with `.txt`, in a folder or in one of the folders in it. A line is an event:

    DAY@sep@TIME@sep@ZONE@sep@LENGTH@sep@REPEAT@sep@TAG@sep@EXCEPT@sep@TITLE

- ZONE is the one in which DAY and TIME are; `etc/zones.txt` has the offset of each from UTC.
- LENGTH is such as `45m`, `2h` or `1h30m`.
- REPEAT is `once`, or how often and how many times: `daily 4`, `weekly 6`, `monthly 12`, `yearly 3`; `weekly/2 6` is
  every two weeks. Days are counted from DAY, in the event's zone, and so are days off.
- EXCEPT has days on which it does not take place, with commas between them. It may be empty. These are days of
  the repetition (in a month that lacks the day, the one in its place), before a day off moves them: what is moved onto
  one of them takes place.
- TITLE may have anything in it, the separator as well.

Empty lines and lines that begin with `#` are no events. What has the same day, times, title and tag takes place once,
be it the same event in two calendars, or repetitions of one event that were moved onto one day.

All programs read a folder, the day FROM, and a number of days, and leave out what begins before FROM.

`bin/agenda` marks with `!` what begins while another event of the day goes on. `bin/free` has a line for each working
day, with its free times between `opens` and `closes` of `etc/agenda.conf`. What began the day before and goes on after
midnight is not free. A free time has at least `shortest` minutes.

The office is in @zone@, and open from @opens@ to @closes@. Nobody plans anything for less than @shortest@ minutes.
"""
