"""Files of the template `payroll`; what stands between @ is drawn."""

PAYROLL = """#!/bin/bash
# Prints the payslips of a month, and the totals of teams. Usage: bin/payroll FOLDER MONTH
set -u
export LC_ALL=C
ROOT=$(cd "$(dirname "$0")/.." && pwd)
LIB=$ROOT/@lib@
TAB=$(printf '\\t')
folder=$1 month=$2
last=$(date -d "$month-01 +1 month -1 day" +%F)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tail -n +2 "$folder/people.tsv" | sort -t "$TAB" -k1,1 > "$work/people"
cat "$folder"/clock/*.log | tr -d '\\r' | sort -k4,4 -k1,2 |
    awk -f "$LIB/dates.awk" -f "$LIB/@shifts@.awk" |
    awk -v first="$month-01" -v last="$last" -f "$LIB/dates.awk" -f "$LIB/days.awk" "$folder/holidays.txt" - |
    sort -t "$TAB" -k1,1 > "$work/hours"
awk -F "$TAB" -v month="$month" '$3 == "sick" && index($2, month) == 1 { sick[$1]++ }
    END { for (id in sick) print id "\\t" sick[id] }' "$folder/absences.tsv" | sort -t "$TAB" -k1,1 > "$work/sick"
awk -F "$TAB" '{ sum[$1] += $2 } END { for (id in sum) print id "\\t" sum[id] }' "$folder/advances.tsv" |
    sort -t "$TAB" -k1,1 > "$work/advances"

join -t "$TAB" -a 1 -e 0 -o auto "$work/people" "$work/hours" |
    join -t "$TAB" -a 1 -e 0 -o auto - "$work/sick" |
    join -t "$TAB" -a 1 -e 0 -o auto - "$work/advances" |
    awk -v month="$month" -f "$LIB/@pay@.awk" "$ROOT/etc/@tariff@.conf" "$ROOT/etc/tax.tsv" - > "$work/pay"
sort -t "$TAB" @order_of_slips@ | awk -f "$LIB/slip.awk"
awk -F "$TAB" '{ sum[$3] += $15 } END { for (team in sum) print team "\\t" sum[team] }' "$work/pay" |
    sort -t "$TAB" @order_of_teams@ tr '\\t' ' '
"""

DATES = """# Days as numbers: 0 is a Wednesday.
function day_number(text,    parts, y, m) {
    split(text, parts, "-")
    y = parts[1] - (parts[2] < 3)
    m = (parts[2] + 9) % 12
    return 365 * y + int(y / 4) - int(y / 100) + int(y / 400) + int((153 * m + 2) / 5) + parts[3] - 1
}
"""

SHIFTS = """# Reads DATE TIME in|out ID by person and time; prints ID BEGIN END of the shifts, in minutes.
function down(time, step) {
    return int(time / step) * step
}
function up(time, step) {
    return down(time + step - 1, step)
}
function unpaid(spent) {
    return @unpaid_break@
}
function finish(begin, end) {
    @clock_rounding@
    end -= unpaid(end - begin)
    if (end > begin) print person "\\t" begin "\\t" end
}
function forgotten() {
    @forgotten_out@
}
{
    split($2, clock, ":")
    now = 1440 * day_number($1) + 60 * clock[1] + clock[2]
    if ($4 != person) {
        if (started) forgotten()
        started = 0
        person = $4
    }
    if ($3 == "in") {
        if (started) forgotten()
        started = now
    } else if (started) {
        finish(started, now)
        started = 0
    }
}
END { if (started) forgotten() }
"""

DAYS = """# Reads holidays, then ID BEGIN END; prints ID MINUTES OVERTIME NIGHT FESTIVE DAYS of each person.
BEGIN {
    first = day_number(first)
    last = day_number(last)
}
FILENAME ~ /holidays\\.txt$/ {
    if ($1 !~ /^#/) festive[day_number($1)] = 1
    next
}
{
    for (now = $2; now < $3; now++) {
        day = @day_of_shift@
        if (day < first || day > last) continue
        total[$1]++
        if (++spent[$1, day] @daily_hours@) over[$1]++
        time = now % 1440
        dark = @night_hours@
        feast = (day in festive) || (day + 3) % 7 == 0
        @supplements@
    }
}
END {
    for (key in spent) {
        split(key, cells, SUBSEP)
        if (spent[key] >= @allowance_hours@ days[cells[1]]++
    }
    OFS = "\\t"
    for (id in total) print id, total[id], over[id] + 0, night[id] + 0, sunday[id] + 0, days[id] + 0
}
"""

PAY = """# Reads the tariff, the tax, then people with what they worked; prints the amounts of each, in cents.
function rounded(cents) {
    return @rounding@
}
function age(birth,    parts) {
    split(birth, parts, "-")
    return substr(month, 1, 4) - parts[1] - (parts[2] + 0 > substr(month, 6) + 0)
}
function least(one, other) {
    return one < other ? one : other
}
function tax(sum,    n, total) {
    for (n = 1; n <= count; n++) {
        @tax_of_brackets@
    }
    return rounded(total / 100)
}
BEGIN { FS = OFS = "\\t" }
FILENAME ~ /\\.conf$/ {
    split($0, cells, / *= */)
    tariff[cells[1]] = cells[2]
    next
}
FILENAME ~ /tax\\.tsv$/ {
    from[++count] = $1
    percent[count] = $2
    next
}
{
    rate = $4
    children = $6
    sick = $12
    basic = rounded($7 * rate / 60)
    overtime = rounded(@overtime_percent@ / 6000)
    night = rounded(@night_percent@ / 6000)
    sunday = rounded(@sunday_percent@ / 6000)
    allowance = $11 * tariff["@allowance_key@"]
    ill = rounded(@sick_pay@)
    gross = basic + overtime + night + sunday + allowance + ill
    pension = age($5) @pension_age@ ? rounded(gross * tariff["@pension_key@"] / 100) : 0
    duty = tax(gross - pension)
    @counted_children@ * tariff["@child_key@"]
    net = gross - pension - duty + family
    @advance@
    net -= back
    print $1, $2, $3, $7, basic, overtime, night, sunday, allowance, ill, pension, duty, family, back, net
}
"""

SLIP = """# Prints a payslip for each line of amounts.
function money(cents,    sign) {
    sign = cents < 0 ? "-" : ""
    if (cents < 0) cents = -cents
    return sign @money@
}
function line(label, cents) {
    @zero_lines@
    print @slip_line@
}
BEGIN {
    FS = "\\t"
    count = split("basic overtime night sunday allowance sick pension tax children advance net", labels, " ")
}
{
    print @slip_title@
    print "hours " @hours@
    for (n = 1; n <= count; n++) line(labels[n], $(n + 4))
}
"""

CONF = """@allowance_key@ = @allowance@
@pension_key@ = @pension@
@child_key@ = @child@
"""

TAX = """0\t0
@first@\t8
@second@\t14
@third@\t22
"""

FORMAT = """# Data and slips

- `people.tsv`: number, name, team, cents for an hour, birthday, children. Everybody gets a slip.
- `clock/*.log`: `DAY TIME in|out NUMBER`. The clocks of two doors may have one shift; one system ends lines in its own
  way. An `out` without an `in` is nothing. A shift that goes over midnight is one shift.
- `absences.tsv`: number, day, and why. Only `sick` is paid, in the month of the day.
- `holidays.txt`: days for which the supplement of Sundays is paid. `#` begins a comment.
- `advances.tsv`: number and cents, which may be in several lines.

A shift is rounded first. Then the break that is not paid is taken off its end. Overtime is what is worked on a day
beyond its hours; it is paid as all hours are, and the supplement comes on top. The allowance of @allowance@ cents is
for a day with enough hours. Sick days count 8 hours each.

The pension is @pension@ % of the gross amount, which has all but the money for children. Somebody of whom it is asked
must have reached the age by the end of the month. What is left after the pension is taxed, by the brackets in
`etc/tax.tsv` (from cents, percent): 8 % from @first@, 14 % from @second@ and 22 % from @third@ cents. For a child
@child@ cents are added, which are not taxed. Advances are taken off the rest. All computed amounts are rounded.

A slip has a title, the hours, and basic, overtime, night, sunday, allowance, sick, pension, tax, children, advance and
net. The last lines have the net amounts of teams, in cents.
"""
