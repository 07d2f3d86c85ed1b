"""Files of the template `loghost`; what stands between @ is drawn."""

SUMMARY = """#!/bin/bash
# A summary of the logs of a folder. Usage: bin/summary SECTION FOLDER
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
export ROOT LC_ALL=C
. "$ROOT/@etc@/site.conf"

lock=$ROOT/run/summary.lock
if [ -e "$lock" ]; then
    echo "another summary has been running since $(cat "$lock")" >&2
    exit 75
fi
used=$(du -sk --apparent-size "$ROOT/run" | cut -f1)
if [ "$used" -gt "$run_quota_kib" ]; then
    echo "no space left: run/ has $used of $run_quota_kib KiB" >&2
    exit 74
fi

. "$ROOT/@lib@/$1.sh"
summarise "$2"
"""

HOSTS = """# Requests of each host.
summarise() {
    find "$1" -name '*.log' | sort | while IFS= read -r file; do
        awk -f "$ROOT/@lib@/names.awk" "$ROOT/@etc@/hosts.tsv" "$file"
    done | sort | uniq -c | sort @tie_order@ | awk '@fewest_requests@ { @host_line@ }'
}
"""

NAMES = """# Prints the name of each request's host. An address without a name stays as it is.
FNR == NR { name[$1] = $2; next }
{ print((($2 in name) ? name[$2] : $2)) }
"""

HOURS = """# Requests by the hour, in local time.
summarise() {
    cat "$1"/*.log | awk -v offset="$utc_offset" '
        @counted_requests@ {
            hour = substr($1, 12, 2) + offset
            hour = (hour + 24) % 24
            hour -= @hours_of_block@
            count[hour]++
        }
        END { for (hour = 0; hour < 24; hour++) if (count[hour]) printf @hour_line@, hour, count[hour] }'
}
"""

SLOW = """# The slow paths, without sessions, by a percentile of their milliseconds.
summarise() {
    cat "$1"/*.log |
        awk '{ path = $4; @session_mark@[^\\/]*/, "", path); print path, $7 }' |
        sort -k1,1 -k2,2n |
        awk -v limit="$slow_ms" -v percent="$slow_percent" -f "$ROOT/@lib@/percentile.awk" |
        @order_of_paths@
}
"""

PERCENTILE = """# Reads lines PATH MILLISECONDS, sorted. The place of the percentile is rounded up.
function finish(    place) {
    place = int((count * percent + 99) / 100)
    if (count && @slow_limit@) print @slow_line@
}
$1 != path { finish(); path = $1; count = 0 }
{ value[++count] = $2 }
END { finish() }
"""

ERRORS = """# Errors by path, without ignored paths. There is an alarm where there are too many.
summarise() {
    local ignored="" path errors count
    while read -r path || [ -n "$path" ]; do
        ignored="$ignored $path"
    done < "$1/ignored.txt"
    errors=$(cat "$1"/*.log | awk -v ignored="$ignored" '
        BEGIN { split(ignored, list, " "); for (i in list) skip[list[i]] = 1 }
        @error_statuses@ && !($4 in skip) { print $4 }')
    count=$(echo "$errors" | wc -l)
    echo "$errors" | sort | uniq -c | @order_of_errors@ | awk '{ @error_line@ }'
    if [ "$count" -gt "$allowed_errors" ]; then
        @alarm_status@
    fi
}
"""

OUTAGES = """# How long each service was down, from state.log and its older parts, the oldest first.
summarise() {
    (cd "$1" && ls state.log* | sort -t. -k3,3nr | xargs cat) | awk '
        $3 == "down" && !($2 in since) { since[$2] = $1 }
        $3 == "up" && ($2 in since) { @sum_of_outages@; delete since[$2] }
        END { for (name in total) @outage_line@ }' | sort
}
"""

SITE = """slow_ms=@slow_ms@
slow_percent=@slow_percent@
# Hours to add to UTC. (Summer time was switched off in 2019.)
utc_offset=@utc_offset@
allowed_errors=@allowed_errors@
run_quota_kib=@run_quota_kib@
"""
