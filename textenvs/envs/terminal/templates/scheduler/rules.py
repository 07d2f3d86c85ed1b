"""Rules that the programs of the template `scheduler` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from collections.abc import Sequence

from ..variation import Option, Rule, numbers


def _with_last(numbers: Sequence[int], low: int, step: int) -> set[int]:
    return {*numbers[::step], numbers[-1]}


RULES = (
    Rule(
        "disabled-mark",
        "@lib@/jobs.awk",
        "Jobs run that are switched off, or the other way round.",
        [
            Option(
                f"if ($6 ~ /^{mark}/) next",
                f"A job whose name begins with `{mark}` is switched off; other marks are a part of the name.",
                mark,
            )
            for mark in ("-", "!", "~", "%")
        ],
    ),
    Rule(
        "repeated-name",
        "@lib@/jobs.awk",
        "Jobs that two tables have do not run as agreed.",
        [
            Option("if ($6 in slot) next", "Of several jobs with the same name, the first one counts.", "first"),
            Option(
                'if ($6 in slot) lines[slot[$6]] = ""',
                "Of several jobs with the same name, the last one counts.",
                "last",
            ),
            Option("slot[$6] = 0", "All of several jobs with the same name run, each at its times.", "all"),
        ],
    ),
    Rule(
        "weekday-numbers",
        "@value_file@",
        "Jobs run on the wrong days of the week.",
        [
            Option("text + 0", "As a number, a day of the week is 1 for Monday, and 7 for Sunday.", lambda n: n),
            Option(
                "(text + 5) % 7 + 1",
                "As a number, a day of the week is 1 for Sunday, and 7 for Saturday.",
                lambda n: n - 1 or 7,
            ),
            Option("text + 1", "As a number, a day of the week is 0 for Monday, and 6 for Sunday.", lambda n: n + 1),
        ],
    ),
    Rule(
        "step-begin",
        "@lib@/fields.awk",
        "Jobs with a step run too often, or not at the times that were agreed.",
        [
            Option(
                "offset % step == 0",
                "Steps are counted from the first number of a range.",
                lambda numbers, low, step: {*numbers[::step]},
            ),
            Option(
                "(number - low) % step == 0",
                "Steps are counted from the lowest number of a field: 0, or 1 for days and months.",
                lambda numbers, low, step: {n for n in numbers if (n - low) % step == 0},
            ),
            Option(
                "offset % step == 0 || offset == length_of",
                "Steps are counted from the first number of a range, and its last one belongs to them in any case.",
                _with_last,
            ),
        ],
    ),
    Rule(
        "short-month",
        "@lib@/days.awk",
        "Jobs of the last days of a month do not run as agreed.",
        [
            Option(
                "last = 0",
                "A job of a day that a month does not have does not run in it.",
                lambda due, date, length, before: False,
            ),
            Option(
                "for (extra = last + 1; own == last && extra <= 31; extra++) "
                'if (fits(month_days[n], extra, 1, 31, "")) by_day = 1',
                "A job of a day that a month does not have runs on the last day of it.",
                lambda due, date, length, before: date.day == length and any(n > length for n in due),
            ),
            Option(
                "for (extra = substr(date_of(day - own), 9) + 1; own == 1 && extra <= 31; extra++) "
                'if (fits(month_days[n], extra, 1, 31, "")) by_day = 1',
                "A job of a day that a month does not have runs on the first day of the next one.",
                lambda due, date, length, before: date.day == 1 and any(n > before for n in due),
            ),
        ],
    ),
    Rule(
        "day-or-weekday",
        "@lib@/days.awk",
        "Jobs with a day of the month and one of the week run on too many days, or too few.",
        [
            Option(
                "by_day || by_week",
                "A job with a day of the month and one of the week runs on both.",
                lambda by_day, by_week: by_day or by_week,
            ),
            Option(
                "by_day && by_week",
                "A job with a day of the month and one of the week runs where a day is both.",
                lambda by_day, by_week: by_day and by_week,
            ),
            Option(
                "by_day && !by_week",
                "A job with a day of the month and one of the week runs on the first, but not where it is the second.",
                lambda by_day, by_week: by_day and not by_week,
            ),
        ],
    ),
    Rule(
        "blackout-day",
        "@moved_file@",
        "What happens with jobs on holidays is not what was agreed.",
        [
            Option("return -1", "A run on a day of a group that its job skips is left out.", 0),
            Option(
                "while (is_dark(n, day)) day++; return day",
                "A run on a day of a group that its job skips is made on the next day that is none.",
                1,
            ),
            Option(
                "while (is_dark(n, day)) day--; return day",
                "A run on a day of a group that its job skips is made on the last day before that is none.",
                -1,
            ),
        ],
    ),
    Rule(
        "missing-predecessor",
        "@lib@/runs.awk",
        "Jobs that wait for a job that does not run do not do what was agreed.",
        [
            Option(
                "return runs[n, day] = 0",
                "A job does not run on a day on which one that it waits for does not run.",
                lambda first, least: None,
            ),
            Option(
                "missing = -1",
                "A job does not wait for one that does not run on that day.",
                lambda first, least: least,
            ),
            Option(
                "if (times[n, 1] + 60 > least) least = times[n, 1] + 60",
                "Where one that it waits for does not run on that day, a job begins an hour after its first time, or "
                "later.",
                lambda first, least: max(least, first + 60),
            ),
        ],
    ),
    Rule(
        "end-of-run",
        "@lib@/runs.awk",
        "Jobs that wait for others begin too early or too late.",
        [
            Option("take[i]", "Who waits for a job begins in the minute in which it has ended.", lambda take: take),
            Option("(take[i] + 5)", "Who waits for a job begins 5 minutes after it has ended.", lambda take: take + 5),
            Option(
                "(2 * take[i])", "Who waits for a job begins when it has had twice its time.", lambda take: 2 * take
            ),
        ],
    ),
    Rule(
        "which-run",
        "@lib@/runs.awk",
        "Jobs wait for the wrong run of others.",
        [
            Option("moment > result", "Who waits for a job with several runs on a day waits for the last one.", max),
            Option("moment < result", "Who waits for a job with several runs on a day waits for the first one.", min),
        ],
    ),
    Rule(
        "window-end",
        "@lib@/runs.awk",
        "At the end of windows, jobs do not do what was agreed.",
        [
            Option("own < to", "At the minute at which a window ends, a job may not begin.", lambda own, to: own < to),
            Option("own <= to", "At the minute at which a window ends, a job may begin.", lambda own, to: own <= to),
        ],
    ),
    Rule(
        "outside-window",
        "@lib@/runs.awk",
        "Runs outside of their windows are not treated as agreed.",
        [
            Option("return 0", "A run outside of its window is left out.", "none"),
            Option(
                "moment += (from - own + 1440) % 1440",
                "A run outside of its window begins when the next one does.",
                "next",
            ),
            Option(
                "moment -= (own - to + 1440) % 1440 + 30",
                "A run outside of its window begins 30 minutes before the end of the last one.",
                "before",
            ),
        ],
    ),
    Rule(
        "order-of-plan",
        "bin/plan",
        "Runs of the same minute are in the wrong order.",
        [
            Option("-k1,2 -k3,3", "Runs of the same minute are sorted by name.", lambda run: run.name),
            Option(
                "-k1,2 -k4,4 -k3,3",
                "Runs of the same minute are sorted by machine, then by name.",
                lambda run: (run.machine, run.name),
            ),
            Option(
                "-k1,2 -k5,5nr -k3,3",
                "Of runs of the same minute, the longest is first; equal ones are sorted by name.",
                lambda run: (-run.take, run.name),
            ),
        ],
    ),
    Rule(
        "plan-line",
        "bin/plan",
        "The calendar of the office cannot read plans any more.",
        [
            Option(
                '"$date $clock $title@$machine"',
                "A line of a plan is such as `2025-03-04 06:15 job@machine`.",
                "{0} {1} {2}@{3}",
            ),
            Option(
                '"$machine $title: ${date:5} $clock, $length min"',
                "A line of a plan is such as `machine job: 03-04 06:15, 20 min`.",
                "{3} {2}: {5} {1}, {4} min",
            ),
            Option(
                '"$date;$clock;$length;$title;$machine"',
                "A line of a plan is such as `2025-03-04;06:15;20;job;machine`.",
                "{0};{1};{4};{2};{3}",
            ),
        ],
    ),
    Rule(
        "next-at-now",
        "bin/next",
        "`next` has the wrong run where one begins just now.",
        [
            Option(">=", "A run that begins at the time of `next` is the next one.", True),
            Option(">", "A run that begins at the time of `next` is not the next one any more.", False),
        ],
    ),
    Rule(
        "log-offset",
        "@lib@/log.awk",
        "Runs are missed though they are in the log, nearly all of them.",
        [
            Option("substr(word[1], 12)) + 60", "Clocks of logs are an hour behind those of tables.", 60),
            Option("substr(word[1], 12)) + -60", "Clocks of logs are an hour ahead of those of tables.", -60),
            Option("substr(word[1], 12)) + 120", "Clocks of logs are two hours behind those of tables.", 120),
            Option("substr(word[1], 12)) + 0", "Clocks of logs are those of tables.", 0),
        ],
    ),
    Rule(
        "retry-minutes",
        "@lib@/log.awk",
        "Runs with several tries are missed too early, or too late.",
        [
            Option(
                "$6 * $7",
                "The minutes before a further try are the same for all of them.",
                lambda tries, gap: tries * gap,
            ),
            Option(
                "(2 ^ $6 - 1) * $7",
                "The minutes before a further try are doubled with each one.",
                lambda tries, gap: sum(gap * 2**n for n in range(tries)),
            ),
            Option(
                "$6 * ($6 + 1) / 2 * $7",
                "The minutes before the second try are as often as its number: twice as many, then three times.",
                lambda tries, gap: sum(gap * n for n in range(1, tries + 1)),
            ),
        ],
    ),
    numbers(
        "grace",
        "@lib@/log.awk",
        "Runs are missed too early, or too late.",
        (4, 6, 9, 11),
        "latest = start + {}",
        "The grace is {} minutes.",
    ),
    Rule(
        "successful-exits",
        "@lib@/log.awk",
        "Runs with warnings are not treated as agreed.",
        [
            Option("code == 0", "A job is done where it ends with 0.", (0,)),
            Option("code <= 1", "A job is done where it ends with 0 or 1.", (0, 1)),
            Option("code == 0 || code == 75", "A job is done where it ends with 0 or 75.", (0, 75)),
            Option("code == 0 || code == 3", "A job is done where it ends with 0 or 3.", (0, 3)),
        ],
    ),
    Rule(
        "counted-as-missed",
        "@lib@/log.awk",
        "`missed` prints too much or too little.",
        [
            Option(
                "code = 0",
                "`missed` prints runs that failed, and those that are not in the log.",
                lambda outcome, tries: True,
            ),
            Option(
                'if (outcome == "absent") next',
                "`missed` prints runs that are in the log and failed.",
                lambda outcome, tries: outcome == "failed",
            ),
            Option(
                'if (outcome == "absent" && $6 == 0) next',
                "`missed` prints runs that failed, and those with several tries that are not in the log.",
                lambda outcome, tries: outcome == "failed" or tries > 0,
            ),
        ],
    ),
    Rule(
        "missed-line",
        "bin/missed",
        "The alarm does not understand `missed` any more.",
        [
            Option(
                '"$outcome: $title on $machine, $date $clock"',
                "A line of `missed` is such as `absent: job on machine, 2025-03-04 06:15`.",
                "{4}: {2} on {3}, {0} {1}",
            ),
            Option(
                '"$date $clock $title ($outcome)"',
                "A line of `missed` is such as `2025-03-04 06:15 job (absent)`.",
                "{0} {1} {2} ({4})",
            ),
            Option(
                '"${clock/:/.} ${date:5} $machine/$title $outcome"',
                "A line of `missed` is such as `06.15 03-04 machine/job absent`.",
                "{6} {5} {3}/{2} {4}",
            ),
        ],
    ),
    numbers(
        "status-of-missed",
        "bin/missed",
        "The job that asks for missed runs goes on where it should end.",
        range(2, 9),
        "status={}",
        "`missed` ends with the status {} where it prints something, and else with 0.",
    ),
    Rule(
        "overlap",
        "@lib@/busy.awk",
        "The minutes of `busy` are too many, or too few.",
        [
            Option("!seen[$4, minute]++", "Minutes in which a machine has several runs count once.", "once"),
            Option("$5 > 0", "Minutes in which a machine has several runs count for each of them.", "each"),
        ],
    ),
    Rule(
        "busy-line",
        "bin/busy",
        "The chart of `busy` is empty.",
        [
            Option('"$machine $hour:00 $count"', "A line of `busy` is such as `machine 6:00 15`.", "{0} {1}:00 {2}"),
            Option('"$count $hour $machine"', "A line of `busy` is such as `15 6 machine`.", "{2} {1} {0}"),
            Option(
                '"$machine: $count min from $hour to $((hour + 1))"',
                "A line of `busy` is such as `machine: 15 min from 6 to 7`.",
                "{0}: {2} min from {1} to {3}",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "planned moment tries clean usual machine option place pause slot value fits parts range step pair offset "
    "length_of is_leap length_of_month number_of date_of weekday_of minutes_of clock_of yearly dark is_dark groups "
    "moved is_due own extra by_day by_week months weekdays month_days take_of often times ended settle least missing "
    "before_end inside edge written moments codes latest outcome result"
)
