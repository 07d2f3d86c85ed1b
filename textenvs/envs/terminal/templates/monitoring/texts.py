"""Files of the template `monitoring`; what stands between @ is drawn."""

MONITOR = """#!/bin/bash
# Reports on a folder of readings. Usage: bin/monitor REPORT FOLDER MINUTE
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
LIB=$ROOT/@lib@
export LC_ALL=C
report=$1 folder=$2 now=$3
settings=$(awk -f "$LIB/ini.awk" "$ROOT/@etc@/monitor.ini" "$folder/rules.ini")

# Prints a value of the section monitor.
setting() {
    awk -F'\\t' -v entry="$1" '$1 == "monitor" && $2 == entry { print $3 }' <<< "$settings"
}

stale=$(setting @stale_key@)
. "$LIB/readings.sh"
. "$LIB/silences.sh"
. "$LIB/@alerts@.sh"
. "$LIB/$report.sh"
report
"""

INI = """# Prints SECTION, KEY and VALUE of ini files, with tabs between them. Of equal keys the last one counts.
function trimmed(text) {
    gsub(/^[ \\t]+|[ \\t]+$/, "", text)
    return text
}
{ sub(/\\r$/, "") }
/^[ \\t]*([;#]|$)/ { next }
/^[ \\t]*\\[/ {
    section = $0
    gsub(/^[ \\t]*\\[[ \\t]*|[ \\t]*\\][ \\t]*$/, "", section)
    next
}
{
    place = index($0, "=")
    key = trimmed(tolower(substr($0, 1, place - 1)))
    text = substr($0, place + 1)
    sub(/[ \\t];.*$/, "", text)
    if (!((section, key) in values)) names[++count] = section "\\t" key
    values[section, key] = trimmed(text)
}
END {
    for (n = 1; n <= count; n++) {
        split(names[n], cells, "\\t")
        print names[n] "\\t" values[cells[1], cells[2]]
    }
}
"""

READINGS = """# Prints MINUTE HOST METRIC VALUE of all readings by time; counters as growth per minute.
readings() {
    awk -f "$LIB/units.awk" "$folder"/*.data | sort -k2,3 -k1,1n | uniq | awk -f "$LIB/@rates@.awk" | sort -k1,1n -k2,3
}
"""

UNITS = """# Reads MINUTE HOST METRIC VALUE; a value that is no number is no reading.
BEGIN { factor["K"] = 1; factor["M"] = 1024; factor["G"] = 1024 * 1024; factor["ms"] = 1; factor["s"] = 1000 }
NF < 4 || $4 !~ /[0-9]/ { next }
{
    unit = $4
    gsub(/[0-9.]/, "", unit)
    value = $4 + 0
    if (unit in factor) value *= factor[unit]
    printf "%d %s %s %.2f\\n", $1, $2, $3, value
}
"""

RATES = """# Reads readings by host, metric and time. A metric with _total at its end counts up.
$3 !~ /_total$/ { print; next }
{
    same = ($2 " " $3 == series)
    grown = $4 - before
    spent = $1 - minute
    series = $2 " " $3
    before = $4
    minute = $1
    if (!same) next
    @counter_restart@
    printf "%d %s %s %.2f\\n", $1, $2, $3, grown / spent
}
"""

SILENCES = """# Tells if a host and a rule are silenced now. A line is FROM TO HOSTS RULES, the last two as patterns.
silenced() {
    local from to hosts kinds rest
    while read -r from to hosts kinds rest || [ -n "$from" ]; do
        case $from in '#'* | '') continue ;; esac
        if [ "$now" -ge "$from" ] && [ "$now" @end_of_silence@ ] && [[ $1 == $hosts && $2 == $kinds ]]; then
            return 0
        fi
    done < "$folder/silences.txt"
    return 1
}
"""

ALERTS_SH = """# Prints SINCE RULE HOST SEVERITY LABEL of the alerts that are on.
alerts() {
    local since rule host severity label
    readings |
        awk -v now="$now" -v stale="$stale" -f "$LIB/@alerts@.awk" <(echo "$settings") - |
        while read -r since rule host severity label; do
            if silenced "$host" "$rule"; then
                @silenced_alerts@
            fi
            echo "$since $rule $host $severity $label"
        done
}
"""

ALERTS_AWK = """# Reads settings, then readings by time. What a section rule:NAME lacks is in the section defaults.
function option(rule, key) {
    return ((rule, key) in setting) ? setting[rule, key] : setting["defaults", key]
}
function breaks(value, above, below) {
    value += 0
    return @at_limit@
}
FNR == NR {
    split($0, cells, "\\t")
    setting[cells[1], cells[2]] = cells[3]
    if (cells[1] ~ /^rule:/ && !(cells[1] in seen)) rules[++count] = cells[1]
    seen[cells[1]] = 1
    next
}
{
    for (n = 1; n <= count; n++) {
        if (option(rules[n], "metric") != $3) continue
        pair = rules[n] SUBSEP $2
        last[pair] = $1
        if (breaks($4, option(rules[n], "above"), option(rules[n], "below"))) {
            if (!(pair in since)) since[pair] = $1
            calm[pair] = 0
        } else if (++calm[pair] @calm_readings@ delete since[pair]
    }
}
END {
    for (pair in since) {
        split(pair, cells, SUBSEP)
        severity = option(cells[1], "severity")
        if (now - last[pair] @stale_alerts@
        if (@too_short@ option(cells[1], "for") + 0) continue
        print since[pair], substr(cells[1], 6), cells[2], severity, option(cells[1], "label")
    }
}
"""

STATUS = """# The last reading of each host and metric.
report() {
    readings | awk -v now="$now" -v stale="$stale" '
        { name = $2 " " $3; value[name] = $4; minute[name] = $1 }
        END {
            for (name in value) {
                split(name, cells, " ")
                if (now - minute[name] > stale) @stale_status@
                @status_line@
            }
        }' | @order_of_status@
}
"""

LIST = """# The alerts that are on.
report() {
    alerts | awk '
        BEGIN { rank["critical"] = 1; rank["warning"] = 2; rank["info"] = 3 }
        { print (($4 in rank) ? rank[$4] : 9), $0 }' |
        sort @order_of_alerts@ | awk '{ @alert_line@ }'
}
"""

CALLS = """# Who is called for which alert. The rota has a name a line.
report() {
    alerts | awk -v now="$now" -v after="$(setting @after_key@)" -v least="$(setting @least_key@)" \\
        -f "$LIB/calls.awk" "$ROOT/@etc@/rota.txt" - | sort
}
"""

CALLS_AWK = """# Reads the rota, then alerts. After some minutes the next one is called, up to the last one.
BEGIN { rank["critical"] = 1; rank["warning"] = 2; rank["info"] = 3 }
FNR == NR {
    if ($0 !~ /^#/ && NF) names[people++] = $1
    next
}
($4 in rank) && rank[$4] <= rank[least] {
    level = @escalation_step@
    if (level > people - 1) level = people - 1
    turn = @shift_minutes@
    name = names[(turn + level) % people]
    @call_line@
}
"""

FIGURES = """# A figure of each metric over the readings of all hosts in the last minutes.
report() {
    readings | awk -v now="$now" -v window="$(setting @window_key@)" '
        $1 <= now - window || $1 > now { next }
        {
            metric = $3
            count[metric]++
            sum[metric] += $4
            if (count[metric] == 1 || $4 > high[metric]) high[metric] = $4
            if (count[metric] == 1 || $4 < low[metric]) low[metric] = $4
        }
        END { for (metric in count) printf @figure_line@@figure_of_window@ }' | sort
}
"""

SETTINGS = """; Settings of all folders. A folder has its rules in rules.ini, which may replace what stands here.
[monitor]
@stale_key@ = @stale@
@window_key@ = @window@
@after_key@ = @after@
@least_key@ = @least@

[defaults]
severity = warning
for = @for@
label = none
"""

ROTA = """# Who is on call, in this order.
@people@
"""
