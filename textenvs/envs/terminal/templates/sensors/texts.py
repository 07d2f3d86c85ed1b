"""Files of the template `sensors`; what stands between @ is drawn."""

REPORT = """#!/bin/bash
# Reports on the dumps of loggers. Usage: bin/report FOLDER
set -u
export LC_ALL=C
ROOT=$(cd "$(dirname "$0")/.." && pwd)
LIB=$ROOT/@lib@
folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -S -E "$LIB/@decode@.py" "$folder"/dumps/*.hex > "$work/decoded"
grep '^#' "$work/decoded"
grep -v '^#' "$work/decoded" | sort -s -k1,1n -k2,2 -k3,3n |
    awk -f "$LIB/clean.awk" "$folder/sensors.tsv" "$folder/calibration.tsv" - > "$work/readings"

echo figures
awk -f "$LIB/figures.awk" "$work/readings" | @order_of_figures@
echo alarms
awk -f "$LIB/@alarms@.awk" "$folder/sensors.tsv" "$ROOT/etc/@limits@.tsv" "$work/readings" | sort @order_of_alarms@
echo sensors
awk -f "$LIB/sensors.awk" "$folder/sensors.tsv" "$work/readings" | sort
"""

DECODE = '''"""Decode dumps of loggers, which docs/protocol.md describes; print SECONDS SENSOR SEQ KIND VALUE ROOM."""
import struct
import sys
from pathlib import Path

SYNC = b"\\xa5\\x5a"
@byte_order@
HEAD = struct.Struct(ORDER + "BBHBI")
INVALID = -32768


def stream(path):
    lines = [line.partition("#")[0] for line in path.read_text().splitlines()]
    return bytes.fromhex(" ".join(lines))


def checksum(body):
    value = 0
    for byte in body:
        @checksum@
    return value


def digits(payload):
    return int(payload.hex())


def number(payload):
    return int.from_bytes(payload, "little" if ORDER == "<" else "big")


def temperature(payload):
    return struct.unpack(ORDER + "h", payload)[0]


KINDS = {
    1: ("temperature", temperature),
    2: ("humidity", lambda payload: payload[0] * 5),
    3: ("pressure", lambda payload: number(payload) // 10),
    4: ("power", number),
    5: ("status", number),
    6: ("battery", digits),
}


def frames(data, counts):
    """Yield the frames whose checksum is right: sensor, seq, seconds, kind, payload."""
    place = 0
    while (place := data.find(SYNC, place)) >= 0:
        start = place + len(SYNC)
        if start + HEAD.size > len(data):
            break
        length, kind, sensor, seq, seconds = HEAD.unpack_from(data, start)
        payload = start + HEAD.size
        end = payload + length
        if end >= len(data) or checksum(data[start:end]) != data[end]:
            counts["bad"] += 1
            @damaged_frame@
        counts["good"] += 1
        place = end + 1
        yield sensor, seq, seconds, kind, data[payload:end]


def main(paths):
    counts = {"good": 0, "bad": 0}
    for path in paths:
        for sensor, seq, seconds, kind, payload in frames(stream(Path(path)), counts):
            if kind not in KINDS:
                continue
            name, decoder = KINDS[kind]
            value = decoder(payload)
            if name == "temperature" and value == INVALID:
                continue
            print(seconds, f"{sensor:04x}", seq, name, value, @room@)
    print("# good", counts["good"], "bad", counts["bad"])


main(sys.argv[1:])
'''

CLEAN = """# Reads sensors, calibrations and readings by time; prints the readings that count, calibrated.
function chosen(first, last) {
    @repeated_frame@
}
FILENAME ~ /sensors\\.tsv$/ {
    sub(/\\t.*/, "")
    listed[tolower($0)] = 1
    next
}
FILENAME ~ /calibration\\.tsv$/ {
    if (/^#/) next
    offsets++
    since[offsets] = $1
    sensors[offsets] = tolower($2)
    kinds[offsets] = $3
    amounts[offsets] = $4
    next
}
!($2 in listed) { next }
{
    offset = 0
    for (n = 1; n <= offsets; n++) {
        if (sensors[n] == $2 && kinds[n] == $4 && since[n] <= $1) @calibration@
    }
    value = $5 + offset
    key = $1 SUBSEP $2 SUBSEP $4
    if (key in numbers) {
        values[numbers[key]] = chosen(values[numbers[key]], value)
        next
    }
    numbers[key] = ++count
    heads[count] = $1 " " $2 " " $3 " " $4
    values[count] = value
    rooms[count] = $6
}
END { for (n = 1; n <= count; n++) print heads[n], values[n], rooms[n] }
"""

FIGURES = """# Reads readings; prints ROOM KIND HOUR FIGURE, with the hour of the day here.
function figure(key) {
    @figure@
}
function written(value) {
    @written_value@
}
$4 == "temperature" || $4 == "humidity" || $4 == "pressure" {
    key = $6 " " $4 " " int(@zone@ / 3600) % 24
    if (!(key in count) || $5 < least[key]) least[key] = $5
    if (!(key in count) || $5 > most[key]) most[key] = $5
    count[key]++
    sum[key] += $5
    last[key] = $5
}
END { for (key in count) print key, written(figure(key)) }
"""

ALARMS = """# Reads names, limits, then readings; prints alarms: SENSOR KIND SINCE UNTIL.
function finish(key, until) {
    if (run[key] >= needed) @alarm_line@
    run[key] = calm[key] = 0
}
BEGIN { @alarm_readings@ }
FILENAME ~ /sensors\\.tsv$/ {
    split($0, cells, "\\t")
    names[tolower(cells[1])] = cells[2]
    next
}
FILENAME ~ /@limits@\\.tsv$/ {
    low[$1] = $2
    high[$1] = $3
    next
}
$4 in low {
    key = $2 SUBSEP $4
    value = $5
    beyond = @at_limit@
    if (beyond) {
        if (run[key] == 0) since[key] = $1
        run[key]++
        calm[key] = 0
        who[key] = names[$2]
        what[key] = $4
    } else if (run[key] > 0) {
        calm[key]++
        if (run[key] < needed || @alarm_end@) finish(key, $1)
    }
}
END { for (key in run) if (run[key] > 0) finish(key, "now") }
"""

SENSORS = """# Reads names, then readings; prints what is known of each sensor.
FILENAME ~ /sensors\\.tsv$/ {
    split($0, cells, "\\t")
    names[tolower(cells[1])] = cells[2]
    next
}
{
    now = $1
    if ($2 in latest && $3 != before[$2]) {
        gap = $3 - before[$2] - 1
        @lost_frames@
        lost[$2] += gap
    }
    before[$2] = $3
    latest[$2] = $1
}
$4 == "power" {
    grown = $2 in meter ? $5 - meter[$2] : 0
    @counter_restart@
    power[$2] += grown
    meter[$2] = $5
}
$4 == "status" { door[$2] = int($5 / @door_bit@) % 2 }
$4 == "battery" {
    if (!($2 in battery) || @battery@) battery[$2] = $5
}
END {
    for (id in names) {
        if (!(id in latest)) print names[id], "never"
        else if (now - latest[id] @silent_minutes@) print names[id], "silent"
        if (lost[id]) print names[id], "lost", lost[id]
        if (id in power) print names[id], "power", power[id]
        if (door[id]) print names[id], "open"
        if (id in battery) print names[id], "battery", battery[id]
    }
}
"""

LIMITS = """temperature\t@low_temperature@\t@high_temperature@
humidity\t@low_humidity@\t@high_humidity@
"""

PROTOCOL = """# Dumps, and the report

A dump (`dumps/*.hex`) is what a logger has received, in hexadecimal digits of either case; `#` begins a comment. Frames
may go on in the next line. Bytes between frames are noise. A frame is

    A5 5A | length (1) | kind (1) | sensor (2) | seq (1) | seconds (4) | payload (length) | checksum (1)

where the numbers in brackets are bytes. The checksum is of all bytes from the length to the end of the payload. A frame
that is cut off at the end of a file is bad. Seq is 255 at most, and then begins again with 0.

| kind | payload | |
|--:|---|---|
| 1 | temperature | 2 bytes with a sign, tenths of a degree; -32768 is no reading |
| 2 | humidity | 1 byte, halves of a percent |
| 3 | pressure | 3 bytes, Pa; printed in tenths of hPa, rounded down |
| 4 | power | 3 bytes, a meter that counts Wh |
| 5 | status | 1 byte, one of whose bits is an open door |
| 6 | battery | 2 bytes, decimal digits: 12 34 are 1234 hundredths of a volt |

Frames of other kinds are good, and say nothing. All values are tenths, except power, status and battery.

- `sensors.tsv`: number in hexadecimal digits, and name. Readings of sensors that are not in it do not count.
- `calibration.tsv`: seconds, sensor, kind and offset: it is added to the readings from that second on.
- `etc/@limits@.tsv`: the lowest and the highest value that cause no alarm: temperature from @low_temperature@ to
  @high_temperature@, humidity from @low_humidity@ to @high_humidity@.

The report has the number of good and bad frames; a figure for each room, kind (1 to 3) and hour; alarms, of one sensor
and kind each, with the seconds of their first reading and of their end (or `now`); and what is known of each sensor:
if it never sent anything or is silent (as seen from the last reading of all), the frames that were lost by their seq,
the power since the beginning, an open door (by the last status), and the battery.
"""
