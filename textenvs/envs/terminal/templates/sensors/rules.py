"""Rules that the programs of the template `sensors` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _rotated(value: int, byte: int) -> int:
    return ((value << 1 | value >> 7) & 0xFF) ^ byte


RULES = (
    Rule(
        "byte-order",
        "@lib@/@decode@.py",
        "Nothing is right since the library was updated: sensors are unknown.",
        [
            Option('ORDER = "<"', "In numbers of several bytes, the lowest byte comes first.", "<"),
            Option('ORDER = ">"', "In numbers of several bytes, the highest byte comes first.", ">"),
        ],
        shows=True,
    ),
    Rule(
        "checksum",
        "@lib@/@decode@.py",
        "Nearly all frames are bad.",
        [
            Option("value ^= byte", "The checksum is the exclusive or of the bytes.", lambda value, byte: value ^ byte),
            Option(
                "value = (value + byte) & 0xFF",
                "The checksum is the sum of the bytes, modulo 256.",
                lambda v, b: (v + b) & 255,
            ),
            Option(
                "value = (value - byte) & 0xFF",
                "The checksum and the sum of the bytes are 0, modulo 256.",
                lambda value, byte: (value - byte) & 255,
            ),
            Option(
                "value = ((value << 1 | value >> 7) & 0xFF) ^ byte",
                "For the checksum, what is there is rotated left by a bit before the exclusive or with the next byte.",
                _rotated,
            ),
        ],
        shows=True,
    ),
    Rule(
        "damaged-frame",
        "@lib@/@decode@.py",
        "Frames behind a bad one are not treated as agreed.",
        [
            Option("place = start; continue", "Behind the A5 5A of a bad frame, the next one is looked for.", "start"),
            Option(
                "place = end + 1; continue", "A bad frame is left out as a whole, with the length that it has.", "end"
            ),
            Option("place = len(data); continue", "Behind a bad frame, the rest of its file does not count.", "stop"),
        ],
    ),
    Rule(
        "room",
        "@lib@/@decode@.py",
        "The rooms in the figures do not exist.",
        [
            Option("sensor >> 8", "The room is the high byte of a sensor's number.", lambda n: n >> 8),
            Option("sensor & 0xFF", "The room is the low byte of a sensor's number.", lambda n: n & 0xFF),
            Option("sensor >> 12", "The room is the first hexadecimal digit of a sensor's number.", lambda n: n >> 12),
            Option(
                "sensor >> 4 & 0xFF",
                "The room is the two digits in the middle of a sensor's number.",
                lambda n: n >> 4 & 0xFF,
            ),
        ],
    ),
    Rule(
        "repeated-frame",
        "@lib@/clean.awk",
        "Values that were sent again are not treated as agreed.",
        [
            Option("return first", "Of readings of a sensor, kind and second, the first one holds.", lambda a, b: a),
            Option("return last", "Of readings of a sensor, kind and second, the last one holds.", lambda a, b: b),
            Option(
                "return first > last ? first : last",
                "Of readings of a sensor, kind and second, the highest holds.",
                max,
            ),
            Option(
                "return first < last ? first : last", "Of readings of a sensor, kind and second, the lowest holds.", min
            ),
        ],
    ),
    Rule(
        "calibration",
        "@lib@/clean.awk",
        "Readings of calibrated sensors are off.",
        [
            Option("offset = amounts[n]", "The last calibration holds.", lambda offsets: offsets[-1]),
            Option("offset += amounts[n]", "Calibrations add up.", sum),
            Option(
                "offset = offset ? offset : amounts[n]",
                "The first calibration holds for good.",
                lambda offsets: offsets[0],
            ),
        ],
    ),
    Rule(
        "figure",
        "@lib@/figures.awk",
        "The figures of rooms mean something else than before.",
        [
            Option(
                "return int(sum[key] / count[key] + 9999) - 9999",
                "A figure is the mean, rounded down.",
                lambda v: sum(v) // len(v),
            ),
            Option("return least[key]", "A figure is the lowest reading.", min),
            Option("return most[key]", "A figure is the highest reading.", max),
            Option(
                "return most[key] - least[key]",
                "A figure is the highest reading less the lowest.",
                lambda v: max(v) - min(v),
            ),
            Option("return last[key]", "A figure is the last reading of the hour.", lambda v: v[-1]),
        ],
    ),
    Rule(
        "written-value",
        "@lib@/figures.awk",
        "The display does not show the figures any more.",
        [
            Option('return sprintf("%.1f", value / 10)', "A figure is written such as 21.5.", "{0:.1f}"),
            Option("return value", "A figure is written in tenths, such as 215.", "{1}"),
            Option('return sprintf("%+.1f", value / 10)', "A figure is written such as +21.5.", "{0:+.1f}"),
            Option('return sprintf("%06.1f", value / 10)', "A figure is written such as 0021.5.", "{0:06.1f}"),
        ],
    ),
    Rule(
        "zone",
        "@lib@/figures.awk",
        "The hours of the figures are not ours.",
        [
            Option("$1", "Hours are those of UTC.", 0),
            Option("($1 + 3600)", "Hours are those of UTC and 1 more.", 3600),
            Option("($1 + 19800)", "Hours are those of UTC and 5:30 more.", 19800),
            Option("($1 - 10800)", "Hours are those of UTC less 3.", -10800),
        ],
    ),
    Rule(
        "order-of-figures",
        "bin/report",
        "The figures are in the wrong order.",
        [
            Option("sort -k1,1n -k2,2 -k3,3n", "Figures are sorted by room, kind and hour.", lambda row: row),
            Option(
                "sort -k3,3n -k1,1n -k2,2",
                "Figures are sorted by hour, room and kind.",
                lambda row: (row[2], row[0], row[1]),
            ),
            Option(
                "sort -k2,2 -k1,1n -k3,3n",
                "Figures are sorted by kind, room and hour.",
                lambda row: (row[1], row[0], row[2]),
            ),
            Option(
                "sort -k1,1nr -k3,3n -k2,2",
                "Figures are sorted by room, the highest first, then by hour and kind.",
                lambda row: (-row[0], row[2], row[1]),
            ),
        ],
    ),
    numbers(
        "alarm-readings",
        "@lib@/@alarms@.awk",
        "There are alarms that were not agreed, or some are missing.",
        (1, 2, 3),
        "needed = {}",
        "An alarm needs {} readings beyond a limit, one after the other.",
    ),
    Rule(
        "at-limit",
        "@lib@/@alarms@.awk",
        "Readings at a limit are not treated as agreed.",
        [
            Option("value > high[$4] || value < low[$4]", "A reading at a limit is not beyond it.", 0),
            Option("value >= high[$4] || value <= low[$4]", "A reading at a limit is beyond it.", -1),
            Option(
                "value > high[$4] + 5 || value < low[$4] - 5", "A reading is beyond a limit by more than 5 tenths.", 5
            ),
        ],
    ),
    Rule(
        "alarm-end",
        "@lib@/@alarms@.awk",
        "Alarms end too early or too late.",
        [
            Option("calm[key] > 0", "An alarm ends with the first reading that is not beyond a limit.", "first"),
            Option(
                "calm[key] > 1",
                "An alarm ends with the second reading, of one after the other, not beyond a limit.",
                "second",
            ),
            Option(
                "(value <= high[$4] - 10 && value >= low[$4] + 10)",
                "An alarm ends with the first reading that is within the limits by 10 tenths or more.",
                "within",
            ),
        ],
    ),
    Rule(
        "alarm-line",
        "@lib@/@alarms@.awk",
        "The pager does not understand the alarms any more.",
        [
            Option(
                'print who[key] ";" what[key] ";" since[key] ";" until',
                "Alarms are NAME;KIND;SINCE;UNTIL.",
                "{0};{1};{2};{3}",
            ),
            Option(
                'print since[key] ";" until ";" what[key] ";" who[key]',
                "Alarms are SINCE;UNTIL;KIND;NAME.",
                "{2};{3};{1};{0}",
            ),
            Option(
                'print what[key] ";" who[key] ";" since[key] ";" until',
                "Alarms are KIND;NAME;SINCE;UNTIL.",
                "{1};{0};{2};{3}",
            ),
            Option(
                'print until ";" who[key] ";" what[key] ";" since[key]',
                "Alarms are UNTIL;NAME;KIND;SINCE.",
                "{3};{0};{1};{2}",
            ),
        ],
    ),
    Rule(
        "order-of-alarms",
        "bin/report",
        "The alarms are in the wrong order.",
        [
            Option("-t';' -k1,1 -k2,4", "Alarms are sorted by their lines.", 1),
            Option("-t';' -k1,1r -k2,4r", "Alarms are sorted by their lines, backwards.", -1),
        ],
    ),
    Rule(
        "lost-frames",
        "@lib@/sensors.awk",
        "The numbers of lost frames are not credible.",
        [
            Option("if (gap < 0) gap += 256", "A seq that is lower than before has passed 255.", lambda gap: gap % 256),
            Option(
                "if (gap < 0) gap = 0",
                "A seq that is lower than before is that of a restart: nothing was lost.",
                lambda g: max(g, 0),
            ),
            Option(
                "gap = gap % 256 != 0",
                "A gap counts as one lost frame, however long it is.",
                lambda gap: int(gap % 256 != 0),
            ),
        ],
    ),
    Rule(
        "counter-restart",
        "@lib@/sensors.awk",
        "The power of some meters is not credible.",
        [
            Option(
                "if (grown < 0) grown += 16777216",
                "A meter that is lower than before has passed 16777215.",
                lambda g, n: g % 2**24,
            ),
            Option(
                "if (grown < 0) grown = $5",
                "A meter that is lower than before has begun with 0 again.",
                lambda g, n: n if g < 0 else g,
            ),
            Option(
                "if (grown < 0) grown = 0",
                "Where a meter is lower than before, nothing is added.",
                lambda g, n: max(g, 0),
            ),
        ],
    ),
    numbers(
        "door-bit",
        "@lib@/sensors.awk",
        "Open doors are shut in the report, and others open.",
        (0, 2, 4, 6),
        "2 ^ {}",
        "Bit {} of a status is an open door; bit 0 is the lowest one.",
    ),
    Rule(
        "battery",
        "@lib@/sensors.awk",
        "The batteries in the report are not what was agreed.",
        [
            Option("$5 < battery[$2]", "The battery in the report is the lowest one.", min),
            Option("$5 > battery[$2]", "The battery in the report is the highest one.", max),
            Option("1 == 1", "The battery in the report is the last one.", lambda values: values[-1]),
            Option("1 == 0", "The battery in the report is the first one.", lambda values: values[0]),
        ],
    ),
    numbers(
        "silent-minutes",
        "@lib@/sensors.awk",
        "Sensors are called silent that are not, or others are missing.",
        (30, 60, 90, 120),
        "> 60 * {}",
        "A sensor is silent that has sent nothing for more than {} minutes.",
    ),
)

IDENTIFIERS = (
    "stream body byte digits payload number counts place start length end decoder paths path chosen listed offsets "
    "since kinds amounts offset values heads rooms figure written least most finish run calm cells low high beyond "
    "who what names latest before gap grown meter door"
)
