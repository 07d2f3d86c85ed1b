"""The template *sensors*: dumps of loggers in hexadecimal digits are decoded, checked, calibrated and summed up.

It needs bash, awk (mawk is enough), coreutils, grep and Python 3.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...project import Check, Project, Question
from ..parts import ASKED, COLOURS, GOODS, asked_together, file_in_the_way, lost_permission, notes, token
from ..variation import Variant
from .faults import EDITS
from .rules import IDENTIFIERS, RULES
from .texts import ALARMS, CLEAN, DECODE, FIGURES, LIMITS, PROTOCOL, REPORT, SENSORS

_SYNC = b"\xa5\x5a"
_KINDS = {"temperature": 1, "humidity": 2, "pressure": 3, "power": 4, "status": 5, "battery": 6, "light": 9}
_MEASURED = ("temperature", "humidity", "pressure")
#: Minutes since the last frame of sensors: those of rules, and some between them.
_AGES = (30, 40, 60, 75, 90, 100, 120, 130)
#: Bits of the status, one for each option of the rule.
_BITS = (1, 4, 16, 64)
_DUMPS = ("2.hex", "attic.hex", "hall.hex")


@dataclass(frozen=True)
class _Reading:
    seconds: int
    sensor: int
    seq: int
    kind: str
    value: int


@dataclass(frozen=True)
class _Limits:
    """The lowest and highest values that cause no alarm, by kind."""

    temperature: tuple[int, int]
    humidity: tuple[int, int]

    def of(self, kind: str) -> tuple[int, int] | None:
        return {"temperature": self.temperature, "humidity": self.humidity}.get(kind)


@dataclass
class _Dump:
    """Sensors and frames, which are drawn one by one. Values are those of the report, before calibrations."""

    rng: random.Random
    variant: Variant
    begin: int
    names: dict[int, str] = field(default_factory=dict)
    seqs: dict[int, int] = field(default_factory=dict)
    frames: list[tuple[str, bytes]] = field(default_factory=list)
    calibrations: list[tuple[int, int, str, int]] = field(default_factory=list)

    def sensor(self, first: str = "", number: int = 0, *, listed: bool = True) -> int:
        """Draw the number of a sensor, whose first digit may be fixed; no two have the same digits behind it."""
        rng = self.rng
        used = {digit for id in self.seqs for digit in (id & 0xFF, id >> 4 & 0xFF)}
        while not number or 0xA5 in (number & 0xFF, number >> 8) or 0x5A in (number & 0xFF, number >> 8):
            candidate = int(f"{first or rng.choice('def')}{rng.randrange(4096):03x}", 16)
            number = 0 if {candidate & 0xFF, candidate >> 4 & 0xFF} & used else candidate
        self.seqs[number] = rng.randint(20, 90)
        if listed:
            self.names[number] = f"{rng.choice(COLOURS)} {rng.choice(GOODS)} {len(self.names)}"
        return number

    def payload(self, kind: str, value: int) -> bytes:
        order = self.variant["byte-order"]
        if kind == "battery":
            return bytes.fromhex(f"{value:04}")
        if kind in ("pressure", "power"):
            number = value if kind == "power" else value * 10 + 7
            return number.to_bytes(3, "little" if order == "<" else "big")
        sizes = {"temperature": "h"}
        data = value // 5 if kind == "humidity" else value
        return struct.pack(order + sizes.get(kind, "B"), data)

    def frame(self, sensor: int, minute: float, kind: str, payload: bytes, seq: int) -> bytes:
        seconds = self.begin + round(60 * minute)
        head = struct.pack(f"{self.variant['byte-order']}BBHBI", len(payload), _KINDS[kind], sensor, seq, seconds)
        return _SYNC + head + payload + bytes([self.checksum(head + payload)])

    def checksum(self, body: bytes) -> int:
        value = 0
        for byte in body:
            value = self.variant["checksum"](value, byte)
        return value

    def send(self, sensor: int, minute: float, kind: str, *values: int, file: str = "") -> None:
        """Add a frame; of several values, the later ones are sent again, with the same seq."""
        seq, file = self.seqs[sensor], file or self.rng.choice(_DUMPS[:2])
        for number, value in enumerate(values):
            frame = self.frame(sensor, minute, kind, self.payload(kind, value), seq)
            self.frames.append((file, frame) if number == 0 else (f"{file}+", frame))
        self.seqs[sensor] = (seq + 1) % 256

    def data(self, tail: bytes) -> dict[str, bytes]:
        """Return the bytes of the dumps, with noise; frames that are sent again come last, and then the ``tail``."""
        rng, files = self.rng, dict[str, bytes]()
        for name in _DUMPS:
            frames = [frame for file, frame in self.frames if file == name]
            rng.shuffle(frames)
            frames += [frame for file, frame in self.frames if file == f"{name}+"]
            noise = [bytes(rng.choices(range(0xA0), k=rng.choice([0, 0, 2, 5]))) for _ in frames]
            files[name] = b"".join(part for pair in zip(noise, frames, strict=True) for part in pair)
        files[_DUMPS[2]] += tail
        return files

    def files(self, data: Mapping[str, bytes]) -> dict[str, str]:
        rng = self.rng
        rows = [f"{number:04X}\t{name}" for number, name in self.names.items()]
        lines = [f"{self.begin + since} {sensor:04X} {kind} {n}" for since, sensor, kind, n in self.calibrations]
        files = {
            "sensors.tsv": "\n".join(rng.sample(rows, len(rows))) + "\n",
            "calibration.tsv": "\n".join(["# seconds sensor kind offset", *lines]) + "\n",
        }
        for name, content in data.items():
            digits = content.hex().upper() if name == _DUMPS[1] else content.hex(" ")
            width = 48
            parts = [digits[start : start + width] for start in range(0, len(digits), width)]
            parts[1] += f"  # {token(rng)}"
            files[f"dumps/{name}"] = "\n".join([f"# dump {token(rng)}", *parts]) + "\n"
        return files


def _draw_dump(rng: random.Random, variant: Variant, limits: _Limits) -> tuple[_Dump, dict[str, bytes]]:
    """Draw dumps in which each rule and each fault shows; return them, and the bytes of each."""
    dump = _Dump(rng, variant, 1_740_000_000 + 60 * rng.randint(0, 400_000))
    (low, high), end = limits.temperature, 200
    rest = rng.sample(range(16), 5)
    # These four share a high byte, a low byte, or a first digit.
    near = [0x1000 + (rest[0] << 8) + (rest[1] << 4) + rest[2] % 5, 0x1000 + (rest[0] << 8) + (rest[1] << 4) + 9]
    near += [0x2000 + (rest[3] << 8) + (near[0] & 0xFF), 0x1000 + (rest[4] << 8) + (rest[3] << 4) + 8]
    rooms = [dump.sensor(number=number) for number in near]
    dump.seqs[rooms[0]] = 79  # one pair of frames has 99 and 100, which as text have another order
    for minute in range(3, end, 7):
        for sensor in rooms:
            dump.send(sensor, minute, "temperature", rng.randint(low + 20, high - 20))
            dump.send(sensor, minute, "humidity", 5 * rng.randint(90, 110))
    frost, broken, air = dump.sensor("3"), dump.sensor("4"), dump.sensor("5")
    for minute in range(5, end, 11):
        dump.send(frost, minute, "temperature", rng.randint(-90, -30))
        dump.send(air, minute, "pressure", rng.randint(9600, 10500))
    dump.send(broken, 50, "temperature", -32768)
    dump.send(broken, 60, "humidity", 450)
    stranger = dump.sensor("6", listed=False)
    dump.send(stranger, 70, "pressure", 9999)
    _add_alarms(dump, limits)
    _add_meters(dump)
    _add_states(dump, end)
    data = dump.data(_damaged(dump))
    # A frame that is cut off: it lacks its checksum.
    data[_DUMPS[1]] += dump.frame(air, end, "pressure", dump.payload("pressure", 9999), 7)[:-1]
    return dump, data


def _add_alarms(dump: _Dump, limits: _Limits) -> None:
    """Add runs of one to three readings beyond a limit or at it, and ends of several kinds."""
    low, high = limits.temperature
    calm, over = (low + high) // 2, [high + 20 + 7 * number for number in range(3)]
    runs = (
        *([over[0]], [calm, calm], over[:2], [calm, calm], over, [calm, calm], over, [high - 3, high - 3, calm, calm]),
        *([high] * 3, [calm, calm], [high + 3] * 3, [calm, calm], [low] * 3, [calm, calm], [low - 30] * 3),
    )
    sensor = dump.sensor("7")
    for number, value in enumerate(value for run in runs for value in run):
        dump.send(sensor, 4 + 5 * number, "temperature", value)
        dump.send(sensor, 4 + 5 * number, "humidity", 500)


def _add_meters(dump: _Dump) -> None:
    """Add meters: with values that are sent again, calibrated ones, and one that begins anew."""
    rng = dump.rng
    for pair in ((1000, 1040), (1090, 1030)):
        meter, start = dump.sensor("8"), rng.randint(10, 900)
        dump.send(meter, 20, "power", start)
        dump.send(meter, 90, "power", *(start + value for value in pair))
        dump.calibrations += [(60 * 90, meter, "power", 111)]
    calibrated = dump.sensor("9")
    for minute in (10, 60, 110):
        dump.send(calibrated, minute, "power", 5000 + 10 * minute)
    dump.calibrations += [(60 * 60, calibrated, "power", 300), (60 * 110, calibrated, "power", 700)]
    dump.send(calibrated, 140, "battery", 1111)
    restarted = dump.sensor("9")
    for minute, value in ((11, 16_776_000), (31, 16_777_000), (51, 300), (71, 900)):
        dump.send(restarted, minute, "power", value + rng.randint(0, 90))


def _add_states(dump: _Dump, end: int) -> None:
    """Add doors, batteries, sensors that fall silent, lost frames, a restart, and a frame within another."""
    rng = dump.rng
    for number, bit in enumerate(_BITS):
        door, other = dump.sensor(), rng.choice([2, 8, 32, 128])
        dump.send(door, 30 + number, "status", (255 - bit) & ~other)
        dump.send(door, 60 + number, "status", bit | other)
    again = dump.sensor()
    dump.send(again, 66, "status", 255, 0)
    battery = dump.sensor()
    for minute, volts in ((20, 1287), (40, 1311), (60, 1253), (80, 1299)):
        dump.send(battery, minute, "battery", volts + rng.randint(0, 9))
    for age in _AGES:
        dump.send(dump.sensor(), end - age, "humidity", 500)
    dump.send(dump.sensor(), end, "humidity", 500)
    dump.sensor()  # never sends
    for gaps in ((3, 1), (0, 2)):
        lossy = dump.sensor()
        dump.seqs[lossy] = 245
        for minute in range(10, end, 9):
            dump.send(lossy, minute, "humidity", 500)
            if minute < 30:
                dump.seqs[lossy] += gaps[minute > 20]
    restarted = dump.sensor()
    dump.seqs[restarted] = 200
    for minute in (12, 24, 36, 48):
        dump.send(restarted, minute, "humidity", 500)
        dump.seqs[restarted] = 0 if minute == 24 else dump.seqs[restarted]
    inner = dump.frame(battery, 90, "battery", bytes.fromhex("0101"), 99)
    dump.frames.append((_DUMPS[0], dump.frame(battery, 85, "light", inner, dump.seqs[battery])))


def _damaged(dump: _Dump) -> bytes:
    """Return the end of a dump: frames behind one with a wrong checksum, and behind one with a wrong length."""
    sensor = dump.sensor()
    frames = [
        dump.frame(sensor, 31 + 13 * number, "humidity", dump.payload("humidity", 400 + 5 * number), 10 + 3 * number)
        for number in range(6)
    ]
    wrong = frames[1][:-1] + bytes([frames[1][-1] ^ 0x11])
    # The length leads to the byte behind the next frame, which is not the checksum.
    long = bytearray(frames[2])
    long[2] += len(frames[3]) + 1
    end = dump.checksum(bytes(long[2:]) + frames[3]) ^ 0x22
    return frames[0] + wrong + frames[4] + bytes(long) + frames[3] + bytes([end % 0xA0]) + frames[5]


@dataclass(frozen=True)
class _Report:
    """The report on dumps by the rules of a project."""

    variant: Variant
    limits: _Limits
    dump: _Dump

    def text(self, data: Mapping[str, bytes]) -> str:
        counts, readings = [0, 0], list[_Reading]()
        for name in _DUMPS:
            readings += self._decoded(data[name], counts)
        readings = self._cleaned(readings)
        alarms = sorted(self._alarms(readings), reverse=self.variant["order-of-alarms"] < 0)
        lines = [f"# good {counts[0]} bad {counts[1]}", "figures", *self._figures(readings), "alarms", *alarms]
        return "\n".join([*lines, "sensors", *sorted(self._sensors(readings))])

    def _decoded(self, data: bytes, counts: list[int]) -> Iterator[_Reading]:
        order, place = self.variant["byte-order"], 0
        kinds = {number: kind for kind, number in _KINDS.items()}
        while 0 <= (place := data.find(_SYNC, place)) <= len(data) - 11:
            length, number, sensor, seq, seconds = struct.unpack_from(f"{order}BBHBI", data, place + 2)
            end = place + 11 + length
            good = end < len(data) and self.dump.checksum(data[place + 2 : end]) == data[end]
            counts[not good] += 1
            if not good:
                if self.variant["damaged-frame"] == "stop":
                    return
                place = place + 2 if self.variant["damaged-frame"] == "start" else end + 1
                continue
            kind, payload, place = kinds[number], data[place + 11 : end], end + 1
            value = self._value(kind, payload)
            if kind != "light" and (kind, value) != ("temperature", -32768):
                yield _Reading(seconds, sensor, seq, kind, value)

    def _value(self, kind: str, payload: bytes) -> int:
        order = self.variant["byte-order"]
        if kind == "battery":
            return int(payload.hex())
        number = int.from_bytes(payload, "little" if order == "<" else "big", signed=kind == "temperature")
        return number * 5 if kind == "humidity" else number // 10 if kind == "pressure" else number

    def _cleaned(self, readings: Sequence[_Reading]) -> list[_Reading]:
        """Return the readings that count, by time, with calibrated values."""
        cleaned = dict[tuple[int, int, str], _Reading]()
        for one in sorted(readings, key=lambda one: (one.seconds, f"{one.sensor:04x}", one.seq)):
            if one.sensor not in self.dump.names:
                continue
            offsets = [
                offset
                for since, sensor, kind, offset in self.dump.calibrations
                if (sensor, kind) == (one.sensor, one.kind) and self.dump.begin + since <= one.seconds
            ]
            value = one.value + (self.variant["calibration"](offsets) if offsets else 0)
            key = (one.seconds, one.sensor, one.kind)
            if key in cleaned:
                value = self.variant["repeated-frame"](cleaned[key].value, value)
            cleaned[key] = _Reading(one.seconds, one.sensor, cleaned.get(key, one).seq, one.kind, value)
        return [*cleaned.values()]

    def _figures(self, readings: Sequence[_Reading]) -> list[str]:
        values = dict[tuple[int, str, int], list[int]]()
        for one in readings:
            if one.kind in _MEASURED:
                hour = (one.seconds + self.variant["zone"]) // 3600 % 24
                values.setdefault((self.variant["room"](one.sensor), one.kind, hour), []).append(one.value)
        lines = list[str]()
        for key in sorted(values, key=self.variant["order-of-figures"]):
            value = self.variant["figure"](values[key])
            lines.append(" ".join(map(str, [*key, self.variant["written-value"].format(value / 10, value)])))
        return lines

    def _alarms(self, readings: Sequence[_Reading]) -> Iterator[str]:
        variant, groups = self.variant, dict[tuple[int, str], list[_Reading]]()
        for one in readings:
            groups.setdefault((one.sensor, one.kind), []).append(one)
        for (sensor, kind), group in groups.items():
            if (pair := self.limits.of(kind)) is None:
                continue
            (low, high), run, calm, since, spread = pair, 0, 0, 0, variant["at-limit"]
            rows: list[tuple[int | None, int]] = [*((one.value, one.seconds) for one in group), (None, 0)]
            for value, seconds in rows:
                if value is not None and (value > high + spread or value < low - spread):
                    since, run, calm = since if run else seconds, run + 1, 0
                elif run:
                    calm += 1
                    if value is not None and run >= variant["alarm-readings"] and not self._ends(value, pair, calm):
                        continue
                    if run >= variant["alarm-readings"]:
                        until = "now" if value is None else seconds
                        yield variant["alarm-line"].format(self.dump.names[sensor], kind, since, until)
                    run, calm = 0, 0

    def _ends(self, value: int, limits: tuple[int, int], calm: int) -> bool:
        if self.variant["alarm-end"] == "within":
            return limits[0] + 10 <= value <= limits[1] - 10
        return calm > (self.variant["alarm-end"] == "second")

    def _sensors(self, readings: Sequence[_Reading]) -> Iterator[str]:
        variant, now = self.variant, readings[-1].seconds
        for sensor, name in self.dump.names.items():
            own = [one for one in readings if one.sensor == sensor]
            values = {kind: [one.value for one in own if one.kind == kind] for kind in _KINDS}
            if not own:
                yield f"{name} never"
                continue
            if now - own[-1].seconds > 60 * variant["silent-minutes"]:
                yield f"{name} silent"
            lost = sum(
                variant["lost-frames"](two.seq - one.seq - 1)
                for one, two in zip(own, own[1:], strict=False)
                if two.seq != one.seq
            )
            if lost:
                yield f"{name} lost {lost}"
            power = values["power"]
            if power:
                grown = [variant["counter-restart"](b - a, b) for a, b in zip(power, power[1:], strict=False)]
                yield f"{name} power {sum(grown)}"
            if values["status"] and values["status"][-1] >> variant["door-bit"] & 1:
                yield f"{name} open"
            if values["battery"]:
                yield f"{name} battery {variant['battery'](values['battery'])}"


def draw(rng: random.Random, stated: Mapping[str, int] | None = None) -> Project:
    """Draw a project: names of files, limits, dumps, and a record of repairs."""
    limits = _Limits((rng.randint(10, 40), rng.randint(270, 330)), (rng.randint(150, 250), rng.randint(700, 800)))
    names: dict[str, object] = {
        "lib": rng.choice(["lib", "src", "share", "steps"]),
        "decode": rng.choice(["decode", "frames", "reader"]),
        "alarms": rng.choice(["alarms", "alerts", "watch"]),
        "limits": rng.choice(["limits", "bounds", "ranges"]),
        "low_temperature": limits.temperature[0],
        "high_temperature": limits.temperature[1],
        "high_degrees": limits.temperature[1] // 10,
        "low_humidity": limits.humidity[0],
        "high_humidity": limits.humidity[1],
    }
    variant = Variant.draw(rng, RULES, IDENTIFIERS, names, stated)
    texts = {
        "bin/report": REPORT,
        "@lib@/@decode@.py": DECODE,
        "@lib@/clean.awk": CLEAN,
        "@lib@/figures.awk": FIGURES,
        "@lib@/@alarms@.awk": ALARMS,
        "@lib@/sensors.awk": SENSORS,
        "etc/@limits@.tsv": LIMITS,
        "etc/@limits@-winter.tsv": LIMITS.replace("@high_temperature@", "250").replace("@low_humidity@", "300"),
    }
    files = variant.files(texts) | variant.document(rng)
    files["old/clean.awk"] = variant.outdated(CLEAN)
    files |= {"docs/protocol.md": variant.words(PROTOCOL), "docs/notes.md": notes(rng, "Notes on the loggers", 10)}
    dump, data = _draw_dump(rng, variant, limits)
    files |= {f"data/{name}": text for name, text in dump.files(data).items()}
    questions = _questions(rng, files, dump)
    fixed = frozenset(path for path in files if path.startswith(("data/", "repairs/")))

    def checks(fresh: random.Random) -> Sequence[Check]:
        drawn, content = _draw_dump(fresh, variant, limits)
        inputs = {f"d/{name}": text for name, text in drawn.files(content).items()}
        return [Check("report", "bin/report $IN/d", _Report(variant, limits, drawn).text(content), inputs)]

    about = (
        "`bin/report FOLDER` decodes the dumps of loggers in a folder such as `data/`, and reports on rooms, alarms "
        f"and sensors. `docs/protocol.md` describes dumps and report, and `{variant.page}` says what was agreed."
    )
    looks = ["ls * | head -70", f"cat bin/report docs/protocol.md etc/*.tsv {names['lib']}/*", "bin/report data"]
    faults = [
        *variant.edits(EDITS, files, looks),
        *variant.faults(rng, files, looks),
        file_in_the_way(
            f"{names['lib']}/struct.py",
            '"""How the house is built."""\n\nFLOORS = ["cellar", "ground", "attic"]\n',
            looks,
            "It ends with an AttributeError in a module that nobody has changed.",
        ),
        lost_permission("bin/report"),
    ]
    return Project(about, files, faults, checks, {"bin/report": 0o755}, fixed=fixed, questions=questions)


def _questions(rng: random.Random, files: dict[str, str], dump: _Dump) -> list[Question]:
    """Draw a record of repairs, as lines of digits of fixed width; ask about it."""
    sensors = rng.sample(sorted(dump.names), 12)
    costs = iter(rng.sample(range(100, 65_000), 1800))
    by_sensor, by_part = dict[int, list[tuple[int, str]]](), dict[int, list[tuple[int, str]]]()
    for month in range(rng.randint(18, 30)):
        name, lines = f"{2023 + month // 12}-{month % 12 + 1:02}", list[str]()
        for day in sorted(rng.choices(range(1, 29), k=60)):
            sensor, part, cost, order = rng.choice(sensors), rng.randint(160, 169), next(costs), token(rng)
            lines.append(f"{day:02}{sensor:04X}{part:02X}{cost:06}{order}")
            by_sensor.setdefault(sensor, []).append((cost, order))
            by_part.setdefault(part, []).append((cost, order))
        files[f"repairs/{name}.txt"] = "\n".join(lines) + "\n"
    files["repairs/README"] = (
        "Columns of a line: day 1-2, sensor 3-6, part 7-8 (both hexadecimal), cents 9-14, order 15-22\n"
    )
    return [
        asked_together(
            [_dearest_repair(dump.names[one], max(by_sensor[one])[1]) for one in rng.sample(sensors, ASKED)]
        ),
        asked_together([_cheapest_part(one, min(by_part[one])[1]) for one in rng.sample(sorted(by_part), ASKED)]),
    ]


def _dearest_repair(name: str, order: str) -> Question:
    id = f"$(grep -P '\\t{name}$' data/sensors.tsv | cut -f1)"
    return Question(
        "dearest-repair",
        f"Which order in repairs/ cost most of those for the sensor {name}?",
        order,
        [
            "cat repairs/README; head -2 repairs/2023-01.txt data/sensors.tsv",
            f"grep -hE \"^..{id}\" repairs/*.txt | cut -c9- | sort -r | sed -n '1s/^......//p'",
        ],
    )


def _cheapest_part(part: int, order: str) -> Question:
    return Question(
        "cheapest-part",
        f"Which order in repairs/ cost least of those for the part with the (decimal) number {part}?",
        order,
        [
            "cat repairs/README; head -2 repairs/2023-01.txt",
            f"grep -hE \"^......$(printf %02X {part})\" repairs/*.txt | cut -c9- | sort | sed -n '1s/^......//p'",
        ],
    )
