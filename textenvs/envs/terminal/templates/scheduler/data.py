"""Tables of jobs of the template `scheduler`, and when their jobs run by the rules of a project."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

from ..parts import token
from ..variation import Variant

_VERBS = ("dump", "sync", "scan", "pack", "send", "index", "check", "clean", "fetch", "merge", "rotate", "count")
_NOUNS = ("mail", "logs", "users", "stock", "pages", "files", "orders", "photos", "prices", "keys")
_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_YEAR = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MARKS = ("-", "!", "~", "%")
#: Hosts of tables, by which machines are named in etc/hosts.txt; the last one stands there in no line.
HOSTS = ("web", "db", "files", "mail", "edge")
#: Days of a plan, and of a report on a log.
_PLANNED, _LOGGED = 11, 3
_DAY = 1440


@dataclass(frozen=True)
class Job:
    """A line of a table; ``when`` has its five fields."""

    when: str
    name: str
    host: str = ""
    take: int = 0
    after: Sequence[str] = ()
    retry: tuple[int, int] | None = None
    window: tuple[int, int] | None = None
    skip: Sequence[str] = ()

    @property
    def line(self) -> str:
        options = [f"host={self.host}"] * bool(self.host) + [f"take={self.take}"] * bool(self.take)
        options += [f"after={','.join(self.after)}"] * bool(self.after)
        if self.retry is not None:
            tries, gap = self.retry
            options.append(f"retry={tries}/{gap}" if gap else f"retry={tries}")
        if self.window is not None:
            options.append(f"window={'-'.join(map(clock, self.window))}")
        return " ".join([self.when, self.name, *options, *[f"skip={','.join(self.skip)}"] * bool(self.skip)])


@dataclass(frozen=True)
class Run:
    """A run; ``moment`` is counted in minutes."""

    moment: int
    name: str
    machine: str
    take: int
    tries: int
    gap: int

    @property
    def date(self) -> str:
        return str(date.fromordinal(self.moment // _DAY))

    @property
    def clock(self) -> str:
        return clock(self.moment % _DAY)

    @property
    def line(self) -> str:
        words = (self.date, self.clock, self.name, self.machine, self.take, self.tries, self.gap)
        return "\t".join(map(str, words))


@dataclass(frozen=True)
class Tables:
    """Tables of jobs, days on which groups of jobs do not run, and the days of the reports.

    Args:
        first: The first day of the plan.
        tables: Jobs by table; each has the host of lines without one behind its first jobs.
        hosts: For each table, after how many jobs a line names a host, and which.
        dark: Groups and days as ``days.txt`` has them: first and last.
        yearly: Groups and days of each year.
        special: Names of jobs that reports ask for.
    """

    first: date
    tables: Sequence[Sequence[Job]]
    hosts: Sequence[tuple[int, str]]
    dark: Sequence[tuple[str, date, date]]
    yearly: Sequence[tuple[str, date]]
    special: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> date:
        return self.first + timedelta(days=_PLANNED)

    @property
    def logged(self) -> tuple[date, date]:
        return self.first + timedelta(days=1), self.first + timedelta(days=_LOGGED)

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """The jobs of all tables, with their hosts."""
        return [
            job if job.host else replace(job, host=host if place >= begin else "")
            for table, (begin, host) in zip(self.tables, self.hosts, strict=True)
            for place, job in enumerate(table)
        ]

    def files(self, rng: random.Random) -> dict[str, str]:
        """Return its files; tables are written in some unusual ways."""
        names = [f"{name}.tab" for name in rng.sample(["base", "night", "office", "shop", "reports"], len(self.tables))]
        files = dict[str, str]()
        for place, (name, table) in enumerate(zip(names, self.tables, strict=True)):
            lines = [f"# {token(rng)}", f"#0 0 * * * {rng.choice(_VERBS)}-nothing", ""]
            for number, job in enumerate(table):
                if number == self.hosts[place][0]:
                    lines.append(f"  HOST={self.hosts[place][1]}")
                gap = rng.choice([" ", " ", "  ", "\t"])
                comment = f"  # before host=old{rng.randint(1, 9)}" if rng.random() < 0.3 else ""
                lines.append(f"{job.line.replace(' ', gap, 5)}{comment}")
            files[name] = ("\r\n" if place == 1 else "\n").join(lines) + "\n" * (place > 0)
        files["tables.txt"] = "\n".join(["# in this order", *names]) + "\n"
        days = [f"{group} {a}" if a == b else f"{group} {a}..{b}" for group, a, b in self.dark]
        days += [f"{group} *-{day:%m-%d}" for group, day in self.yearly]
        files["days.txt"] = "\n".join(["# days without some jobs", *rng.sample(days, len(days))]) + "\n"
        files["old.tab"] = f"0 12 * * * {rng.choice(_VERBS)}-{rng.choice(_NOUNS)}\n"
        return files


def clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


@dataclass(frozen=True)
class Plan:
    """Runs of tables by the rules and the settings of a project."""

    variant: Variant
    tables: Tables

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """The jobs that are switched on, without those that another one with the same name replaces."""
        jobs = [job for job in self.tables.jobs if not job.name.startswith(self.variant["disabled-mark"])]
        rule = self.variant["repeated-name"]
        if rule == "all":
            return jobs
        places = {job.name: place for place, job in reversed([*enumerate(jobs)])}
        places = places if rule == "first" else {job.name: place for place, job in enumerate(jobs)}
        return [job for place, job in enumerate(jobs) if places[job.name] == place]

    @functools.cached_property
    def _cache(self) -> dict[tuple[str, int, int, str], set[int]]:
        return {}

    def _numbers(self, text: str, low: int, high: int, kind: str = "") -> set[int]:
        """Return the numbers of a field."""
        key = (text, low, high, kind)
        if key not in self._cache:
            self._cache[key] = self._new_numbers(*key)
        return self._cache[key]

    def _new_numbers(self, text: str, low: int, high: int, kind: str) -> set[int]:

        def value(word: str) -> int:
            if word[0].isalpha():
                return (_WEEK if kind else _YEAR).index(word[:3].lower()) + 1
            return int(self.variant["weekday-numbers"](int(word)) if kind else int(word))

        result = set[int]()
        for part in text.split(","):
            span, _, step = part.partition("/")
            words = [str(low), str(high)] if span == "*" else span.split("-")
            ends = [low, high] if span == "*" else [value(word) for word in words]
            first, last = ends[0], ends[-1] if len(ends) > 1 or not step else high
            numbers = [*range(first, last + 1)] if first <= last else [*range(first, high + 1), *range(low, last + 1)]
            result |= self.variant["step-begin"](numbers, low, int(step)) if step and step != "1" else {*numbers}
        return result

    def _is_due(self, job: Job, day: date) -> bool:
        _, _, month_days, months, weekdays = job.when.split()
        if months != "*" and day.month not in self._numbers(months, 1, 12):
            return False
        numbers = self._numbers(month_days, 1, 31)
        length = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
        before = day.replace(day=1) - timedelta(days=1)
        by_day = day.day in numbers or self.variant["short-month"](numbers, day, length.day, before.day)
        by_week = day.isoweekday() in self._numbers(weekdays, 1, 7, "week")
        if month_days == "*" or weekdays == "*":
            return by_week if month_days == "*" else by_day
        return bool(self.variant["day-or-weekday"](by_day, by_week))

    def _is_dark(self, job: Job, day: date) -> bool:
        tables = self.tables
        return any(group in job.skip and a <= day <= b for group, a, b in tables.dark) or any(
            group in job.skip and (one.month, one.day) == (day.month, day.day) for group, one in tables.yearly
        )

    @functools.cached_property
    def _days(self) -> dict[int, set[date]]:
        """Days of runs, by the place of a job."""
        step, result = self.variant["blackout-day"], dict[int, set[date]]()
        for place, job in enumerate(self.jobs):
            days = result.setdefault(place, set())
            for number in range(-9, _PLANNED + 55):
                day = self.tables.first + timedelta(days=number)
                if self._is_due(job, day):
                    while step and self._is_dark(job, day):
                        day += timedelta(days=step)
                    if not self._is_dark(job, day):
                        days.add(day)
        return result

    @functools.cached_property
    def _times(self) -> list[list[int]]:
        return [
            sorted(
                60 * hour + minute
                for hour in self._numbers(job.when.split()[1], 0, 23)
                for minute in self._numbers(job.when.split()[0], 0, 59)
            )
            for job in self.jobs
        ]

    def _take(self, job: Job) -> int:
        return job.take or int(str(self.variant.names["take"]))

    def _begins(self, place: int, day: date) -> list[int]:
        """Return when the runs of a job begin on one of its days."""
        job, times, least, misses = self.jobs[place], self._times[place], 0, False
        for name in job.after:
            others = [n for n, other in enumerate(self.jobs) if other.name == name and day in self._days[n]]
            ends = [
                begin + self.variant["end-of-run"](self._take(self.jobs[n]))
                for n in others
                for begin in self._begins(n, day)
            ]
            misses = misses or not ends
            least = max([least, *([self.variant["which-run"](ends)] if ends else [])])
        if misses:
            least = self.variant["missing-predecessor"](times[0], least)
        return [] if least is None else [max(least, time) for time in times]

    @functools.cached_property
    def runs(self) -> list[Run]:
        """All runs of some weeks, in the order of time."""
        names, runs = self.variant.names, set[tuple[int, int]]()
        for place in range(len(self.jobs)):
            for day in self._days[place]:
                for begin in self._begins(place, day):
                    moment = self._permitted(self.jobs[place], _DAY * day.toordinal() + begin)
                    runs |= {(moment, place)} if moment else set()
        result = list[Run]()
        for moment, place in runs:
            job = self.jobs[place]
            tries, gap = job.retry or (0, 0)
            host = job.host or str(names["usual"])
            machine = str(names.get(f"machine_{host}", host))
            result.append(Run(moment, job.name, machine, self._take(job), tries, gap or int(str(names["gap"]))))
        return sorted(result, key=lambda run: run.line)

    def _permitted(self, job: Job, moment: int) -> int:
        """Return when a run may begin; 0 for never."""
        if job.window is None:
            return moment
        begin, end = job.window
        length, since = (end - begin) % _DAY, (moment - begin) % _DAY
        if since < length or (since == length and self.variant["window-end"](0, 0)):
            return moment
        return {"none": 0, "next": moment - since + _DAY, "before": moment - since + length - 30}[
            self.variant["outside-window"]
        ]

    def between(self, first: date, last: date) -> list[Run]:
        begin, end = _DAY * first.toordinal(), _DAY * (last.toordinal() + 1)
        return [run for run in self.runs if begin <= run.moment < end]


def draw_tables(rng: random.Random) -> Tables:
    """Draw tables of jobs in which each rule and each fault shows."""
    month = rng.choice([4, 6, 9, 11])
    first = date(rng.randint(2025, 2027), month, rng.randint(24, 26))
    names = iter(rng.sample([f"{verb}-{noun}" for verb in _VERBS for noun in _NOUNS], 60))
    special = dict[str, str]()

    def named(key: str) -> str:
        return special.setdefault(key, next(names))

    def day(number: int) -> date:
        return first + timedelta(days=number)

    def at(low: int, high: int, rest: str = "* * *") -> str:
        return f"{rng.randint(0, 59)} {rng.randint(low, high)} {rest}"

    w, (one, two) = day(0).weekday(), rng.sample(HOSTS[:4], 2)
    far = day(33)
    long, short = rng.randint(70, 95), rng.randint(25, 40)
    jobs = [
        Job("30 6 * * *", named("plain")),
        Job("30 7 * * *", f"{named('plain')}2", two),
        Job("*/25 8-9 * * Mon", next(names)),
        Job("5-50/20 7 * * *", named("steps"), take=rng.randint(2, 9)),
        Job("10/20 21 * * tue,Thursday", next(names)),
        Job(at(4, 4, "* * 2,5"), next(names)),
        Job(at(5, 5, "* * 1-3"), next(names), one),
        Job(at(23, 23, "* * fri-mon"), next(names)),
        Job("40 22-2/2 * * WED", next(names)),
        Job(at(3, 3, "31 * *"), named("rare")),
        Job(at(3, 3, "29-31 * *"), next(names)),
        Job(at(4, 4, f"{day(7).day},{day(5).day} * {_WEEK[w]}"), next(names)),
        Job("1-9/4,31-33 11 */9 * *", next(names)),
        Job(f"0 3 {far.day} {far:%b} *", named("far")),
        # Days on which something does not run.
        *(Job(at(1, 2, f"{day(n).day} * *"), next(names), skip=["holidays"]) for n in (3, 9)),
        *(Job(at(1, 2, f"{day(n).day} * *"), next(names), skip=["freeze"]) for n in (5, 7)),
        Job(at(1, 2, f"{day(3).day} * *"), next(names), skip=["freeze", "holidays"]),
        Job(at(1, 2, f"{day(5).day} * *"), next(names), skip=["holidays"]),
        Job(at(1, 2), next(names), skip=["freeze"]),
        # Jobs that wait for others.
        Job("0 2 * * *", named("begin"), "files", short),
        Job("10 2 * * *", next(names), "files", after=[special["begin"]]),
        Job("15 2 * * *", named("long"), "files", long),
        Job("0 2 * * *", next(names), after=[special["long"], special["begin"]]),
        Job("0 2 * * *", next(names), after=[special["begin"], special["long"]]),
        Job("5 10 * * *", named("late"), after=[special["begin"]]),
        Job(f"0 3 * * {_WEEK[(w + 2) % 7]}", named("weekly")),
        Job("20 3 * * *", next(names), after=[special["weekly"]]),
        Job("45 3 * * *", next(names), after=["nothing"]),
        Job("0,35 6-8 * * *", named("often"), one, 14),
        Job("50 5 * * *", named("behind"), after=[special["often"]]),
        Job("10 6 * * *", next(names), after=[special["behind"]]),
        Job("0 6 * * *", next(names), after=[special["behind"], special["late"]], retry=(2, 15)),
        Job("30 23 * * *", named("night"), "db", rng.randint(45, 55)),
        Job("40 23 * * *", named("after-night"), "db", 30, after=[special["night"]], retry=(3, 8)),
        Job("0,5,10 2 * * *", next(names), after=[special["long"]]),
        # Windows.
        Job("0 6,12 * * mon,wed", next(names), window=(360, 720)),
        Job(f"30 20 * * {_WEEK[(w + 3) % 7]}", next(names), window=(495, 1125)),
        Job("0 23,3,10 * * *", next(names), window=(1320, 245)),
        Job("0,30 20 * * *", next(names), window=(420, 1089)),
        # The same minute.
        *_of_same_minute(rng, next(names)),
        # Tries.
        *(Job(at(12, 13), named(f"try{n}"), retry=(n, 3 + n) if n else None) for n in range(4)),
        *(Job(at(15, 18), named(f"tries{n}"), rng.choice(HOSTS), retry=(2, 0)) for n in range(3)),
        Job(at(16, 17), "count#2", one),
        Job(at(18, 19), named("edge"), "edge"),
    ]
    jobs += [Job(f"{n} 13 * * *", f"{mark}{next(names)}") for n, mark in enumerate(MARKS)]
    rng.shuffle(jobs)
    twice = named("twice")
    jobs[rng.randint(0, 9) : 0] = [Job("10 14 * * *", twice, two)]
    jobs[rng.randint(40, 50) : 0] = [Job("20 15 * * *", twice, one, 12)]
    jobs.append(Job("30 16 * * *", next(names), after=[twice]))
    cuts = [0, rng.randint(13, 18), rng.randint(28, 33), rng.randint(44, 48), len(jobs)]
    tables = [jobs[a:b] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    hosts = [(rng.randint(2, 5), host) for host in rng.sample(HOSTS, 4)]
    dark = [("holidays", day(3), day(3)), ("freeze", day(5), day(7)), ("freeze", day(-3), day(-3))]
    return Tables(first, tables, hosts, dark, [("holidays", day(9)), ("holidays", day(5))], special)


def _of_same_minute(rng: random.Random, name: str) -> list[Job]:
    """Return jobs whose names, hosts and minutes have different orders; hosts are named in the order of machines."""
    takes = rng.sample(range(20, 60), 3)
    low, middle, high = sorted(takes)
    minute = rng.randint(1, 59)
    return [
        Job(f"{minute} 10 * * *", f"{name}-a", "mail", middle),
        Job(f"{minute} 10 * * *", f"{name}-b", "db", low),
        Job(f"{minute} 10 * * *", f"{name}-c", "files", high),
    ]


def draw_log(rng: random.Random, plan: Plan) -> str:
    """Draw a log of the first days in which each rule about logs and each fault shows."""
    variant, special, first = plan.variant, plan.tables.special, plan.tables.logged[0]
    lines = list[tuple[int, str]]()

    def add(run: Run, moment: int, status: int, machine: str = "") -> None:
        logged = moment - variant["log-offset"]
        time = f"{date.fromordinal(logged // _DAY)}T{clock(logged % _DAY)}:{rng.randint(10, 59)}"
        words = [f"job={run.name}", f"exit={status}", f"prejob={token(rng, 4)}"]
        text = " ".join(words[::-1] if rng.random() < 0.5 else [*words, "try=1"])
        lines.append((moment, f"{time} {machine or run.machine} cron[{rng.randint(200, 9000)}]: {text}"))

    for run in plan.between(*plan.tables.logged):
        number = run.moment // _DAY - first.toordinal()
        latest = run.moment + variant["retry-minutes"](run.tries, run.gap) + variant["grace"]
        if run.name in (special["tries2"], *(special[f"try{n}"] for n in range(4))):
            if number == 2 and run.tries:
                add(run, run.moment + 1, 9)
                add(run, run.moment + run.gap, 0)
            else:
                add(run, latest + (number == 1), 9 if number < 2 else 0)
        elif run.name in (special["tries0"], special["tries1"]):
            status = (1, 3, 75)[number] if run.name == special["tries0"] else 9
            moment = run.moment - (run.name == special["tries1"] and number == 2)
            add(run, moment, status, "other" if run.name == special["tries1"] and number == 1 else "")
        else:
            status = rng.choices([0, 1, 2, 3, 75], [12, 1, 1, 1, 1])[0]
            if run.name == special["edge"] or rng.random() < 0.85:
                add(run, run.moment + rng.randint(0, 3), 0 if run.name == special["edge"] else status)
    texts = [line for _, line in sorted(lines)]
    for _ in range(8):
        texts.insert(rng.randint(0, len(texts)), f"{first}T10:10:10 edge kernel: link up, {token(rng)}")
    return "\r\n".join(texts) + "\r\n"


def missed(plan: Plan, log: str) -> list[tuple[Run, str]]:
    """Return the runs of the first days that are not in a log as they should be, and what they are."""
    variant, entries = plan.variant, dict[tuple[str, str], list[tuple[int, int]]]()
    for line in log.splitlines():
        if " job=" in line:
            time, machine, _, *words = line.split()
            pairs = dict(word.split("=") for word in words)
            moment = _DAY * date.fromisoformat(time[:10]).toordinal() + 60 * int(time[11:13]) + int(time[14:16])
            entry = (moment + variant["log-offset"], int(pairs["exit"]))
            entries.setdefault((machine, pairs["job"]), []).append(entry)
    result = list[tuple[Run, str]]()
    for run in plan.between(*plan.tables.logged):
        latest = run.moment + variant["retry-minutes"](run.tries, run.gap) + variant["grace"]
        statuses = [
            status for moment, status in entries.get((run.machine, run.name), []) if run.moment <= moment <= latest
        ]
        outcome = "failed" if statuses else "absent"
        done = any(status in variant["successful-exits"] for status in statuses)
        if not done and variant["counted-as-missed"](outcome, run.tries):
            result.append((run, outcome))
    return result
