"""Files of the template `parcels`; what stands between @ is drawn, and between << and >> stands a drawn shape."""

DAY = r"""#!/bin/bash
# Makes lists of a day: prices, bills, routes, states, late. Usage: bin/day FOLDER LIST...
set -eu -o pipefail
export LC_ALL=C root folder work
root=$(cd "$(dirname "$0")/.." && pwd)
set -a
. "$root/etc/@settings@.conf"
set +a
folder=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while read -r step words; do
    [[ -n $step && $step != '#'* ]] || continue
    bash "$root/@steps@/$step.sh" < /dev/null
done < "$root/etc/steps.txt"
for list in "$@"; do
    echo @title_of_list@
    bash "$root/lists/$list.sh"
done
"""

ORDER = """# The steps of bin/day, in their order.
clean     parcels.tsv
zones     zones.tsv
prices    priced.tsv
paths     paths.tsv
events    events.tsv
promises  due.tsv
"""

CLEAN = r"""# NUMBER, CUSTOMER, FROM, TO, GRAMS, three sides, SERVICE and TIME of parcels, in the order of numbers.
sed 's/\r$//; s/^[ \t]*//; /^#/d; /^$/d' "$folder"/parcels*.txt |
    awk <<numbers>>-f "$root/@awk@/clean.awk" | sort -t $'\t' -k1,1 > "$work/parcels.tsv"
"""

NUMBERS = r"""# Check digits of parcels, such as RA123456785CH.
function is_valid(number,    i, total, digit) {
    if (length(number) != 13) return 0
    for (i = 1; i <= 8; i++) total += substr("86423597", i, 1) * substr(number, i + 2, 1)
    digit = 11 - total % 11
    if (digit == 10) digit = 0
    if (digit == 11) digit = 5
    return digit == substr(number, 11, 1)
}
"""

#: Two ways to put three sides into order: the longest is the first.
CLEANS = (
    r"""# Reads NUMBER;CUSTOMER;FROM;TO;WEIGHT;SIDES;SERVICE;TIME of parcels.
function grams(text) {
    sub(/,/, ".", text)
    if (text ~ /kg$/) return int(1000 * text + 0.5)
    return text + 0
}
function ordered(text,    parts, i, j, swap) {
    split(text, parts, "x")
    for (i = 1; i < 3; i++) {
        for (j = i + 1; j <= 3; j++) {
            if (parts[j] + 0 > parts[i] + 0) { swap = parts[i]; parts[i] = parts[j]; parts[j] = swap }
        }
    }
    return parts[1] OFS parts[2] OFS parts[3]
}
""",
    r"""# Reads NUMBER;CUSTOMER;FROM;TO;WEIGHT;SIDES;SERVICE;TIME of parcels.
function ordered(text,    parts, i, longest, shortest, sum) {
    split(text, parts, "x")
    longest = shortest = parts[1] + 0
    for (i = 1; i <= 3; i++) {
        sum += parts[i]
        if (parts[i] + 0 > longest) longest = parts[i] + 0
        if (parts[i] + 0 < shortest) shortest = parts[i] + 0
    }
    return longest OFS (sum - longest - shortest) OFS shortest
}
function grams(text) {
    sub(/,/, ".", text)
    if (text ~ /kg$/) return int(1000 * text + 0.5)
    return text + 0
}
""",
)

CLEAN_LINES = r"""BEGIN { FS = ";"; OFS = "\t" }
{
    for (i = 1; i <= NF; i++) gsub(/^ +| +$/, "", $i)
    number = toupper($1)
    if (!is_valid(number)) next
    weight = grams($5)
    @repeated_number@
    heaviest[number] = weight
    lines[number] = number OFS $2 OFS $3 OFS $4 OFS weight OFS ordered($6) OFS $7 OFS $8
}
END { for (number in lines) print lines[number] }
"""

ZONES = r"""# NUMBER, ZONE of the sender, ZONE of the receiver and CLASS of parcels, in the order of numbers.
awk -f "$root/@awk@/prefix.awk" -f "$root/@awk@/zones.awk" "$root/etc/zones.txt" "$work/parcels.tsv" |
    sort -t $'\t' -k2,2 > "$work/pairs.tsv"
awk -v OFS='\t' '!/^#/ && NF == 3 { print $1 "-" $2, $3; if ($1 != $2) print $2 "-" $1, $3 }' "$root/etc/classes.txt" |
    sort -t $'\t' -k1,1 > "$work/classes.tsv"
join -t $'\t' -1 2 -2 1 -o 1.1,1.3,1.4,2.2 "$work/pairs.tsv" "$work/classes.tsv" |
    sort -t $'\t' -k1,1 > "$work/zones.tsv"
"""

PREFIX = r"""# A table of PREFIX and NAME, and the name of a code's longest prefix.
function remember(line,    words) {
    if (line ~ /^#/ || split(line, words, " ") < 2) return
    names[words[1]] = words[2]
}
<<longest>>
"""

#: Two ways to find the longest prefix, and what is wrong with them in a fault.
PREFIXES = (
    """function name_of(code,    size) {
    for (size = length(code); size > 0; size--) {
        if (substr(code, 1, size) in names) return names[substr(code, 1, size)]
    }
    return ""
}""",
    """function name_of(code,    prefix, best) {
    for (prefix in names) {
        if (index(code, prefix) == 1 && length(prefix) > length(best)) best = prefix
    }
    return best == "" ? "" : names[best]
}""",
)

ZONE_LINES = r"""# Prints NUMBER, PAIR, ZONE and ZONE of parcels.
BEGIN { OFS = "\t" }
FNR == NR { remember($0); next }
{
    split($0, fields, "\t")
    source = name_of(fields[3])
    goal = name_of(fields[4])
    if (source == "") source = "@far@"
    if (goal == "") {
        @code_without_zone@
    }
    print fields[1], source "-" goal, source, goal
}
"""

PRICES = r"""# NUMBER, CUSTOMER, CLASS, billed GRAMS and CENTS of parcels, in the order of numbers.
join -t $'\t' "$work/parcels.tsv" "$work/zones.tsv" |
    awk -f "$root/@awk@/prices.awk" "$root/etc/tariff.txt" - > "$work/priced.tsv"
"""

PRICE_LINES = r"""# Prints NUMBER, CUSTOMER, CLASS, billed GRAMS and CENTS.
function fits(weight, limit) {
    @weight_at_step@
}
function tariff(class, service, weight,    i, best, price, top, last, kilos) {
    for (i = 1; i <= count; i++) {
        if (classes[i] != class || services[i] != service) continue
        if (limits[i] > top) { top = limits[i]; last = cents[i] }
        if (fits(weight, limits[i]) && (best == "" || limits[i] < best)) { best = limits[i]; price = cents[i] }
    }
    if (best != "") return price
    @heavier_than_all@
    return last + kilos * ENVIRON["@kilo_key@"]
}
BEGIN { OFS = "\t" }
FNR == NR {
    if (!/^#/ && NF == 4) {
        count++
        classes[count] = $1; services[count] = $2; limits[count] = $3 + 0; cents[count] = $4
    }
    next
}
FNR == 1 { FS = "\t"; $0 = $0 }
{
    grams = $5
    volume = @volume_of_gram@
    @billed_weight@
    billed = int((billed + @full_grams@
    price = tariff($13, $9, billed)
    @bulky_measure@
    bulky = girth > ENVIRON["@girth_key@"] ? ENVIRON["@bulky_key@"] : 0
    @basis_of_fuel@
    part = basis * ENVIRON["@fuel_key@"]
    @cents_of_fuel@
    print $1, $2, $13, billed, price + bulky + fuel
}
"""

PATHS = r"""# NUMBER, PATH and COST of parcels, in the order of numbers.
awk -f "$root/@awk@/prefix.awk" -f "$root/@awk@/paths.awk" "$root/etc/depots.txt" "$root/etc/links.txt" \
    "$work/parcels.tsv" > "$work/paths.tsv"
"""

PATH_LINES = r"""# Prints NUMBER, PATH and COST of parcels, by tables of depots and links.
function add(tail, head, cost) {
    count++
    tails[count] = tail; heads[count] = head; lengths[count] = cost + ENVIRON["@wait_key@"]
}
<<search>>
BEGIN { OFS = "\t" }
FNR == 1 { table++ }
table == 1 { remember($0); next }
table == 2 {
    if (/^#/ || NF != 4) next
    @measure_of_links@
    add($1, $2, measure)
    @way_back@
    next
}
{
    start = name_of($3)
    end = name_of($4)
    if (!(start in searched)) search(start)
    cost = costs[start, end]
    @waiting_times@
    print $1, ways[start, end], cost
}
"""

#: Two ways to find all shortest paths from a depot: with all links again and again, or with the nearest depot first.
SEARCHES = (
    r"""function search(start,    i, cost, way, key, changed) {
    searched[start] = 1
    costs[start, start] = 0
    ways[start, start] = start
    do {
        changed = 0
        for (i = 1; i <= count; i++) {
            if (!((start, tails[i]) in costs)) continue
            cost = costs[start, tails[i]] + lengths[i]
            way = ways[start, tails[i]] ">" heads[i]
            key = start SUBSEP heads[i]
            if (!(key in costs) || cost < costs[key] || (cost == costs[key] && way < ways[key])) {
                costs[key] = cost
                ways[key] = way
                changed = 1
            }
        }
    } while (changed)
}""",
    r"""function search(start,    i, cost, way, key, near, ready) {
    searched[start] = 1
    costs[start, start] = 0
    ways[start, start] = start
    for (near = start; near != ""; near = nearest(start, ready)) {
        ready[near] = 1
        for (i = 1; i <= count; i++) {
            if (tails[i] != near) continue
            cost = costs[start, near] + lengths[i]
            way = ways[start, near] ">" heads[i]
            key = start SUBSEP heads[i]
            if (!(key in costs) || cost < costs[key] || (cost == costs[key] && way < ways[key])) {
                costs[key] = cost
                ways[key] = way
            }
        }
    }
}
function nearest(start, ready,    i, best) {
    for (i = 1; i <= count; i++) {
        if (heads[i] in ready || !((start, heads[i]) in costs)) continue
        if (best == "" || costs[start, heads[i]] < costs[start, best]) best = heads[i]
    }
    return best
}""",
)

SHORTEST = (
    (
        "for (size = length(code); size > 0; size--) {",
        "for (size = 1; size <= length(code); size++) {",
    ),
    (
        "index(code, prefix) == 1 && length(prefix) > length(best)",
        'index(code, prefix) == 1 && (best == "" || length(prefix) < length(best))',
    ),
)

EVENTS = r"""# NUMBER, MINUTE, ORDER, EVENT and DEPOT of scans, in the order of numbers, minutes and orders.
awk -f "$root/@awk@/calendar.awk" -f "$root/@awk@/events.awk" "$root/etc/ranks.txt" "$folder/clocks.txt" \
    "$folder"/scans/*.log | sort -t $'\t' -k1,1 -k2,2n -k3,3n > "$work/events.tsv"
"""

CALENDAR = r"""# Times such as 2025-03-04T08:15 as minutes since 1970, and weekdays.
function day_of(date,    parts, year, month, before) {
    split(date, parts, "-")
    year = parts[1]
    month = parts[2] + 0
    if (month < 3) { year--; month += 12 }
    before = 365 * year + int(year / 4) - int(year / 100) + int(year / 400)
    return before + int((153 * month - 457) / 5) + parts[3] - 719469
}
function minute_of(time,    parts) {
    split(time, parts, "[T:]")
    return 1440 * day_of(parts[1]) + 60 * parts[2] + parts[3]
}
function weekday(day) {
    return (day + 3) % 7 + 1
}
"""

EVENT_LINES = r"""# Prints NUMBER, MINUTE, ORDER, EVENT and DEPOT of scans; the clocks of depots may be fast.
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
/^#/ || NF < 2 { next }
FILENAME ~ /ranks.txt$/ { ranks[$1] = $2; next }
FILENAME ~ /clocks.txt$/ { fast[$1] += $2; next }
$4 in ranks {
    @scans_of_a_minute@
    print toupper($3), minute_of($1) - fast[$2], place, $4, $2
}
"""

PROMISES = r"""# NUMBER and MINUTE until which parcels are due, in the order of numbers.
awk -f "$root/@awk@/calendar.awk" -f "$root/@awk@/promises.awk" "$root/etc/services.txt" "$root/etc/free-days.txt" \
    "$work/parcels.tsv" > "$work/due.tsv"
"""

PROMISE_LINES = r"""# Prints NUMBER and MINUTE of parcels.
function works(day, service,    number) {
    number = weekday(day)
    @free_weekdays@
    return !free && !(day in closed)
}
BEGIN { OFS = "\t" }
FNR == 1 { table++ }
/^#/ || NF == 0 { next }
table == 1 { days[$1] = $2; next }
table == 2 { closed[day_of($1)] = 1; next }
{
    service = $9
    minute = minute_of($10)
    day = int(minute / 1440)
    late = minute_of("1970-01-01T" ENVIRON["@evening_key@"])
    @last_minute@
    while (!works(day, service)) day++
    for (i = days[service]; i > 0; i--) {
        day++
        while (!works(day, service)) day++
    }
    @hour_of_promise@
    print $1, due
}
"""

LISTS = {
    "prices": r"""# Prints the prices of parcels.
while IFS=$'\t' read -r number customer class grams cents; do
    <<francs>>
    echo @line_of_price@
done < "$work/priced.tsv"
""",
    "routes": r"""# Prints the ways of parcels.
tr '\t' ' ' < "$work/paths.tsv"
""",
    "bills": r"""# Prints the bills of customers: NAME, number of parcels, and francs.
sed 's/\r$//; /^#/d' "$folder/customers.txt" | tr ';' '\t' | sort -t $'\t' -k1,1 > "$work/customers.tsv"
sort -t $'\t' -k2,2 "$work/priced.tsv" |
    join -t $'\t' -1 2 -2 1 -a 1 -e 'cash' -o 0,1.5,2.2,2.3 - "$work/customers.tsv" |
    awk -F '\t' -f "$root/@awk@/bills.awk" | sort -t $'\t' @order_of_bills@ |
    awk -F '\t' '{ printf "%s %d %d.%02d\n", $1, $2, int($3 / 100), $3 % 100 }'
""",
    "states": r"""# Prints the state of parcels: NUMBER EVENT DEPOT, of the last scan.
awk -F '\t' '{ lines[$1] = $1 " " $4 " " $5 } END { for (number in lines) print lines[number] }' "$work/events.tsv" |
    sort -k1,1
""",
    "late": r"""# Prints the parcels that are late.
awk -F '\t' -v OFS='\t' '@end_of_delivery@ && !($1 in seen) { print $1, $2; seen[$1] }' "$work/events.tsv" |
    join -t $'\t' -a 1 -e open -o 0,1.2,2.2 "$work/due.tsv" - |
    awk -F '\t' -f "$root/@awk@/late.awk" "$work/events.tsv" -
""",
}

BILLS = r"""# Prints NAME, NUMBER of parcels and CENTS of customers, from ID, CENTS, NAME and PER CENT of parcels.
{
    name = $3
    percent[name] = $4 + 0
    sums[name] += $2
    count[name]++
}
END {
    for (name in sums) {
        off = 0
        @parcels_for_discount@ off = int(sums[name] * percent[name] / 100)
        print name "\t" count[name] "\t" sums[name] - off
    }
}
"""

LATE = r"""# Prints NUMBER and time of parcels, from NUMBER, MINUTE until which they are due, and MINUTE or `open`.
FNR == NR { if ($2 > now) now = $2; next }
$3 == "open" {
    @open_parcels@
    next
}
$3 > $2 {
    minutes = $3 - $2
    @unit_of_delay@
    print $1, delay
}
"""

FRANCS = (
    r"""francs=$(printf '%d.%02d' $((cents / 100)) $((cents % 100)))""",
    r"""printf -v francs '%d.%02d' "$((cents / 100))" "$((cents % 100))" """.rstrip(),
)

SETTINGS = """# Prices, in cents.
@kilo_key@=@kilo@
@bulky_key@=@bulky@
@girth_key@=@girth@
@fuel_key@=@fuel@
# Depots, in minutes.
@wait_key@=@wait@
# Parcels that come later are of the next day.
@evening_key@=@evening@
"""

FORMATS = """# Files of a day

- `parcels*.txt`: NUMBER;CUSTOMER;FROM;TO;WEIGHT;SIDES;SERVICE;TIME, with any spaces around them. Numbers are those of
  the postal union, in any case of letters: two letters, eight digits, a check digit (weights 8, 6, 4, 2, 3, 5, 9, 7; 11
  less the rest of 11; 0 for 10, and 5 for 11), and the country. Others are left out. A weight is such as `850`, in
  grams, `850g`, `1.25kg` or `1,25kg`. `#` begins a comment.
- `customers.txt`: ID;NAME;PER CENT. Parcels of customers who are not in it are paid in cash.
- `clocks.txt`: DEPOT and MINUTES that its clock is fast; less than nothing where it is slow. Several lines of a
  depot are added.
- `scans/*.log`: TIME DEPOT NUMBER EVENT. Events that have no rank are of the machines alone.

# Tables in etc

- `zones.txt`, `depots.txt`: PREFIX and NAME. The longest prefix of a code counts. A sender's code without a zone
  is in @far@.
- `classes.txt`: ZONE, ZONE and CLASS, for both directions.
- `tariff.txt`: CLASS, SERVICE, GRAMS and CENTS: of the steps that a weight fits, the lowest counts. Above the
  highest step, a kilo costs @kilo@.
- `links.txt`: DEPOT, DEPOT, MINUTES and KILOMETRES.
- `ranks.txt`: events in their order. `services.txt`: working days until a parcel is there. `free-days.txt`: days
  without work.
- `steps.txt`: what `bin/day` does, in which order, and what comes of it.
- `@settings@.conf`: a bulky parcel, one with more than @girth@ centimetres, costs @bulky@ more; fuel is @fuel@ per
  cent. A depot needs @wait@ minutes for a parcel: the cost of a link has those of the depot at its end. A day ends at
  @evening@.

# Lists

- `prices`: a line a parcel. `bills`: name, number of parcels and sum, less the discount, which is rounded down.
- `routes`: the cheapest way of depots, or the first one in the order of letters, and its cost.
- `states`: the last scan of parcels, by the right time.
- `late`: a parcel is there when it is first scanned so. It is late after the minute until which it is due: a number
  of working days after it came; one that comes on a day without work, or too late, counts for the next day with work.
  For what is still open, it is now the last minute of all scans.
"""
