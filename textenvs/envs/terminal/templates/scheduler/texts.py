"""Files of the template `scheduler`; what stands between @ is drawn."""

PLAN = """#!/bin/bash
# Prints which jobs run when. Usage: bin/plan FOLDER FIRST LAST
. "$(dirname "$0")/../@lib@/load.sh"
runs "$1" "$2" "$3" | sort -t $'\\t' @order_of_plan@ |
    while IFS=$'\\t' read -r date clock title machine length tries gap; do
        echo @plan_line@
    done
"""

NEXT = """#!/bin/bash
# Prints when jobs run next. Usage: bin/next FOLDER DATE TIME JOB...
. "$(dirname "$0")/../@lib@/load.sh"
folder=$1 now="$2 $3"
last=$(later "$2" "$AHEAD")
planned=$(runs "$folder" "$2" "$last" | sort -k1,2)
shift 3
for job in "$@"; do
    moment=$(awk -F'\\t' -v job="$job" -v now="$now" '
        $3 == job && $1 " " $2 @next_at_now@ now { print $1 " " $2; exit }
    ' <<< "$planned")
    echo "$job: ${moment:-never}"
done
"""

MISSED = """#!/bin/bash
# Prints which runs are not in a log as they should be. Usage: bin/missed FOLDER FIRST LAST LOG
. "$(dirname "$0")/../@lib@/load.sh"
status=0
while IFS=$'\\t' read -r date clock title machine outcome; do
    echo @missed_line@
    @status_of_missed@
done < <(runs "$1" "$2" "$3" | sort |
    awk -f "$LIB/calendar.awk" -f "$LIB/log.awk" part=log "$4" part=runs -)
exit "$status"
"""

BUSY_DAY = """#!/bin/bash
# Prints how many minutes machines are busy, by hours of a day. Usage: bin/busy FOLDER DATE
. "$(dirname "$0")/../@lib@/load.sh"
runs "$1" "$(later "$2" -1)" "$2" |
    awk -v date="$2" -f "$LIB/calendar.awk" -f "$LIB/busy.awk" | sort -k1,1 -k2,2n |
    while read -r machine hour count; do
        echo @busy_line@
    done
"""

LOAD = r"""# Functions that read tables of jobs. No word of a file is a pattern of files of ours.
set -f
export LC_ALL=C
LIB=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
. "$LIB/../etc/@settings@.conf"
if [[ -e $LIB/../etc/@settings@.local ]]; then . "$LIB/../etc/@settings@.local"; fi

@shell_functions@
"""

SHELL_FUNCTIONS = (
    r"""# Prints a file without comments, blank lines, and ends of lines of other systems.
clean() {
    sed 's/\r$//; s/[ \t]#.*//; s/^#.*//; s/^[ \t]*//; s/[ \t]*$//; /^$/d' "$1"
}
""",
    r"""# Prints the jobs of the tables that tables.txt names, with tabs between their fields.
jobs() {
    local title
    @loop_of_tables@
        printf '\nTABLE %s\n' "$title"
        clean "$1/$title"
    @end_of_tables@ |
        awk -v take="$TAKE" -v host="$HOST" -v gap="$GAP" -v names="$LIB/../etc/hosts.txt" -f "$LIB/jobs.awk"
}
""",
    r"""# Prints the runs of the days from $2 to $3, with tabs: date time job machine minutes tries gap.
runs() {
    awk -v first="$2" -v last="$3" -f "$LIB/calendar.awk" -f "$LIB/fields.awk" -f "$LIB/days.awk" -f "$LIB/runs.awk" \
        part=days <(clean "$1/days.txt") part=jobs <(jobs "$1")
}
""",
    r"""# Prints the date that is so many days later.
later() {
    awk -f "$LIB/calendar.awk" -f "$LIB/later.awk" <<< "$1 $2"
}
""",
)

JOBS = r"""# Reads tables, and prints jobs with tabs between fields, and `-` for none:
# minute hour day month weekday name machine minutes predecessors tries gap window groups
BEGIN {
    OFS = "\t"
    usual = host
    while ((getline line < names) > 0) {
        split(line, pair, " ")
        machine[pair[1]] = pair[2]
    }
}
$1 == "TABLE" { host = usual; next }
/^HOST=/ { host = substr($1, 6); next }
NF >= 6 {
    @disabled_mark@
    @repeated_name@
    delete option
    for (i = 7; i <= NF; i++) {
        place = index($i, "=")
        option[substr($i, 1, place - 1)] = substr($i, place + 1)
    }
    target = ("host" in option) ? option["host"] : host
    if (target in machine) target = machine[target]
    tries = split(option["retry"], pair, "/") ? pair[1] : 0
    pause = index(option["retry"], "/") ? pair[2] : gap
    slot[$6] = ++count
    lines[count] = $1 OFS $2 OFS $3 OFS $4 OFS $5 OFS $6 OFS target OFS ("take" in option ? option["take"] : take) OFS \
        or_none("after") OFS tries OFS pause OFS or_none("window") OFS or_none("skip")
}
END { for (n = 1; n <= count; n++) if (lines[n] != "") print lines[n] }
function or_none(word) { return word in option ? option[word] : "-" }
"""

FIELDS = (
    r"""BEGIN {
    WEEK = "mon tue wed thu fri sat sun"
    YEAR = "jan feb mar apr may jun jul aug sep oct nov dec"
}
""",
    r"""# Returns the number of a day of the week, with 1 for Monday, or of a month, or what stands there.
function value(text, kind) {
    text = tolower(text)
    if (text ~ /^[a-z]/)
        return (index(kind == "week" ? WEEK : YEAR, substr(text, 1, 3)) + 3) / 4
    return kind == "week" ? @weekday_numbers@ : +text
}
""",
    r"""# Tells if a number is in a field such as 1-5,8,*/15; ranges may go over the highest number.
function fits(list, number, low, high, kind,    parts, count, i, range, step, pair, from, to, offset, length_of) {
    if (list == "*") return 1
    count = split(list, parts, ",")
    for (i = 1; i <= count; i++) {
        step = 1
        range = parts[i]
        if (range ~ /\//) {
            split(range, pair, "/")
            range = pair[1]
            step = pair[2]
        }
        if (range == "*") {
            from = low
            to = high
        } else if (range ~ /-/) {
            split(range, pair, "-")
            from = value(pair[1], kind)
            to = value(pair[2], kind)
        } else {
            from = value(range, kind)
            to = parts[i] ~ /\// ? high : from
        }
        offset = number - from
        length_of = to - from
        if (to < from) {
            length_of += high - low + 1
            if (offset < 0) offset += high - low + 1
        }
        if (offset >= 0 && offset <= length_of && (step == 1 || @step_begin@)) return 1
    }
    return 0
}
""",
)

CALENDAR = (
    r"""BEGIN { EPOCH = number_of("2000-01-01") }
""",
    r"""function is_leap(year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) }
""",
    r"""function length_of_month(year, month) {
    if (month == 2) return 28 + is_leap(year)
    return 30 + (month + int(month / 8)) % 2
}
""",
    r"""# Returns the number of a date, counted in days.
function number_of(date,    year, month, day, total) {
    year = substr(date, 1, 4) + 0
    month = substr(date, 6, 2) + 0
    day = substr(date, 9, 2) + 0
    @number_of_day@
}
""",
    r"""# Returns the date of a number.
function date_of(number,    code, year, month) {
    year = 2000
    month = 1
    if (number in texts) return texts[number]
    code = number
    number -= EPOCH
    while (number >= 365 + is_leap(year)) {
        number -= 365 + is_leap(year)
        year++
    }
    while (number >= length_of_month(year, month)) {
        number -= length_of_month(year, month)
        month++
    }
    return texts[code] = sprintf("%04d-%02d-%02d", year, month, number + 1)
}
""",
    r"""# Returns the day of the week, with 1 for Monday; 2000-01-01 was a Saturday.
function weekday_of(number) { return (number - EPOCH + 5) % 7 + 1 }
""",
    r"""# Returns the minutes since midnight of a time.
function minutes_of(clock) { return 60 * substr(clock, 1, 2) + substr(clock, 4, 2) }
""",
    r"""function clock_of(minutes) { return sprintf("%02d:%02d", int(minutes / 60), minutes % 60) }
""",
)

DAYS = (
    r"""# Reads the days on which jobs of a group do not run: GROUP DATE, GROUP DATE..DATE, or GROUP *-MM-DD.
part == "days" {
    split($0, word, " ")
    n = split(word[2], range, "[.][.]")
    if (range[1] ~ /^[*]/) yearly[word[1], substr(range[1], 3)] = 1
    else for (day = number_of(range[1]); day <= number_of(range[n]); day++) dark[word[1], day] = 1
    next
}
""",
    r"""# Tells if a job does not run on a day.
function is_dark(n, day,    groups, count, i) {
    count = split(skip[n], groups, ",")
    for (i = 1; i <= count; i++)
        if ((groups[i], day) in dark || (groups[i], substr(date_of(day), 6)) in yearly) return 1
    return 0
}
""",
    r"""# Returns the day of the run that is due on a day; below 1 for none.
function moved(n, day) {
    if (!is_dark(n, day)) return day
    @blackout_day@
}
""",
    r"""# Tells if a job is due on a day, by its fields.
function is_due(n, day,    date, own, last, extra, by_day, by_week) {
    date = date_of(day)
    own = substr(date, 9) + 0
    if (!fits(months[n], substr(date, 6, 2) + 0, 1, 12, "year")) return 0
    by_week = fits(weekdays[n], weekday_of(day), 1, 7, "week")
    by_day = fits(month_days[n], own, 1, 31, "")
    last = length_of_month(substr(date, 1, 4), substr(date, 6, 2) + 0)
    @short_month@
    if (month_days[n] == "*") return by_week
    if (weekdays[n] == "*") return by_day
    return @day_or_weekday@
}
""",
)

RUNS = (
    r"""BEGIN {
    FS = OFS = "\t"
}
""",
    r"""# Reads the jobs.
{
    total++
    month_days[total] = $3
    months[total] = $4
    weekdays[total] = $5
    title[total] = $6
    machine[total] = $7
    take[total] = $8
    after[total] = $9
    tries[total] = $10
    gap[total] = $11
    window[total] = $12
    skip[total] = $13
    for (hour = 0; hour < 24; hour++) if (fits($2, hour, 0, 23, ""))
        for (minute = 0; minute < 60; minute++) if (fits($1, minute, 0, 59, ""))
            times[total, ++often[total]] = 60 * hour + minute
}
""",
    r"""END {
    begin = number_of(first)
    end = number_of(last)
    for (day = begin - 9; day <= end + 9; day++)
        for (n = 1; n <= total; n++)
            if (is_due(n, day) && (target = moved(n, day)) > 0) planned[n, target] = 1
    for (day = begin - 9; day <= end + 9; day++)
        for (n = 1; n <= total; n++) if ((n, day) in planned) {
            settle(n, day)
            for (k = 1; k <= runs[n, day]; k++) write(n, 1440 * day + begins[n, day, k])
        }
}
""",
    r"""# Returns when the runs of a job on a day have ended, in minutes of that day; -1 for none.
function ended(name, day,    i, k, moment, result) {
    result = -1
    for (i = 1; i <= total; i++) if (title[i] == name && (i, day) in planned) {
        settle(i, day)
        for (k = 1; k <= runs[i, day]; k++) {
            moment = begins[i, day, k] + @end_of_run@
            if (result < 0 || @which_run@) result = moment
        }
    }
    return result
}
""",
    r"""# Sets when the runs of a job on a day begin, behind those that they wait for.
function settle(n, day,    names, count, i, k, moment, least, missing) {
    if ((n, day) in runs) return
    runs[n, day] = 0
    least = 0
    missing = 0
    count = after[n] == "-" ? 0 : split(after[n], names, ",")
    for (i = 1; i <= count; i++) {
        moment = ended(names[i], day)
        if (moment < 0) missing = 1
        else if (moment > least) least = moment
    }
    if (missing) {
        @missing_predecessor@
    }
    runs[n, day] = often[n]
    for (k = 1; k <= often[n]; k++) begins[n, day, k] = times[n, k] > least ? times[n, k] : least
}
""",
    r"""# Prints a run, where its window permits it, and none twice.
function write(n, moment,    own, edge, from, to, inside, day) {
    if (window[n] != "-") {
        split(window[n], edge, "-")
        from = minutes_of(edge[1])
        to = minutes_of(edge[2])
        own = moment % 1440
        if (from <= to) inside = own >= from && before_end(own, to)
        else inside = own >= from || before_end(own, to)
        if (!inside) {
            @outside_window@
        }
    }
    day = int(moment / 1440)
    if (day < begin || day > end || written[n, moment]++) return
    print date_of(day), clock_of(moment % 1440), title[n], machine[n], take[n], tries[n], gap[n]
}
""",
    r"""function before_end(own, to) { return @window_end@ }
""",
)

LOG = (
    r"""BEGIN { FS = OFS = "\t" }
""",
    r"""# Reads a log, in lines such as: 2025-03-04T06:15:10 web cron[812]: job=dump-mail exit=0 try=1
part == "log" {
    sub(/\r$/, "")
    if ($0 !~ / job=/) next
    split($0, word, " ")
    key = word[2] SUBSEP field("job")
    moments[key, ++count[key]] = 1440 * number_of(word[1]) + minutes_of(@log_offset@
    codes[key, count[key]] = field("exit") + 0
    next
}
""",
    r"""{
    start = 1440 * number_of($1) + minutes_of($2)
    @grace@
    latest += @retry_minutes@
    outcome = "absent"
    key = $4 SUBSEP $3
    for (i = 1; i <= count[key]; i++) {
        if (moments[key, i] < start || moments[key, i] > latest) continue
        code = codes[key, i]
        if (@successful_exits@) outcome = "done"
        if (outcome == "absent") outcome = "failed"
    }
    if (outcome == "done") next
    @counted_as_missed@
    print $1, $2, $3, $4, outcome
}
""",
    r"""# Returns a field of a line of a log.
function field(word,    place, rest) {
    place = index($0, " " word "=")
    rest = substr($0, place + length(word) + 2)
    sub(/ .*/, "", rest)
    return rest
}
""",
)

LATER = """{ print date_of(number_of($1) + $2) }
"""

BUSY = r"""# Counts busy minutes of machines, by hours of a day.
BEGIN { FS = "\t" }
{
    start = 1440 * (number_of($1) - number_of(date)) + minutes_of($2)
    for (minute = start; minute < start + $5; minute++)
        if (minute >= 0 && minute < 1440 && @overlap@) busy[$4 " " int(minute / 60)]++
}
END { for (key in busy) print key, busy[key] }
"""

SETTINGS = """# Read by bash.
TAKE=@take@
HOST=@usual@
GAP=@gap@
AHEAD=@ahead@
"""

FORMATS = """# Tables of jobs

A folder such as `cron/` has `tables.txt`, which names tables, and `days.txt`. `#` begins a comment at the beginning of
a line, and behind a blank. A table has lines of MINUTE HOUR DAY MONTH WEEKDAY NAME, and options behind them. As in
other tables of this kind, a field is `*`, a number, a range such as `1-5`, or several with commas between them, and
`/3` is a step of 3; `5/20` is 5, and then every 20 up to the highest number. A range may go over the highest number, as
in `fri-mon`. Days and months may have names, in any case of letters, of which the first three count.

A line such as `HOST=web` says on which host the next jobs of this table run, if they do not say it themselves; those
before it run on `@usual@`. `etc/hosts.txt` has the machine of a host; machines are printed. For this year: `db` is
@machine_db@, `files` @machine_files@, `mail` @machine_mail@, and `web` @machine_web@. Options:

- `host=web`: where it runs.
- `take=20`: how many minutes it takes; without it, @take@.
- `after=A,B`: it begins at its time, or when A and B have ended on that day, if this is later.
- `retry=3/10`: it is tried 3 times more, 10 minutes later; `retry=3` is `retry=3/@gap@`.
- `window=06:00-22:00`: when it may begin; a window may go over midnight. Windows are looked at last: who waits for a
  job does so as if it had no window.
- `skip=holidays,freeze`: it does not run on the days of these groups, which stand in `days.txt`: a day, a range of days
  (`2025-05-01..2025-05-03`, both included), or `*-05-01` for each year.

A job does not run twice at the same minute.

# Programs

- `bin/plan FOLDER FIRST LAST` prints the runs of some days.
- `bin/next FOLDER DATE TIME JOB...` prints when jobs run next, within @ahead@ days, or `never`.
- `bin/missed FOLDER FIRST LAST LOG` prints runs that are not in a log. A run is in it where its machine has written
  that the job was done, between its time and the latest one, both included: that is the time of the last try, if all
  before it fail at once, and some minutes of grace.
- `bin/busy FOLDER DATE` prints the hours of a day in which a machine has something to do.
"""
