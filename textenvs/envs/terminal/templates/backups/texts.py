"""Files of the template `backups`; what stands between @ is drawn."""

FOLDERS = ("cache", "spool", "scratch", "work")

BACKUP = """#!/bin/bash
# Copies a folder into the store. Usage: bin/backup FOLDER STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
@umask@
target=$2/$3
mkdir -p "$target"
cd "$1" || exit 1

shopt -s dotglob nullglob
count=0
for file in *; do
    if excluded "$file"; then
        continue
    fi
    cp -Rp "$file" "$target/"
    count=$((count + 1))
done

cd "$target" || exit 1
find . -type f ! -name @manifest@ -print0 | LC_ALL=C sort -z | xargs -0 @digest@ @manifest@
ln -sfn "$3" @link@
@copied_line@
"""

ROTATE = """#!/bin/bash
# Removes old backups: all but the newest ones, and one of each month. Usage: bin/rotate STORE DATE
set -u
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/common.sh"
. "$ROOT/@etc@/backup.conf"
store=$1 today=$2

declare -A first
while read -r name; do
    @overwritten_first@
done < <(backups "$store")

removed=0 position=0
while read -r name; do
    position=$((position + 1))
    if [ "$position" -le "$keep_newest" ]; then
        continue
    fi
    if [ "${first[${name:0:7}]:-}" = "$name" ] && [ "$(months "$name" "$today")" @kept_months@ ]; then
        continue
    fi
    if [ "$dry_run" = no ]; then
        @removal@
    fi
    removed=$((removed + 1))
done < <(backups "$store" -r)
@removed_line@
"""

COMMON = """# Functions of all scripts.

# Tells if a name fits one of the excluded patterns, which are those of the shell.
excluded() {
    local pattern
    while read -r pattern; do
        case $1 in
            $pattern) return 0 ;;
        esac
    done < "$ROOT/@etc@/exclude.txt"
    return 1
}

# Lists the backups of a store, the oldest first. Other folders are left alone.
backups() {
    ls -1 ${2:-} "$1" | grep -E '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'
}

# Prints how many months lie between two dates.
months() {
    local years=$((${2:0:4} - ${1:0:4}))
    echo $((years * 12 + 10#${2:5:2} - 10#${1:5:2}))
}
"""

DUE = """#!/bin/sh
# Tells for each time which jobs are due. Usage: bin/due TABLE TIMES
# A line of TIMES is MINUTE HOUR DAY MONTH WEEKDAY, with 0 for Sunday.
exec awk -f "$(dirname "$0")/../@lib@/due.awk" "$1" "$2"
"""

DUE_AWK = """# Reads a table as cron has it, then times.
function fits(field, value,    parts, count, i, range) {
    count = split(field, parts, ",")
    for (i = 1; i <= count; i++) {
        if (parts[i] == "*") return 1
        if (substr(parts[i], 1, 2) == "*/") {
            @step_offset@
        } else if (split(parts[i], range, "-") == 2) {
            if (value >= range[1] + 0 && value <= range[2] + 0) return 1
        } else if (parts[i] + 0 == value) return 1
    }
    return 0
}
function due(n, minute, hour, day, month, weekday,    in_month, in_week) {
    if (!fits(field[n, 1], minute) || !fits(field[n, 2], hour) || !fits(field[n, 4], month)) return 0
    in_month = fits(field[n, 3], day)
    in_week = fits(field[n, 5], weekday)
    if (weekday == 0) in_week = in_week || fits(field[n, 5], 7)
    if (field[n, 3] != "*" && field[n, 5] @day_and_weekday@
    return in_month && in_week
}
FNR == NR {
    if ($0 ~ /^#/ || NF < 6) next
    jobs++
    for (i = 1; i <= 5; i++) field[jobs, i] = $i
    name[jobs] = $6
    next
}
{
    line = @due_head@
    for (n = 1; n <= jobs; n++) if (due(n, $1, $2, $3, $4, $5)) line = @due_separator@[n]
    print line
}
"""

CONF = """# How many backups bin/rotate leaves.
keep_newest=@newest@
keep_months=@months@
# With yes, nothing is removed. (It is yes on the test host.)
dry_run=no
"""

CRONTAB = """# minute hour day month weekday job
@minute@ @hour@ * * * nightly
@later@ @hour@ * * * rotate
*/@step@ * * * 1-5 check
0 12 1 * * report
"""
