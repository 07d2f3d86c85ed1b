"""Rules that the programs of the template `timetable` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "week-letter",
        "@code@/dates.py",
        "Substitutes are sought for lessons of the other week.",
        [
            Option("number % 2 == 1", "Weeks with an odd number (that of ISO 8601) are A, the others B.", "odd"),
            Option("number % 2 == 0", "Weeks with an even number (that of ISO 8601) are A, the others B.", "even"),
            Option(
                "(day - monday).days // 7 % 2 == 0",
                "The week in which the term begins is A, the next one B, and so on by turns.",
                "term",
            ),
        ],
        shows=True,
    ),
    Rule(
        "class-order",
        "sql/class.sql",
        "The lessons of a class are in another order than agreed.",
        [
            Option(
                "ORDER BY day, period, subject",
                "`class` is in the order of days, then of periods, then of subjects.",
                lambda one: (one.day, one.period, one.subject),
            ),
            Option(
                "ORDER BY period, day, subject",
                "`class` is in the order of periods, then of days, then of subjects.",
                lambda one: (one.period, one.day, one.subject),
            ),
            Option(
                "ORDER BY subject, day, period",
                "`class` is in the order of subjects, then of days, then of periods.",
                lambda one: (one.subject, one.day, one.period),
            ),
        ],
    ),
    Rule(
        "class-line",
        "@code@/answers.py",
        "The program that prints the plans of classes does not understand them any more.",
        [
            Option(
                'f"{DAYS[row.day]} {row.begins} {row.subject} {row.teacher} {row.room}"',
                "A line of `class` is DAY TIME SUBJECT TEACHER ROOM.",
                "{day} {begins} {subject} {teacher} {room}",
            ),
            Option(
                'f"{DAYS[row.day]}{row.period} {row.room}: {row.subject} ({row.teacher})"',
                "A line of `class` is such as `Mon3 R12: Art (KLM)`, with day, period, room, subject and teacher.",
                "{day}{period} {room}: {subject} ({teacher})",
            ),
            Option(
                'f"{row.subject};{row.teacher};{row.room};{row.day + 1};{row.period}"',
                "A line of `class` is SUBJECT;TEACHER;ROOM;DAY;PERIOD, where Monday is 1.",
                "{subject};{teacher};{room};{number};{period}",
            ),
        ],
    ),
    Rule(
        "clash-line",
        "@code@/answers.py",
        "Clashes are not printed as agreed.",
        [
            Option(
                'f"{row.what} on {DAYS[row.day]} {row.period} {row.letter}: {row.one}, {row.other}"',
                "A clash is such as `KLM on Mon 3 A: R1, R2`: of more than two, the first and the last by name.",
                "{what} on {day} {period} {letter}: {one}, {other}",
            ),
            Option(
                'f"{DAYS[row.day]}/{row.period}/{row.letter} {row.one}+{row.other} {row.what}"',
                "A clash is such as `Mon/3/A R1+R2 KLM`: of more than two, the first and the last by name.",
                "{day}/{period}/{letter} {one}+{other} {what}",
            ),
            Option(
                'f"{row.what} {row.one} {row.other} {row.letter}{row.day + 1}{row.period:02}"',
                "A clash is such as `KLM R1 R2 A103` (of Monday in A, period 3): of more than two, the first and the "
                "last by name.",
                "{what} {one} {other} {letter}{number}{period:02}",
            ),
        ],
    ),
    Rule(
        "load-counted",
        "sql/load.sql",
        "The hours of teachers are not those of their contracts.",
        [
            Option(
                "count(DISTINCT letter || day || '/' || period)",
                "What a teacher has at one time is one hour, however many classes are in it.",
                lambda times: len({time for time, _ in times}),
            ),
            Option(
                "count(class)",
                "A lesson of several classes together is an hour for each of them.",
                len,
            ),
            Option(
                "count(DISTINCT letter || day)",
                "An hour is counted for each day on which a teacher has a lesson, however many.",
                lambda times: len({time[:2] for time, _ in times}),
            ),
        ],
    ),
    Rule(
        "order-of-teachers",
        "sql/load.sql",
        "The teachers are in another order than agreed.",
        [
            Option(
                "ORDER BY code", "`load` is in the order of the codes of teachers.", lambda code, name, surplus: code
            ),
            Option(
                "ORDER BY name, code",
                "`load` is in the order of the names of teachers, and of equal ones in that of codes.",
                lambda code, name, surplus: (name, code),
            ),
            Option(
                "ORDER BY hours - contract DESC, code",
                "`load` begins with those who have most hours more than in their contract, and of these with the first "
                "code.",
                lambda code, name, surplus: (-surplus, code),
            ),
            Option(
                "ORDER BY hours - contract, code",
                "`load` begins with those who lack most hours of their contract, and of these with the first code.",
                lambda code, name, surplus: (surplus, code),
            ),
        ],
    ),
    Rule(
        "load-line",
        "@code@/answers.py",
        "The office does not understand the hours of teachers any more.",
        [
            Option(
                'f"{row.code} {row.hours:g}/{row.contract}"',
                "A line of `load` is such as `KLM 21.5/24`: hours, and those of the contract.",
                lambda code, name, hours, contract: f"{code} {hours:g}/{contract}",
            ),
            Option(
                'f"{row.name} ({row.code}) {row.hours - row.contract:+.1f}"',
                "A line of `load` is such as `NAME (KLM) -2.5`: how much more it is than in the contract.",
                lambda code, name, hours, contract: f"{name} ({code}) {hours - contract:+.1f}",
            ),
            Option(
                'f"{row.contract};{row.hours:.2f};{row.code}"',
                "A line of `load` is such as `24;21.50;KLM`: the hours of the contract, and those that are held.",
                lambda code, name, hours, contract: f"{contract};{hours:.2f};{code}",
            ),
        ],
    ),
    Rule(
        "order-of-rooms",
        "sql/free.sql",
        "The first free room is not the one that should be taken.",
        [
            Option(
                "ORDER BY room COLLATE NOCASE",
                "`free` is in the order of names of rooms; the case of letters makes no difference.",
                lambda room, seats: room.lower(),
            ),
            Option(
                "ORDER BY seats, room COLLATE NOCASE",
                "`free` has the smallest room first, and equal ones by name; the case of letters makes no difference.",
                lambda room, seats: (seats, room.lower()),
            ),
            Option(
                "ORDER BY seats DESC, room COLLATE NOCASE",
                "`free` has the largest room first, and equal ones by name; the case of letters makes no difference.",
                lambda room, seats: (-seats, room.lower()),
            ),
        ],
    ),
    numbers(
        "spare-seats",
        "sql/small.sql",
        "Rooms are reported as too small that are not, or the other way round.",
        (0, 2, 4, 6),
        "sum(pupils) + {} > seats",
        "A room is too small where fewer than {} seats stay free.",
    ),
    Rule(
        "absence-end",
        "sql/substitutes.sql",
        "Teachers are taken for absent on a day on which they are there, or the other way round.",
        [
            Option(
                ":date BETWEEN since AND until",
                "`since` is the first day of an absence and `until` the last one.",
                lambda day, since, until: since <= day <= until,
            ),
            Option(
                ":date >= since AND :date < until",
                "`since` is the first day of an absence and `until` the day on which the teacher is back.",
                lambda day, since, until: since <= day < until,
            ),
            Option(
                ":date > since AND :date <= until",
                "`since` is the last day before an absence and `until` its last one.",
                lambda day, since, until: since < day <= until,
            ),
        ],
    ),
    Rule(
        "substitute",
        "sql/substitutes.sql",
        "The wrong colleagues have to be substitutes.",
        [
            Option(
                "(SELECT count(*) FROM held AS own WHERE own.teacher = code AND own.day = :day AND own.letter = :week)",
                "A substitute is who has the fewest lessons on this day, where one of several classes together is "
                "one for each of them.",
                "fewest",
            ),
            Option(
                "NOT EXISTS (SELECT 1 FROM held AS same WHERE same.teacher = code AND same.subject = held.subject)",
                "A substitute is somebody who has lessons of the same subject, where there is such a one.",
                "subject",
            ),
            Option("contract DESC", "A substitute is who has the most hours in the contract.", "contract"),
            Option(
                "(SELECT count(*) FROM held AS own WHERE own.teacher = code AND own.class = held.class) = 0",
                "A substitute is somebody who has lessons with the class, where there is such a one.",
                "class",
            ),
        ],
    ),
    Rule(
        "substitute-line",
        "@code@/answers.py",
        "The board that shows substitutes does not understand them any more.",
        [
            Option(
                'f"{row.period}. {row.class_name}: {row.substitute} for {row.teacher} ({row.subject})"',
                "A line of `substitutes` is such as `3. 7b: KLM for XYZ (Art)`.",
                "{period}. {class_name}: {substitute} for {teacher} ({subject})",
            ),
            Option(
                'f"{row.substitute} -> {row.class_name}/{row.period}, {row.teacher}"',
                "A line of `substitutes` is such as `KLM -> 7b/3, XYZ`: who does it, class, period, who is absent.",
                "{substitute} -> {class_name}/{period}, {teacher}",
            ),
            Option(
                'f"{row.class_name} {row.period} {row.subject} {row.teacher}={row.substitute}"',
                "A line of `substitutes` is such as `7b 3 Art XYZ=KLM`: in the place of XYZ it is KLM.",
                "{class_name} {period} {subject} {teacher}={substitute}",
            ),
        ],
    ),
    numbers(
        "lunch",
        "sql/gaps.sql",
        "Classes have gaps that are none, or the other way round.",
        (4, 5, 6),
        "(min(period) < {0} AND max(period) > {0} AND sum(period = {0}) = 0)",
        "Where period {} is free between lessons, that is lunch and no gap.",
    ),
    Rule(
        "gap-line",
        "@code@/answers.py",
        "Gaps are not printed as agreed.",
        [
            Option(
                'f"{row.class_name}: {row.gaps} on {row.days} days, at most {row.longest}"',
                "A line of `gaps` is such as `7b: 12 on 5 days, at most 3`.",
                "{0}: {1} on {2} days, at most {3}",
            ),
            Option(
                'f"{row.gaps} {row.class_name} {row.longest}/{row.days}"',
                "A line of `gaps` is such as `12 7b 3/5`: gaps, class, those of the worst day, days.",
                "{1} {0} {3}/{2}",
            ),
            Option(
                'f"{row.class_name};{row.longest};{row.gaps};{row.days}"',
                "A line of `gaps` is such as `7b;3;12;5`: class, gaps of the worst day, all gaps, days.",
                "{0};{3};{1};{2}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "connection path words answer command cells marks monday held busy gone rows values gap named what one other letter"
)
