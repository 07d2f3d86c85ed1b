"""Files of the template `elections`; what stands between @ is drawn."""

MAKEFILE = """# Counts an election. Usage: make -s [TARGET] [VOTES=votes] [OUT=out]
VOTES = votes
OUT = out
LIB = @lib@
BOXES = $(wildcard $(VOTES)/*.box)

.PHONY: all report counts seats mayor stations

all: report counts seats mayor stations

report: $(OUT)/counts.tsv $(OUT)/seats.tsv $(OUT)/stations.tsv
	bin/report $(VOTES) $(OUT)

counts: $(OUT)/counts.tsv
	cat $<

seats: $(OUT)/seats.tsv
	cat $<

mayor: $(OUT)/records.tsv
	awk -f $(LIB)/runoff.awk $<

stations: $(OUT)/stations.tsv
	awk -F'\\t' '{ print $$1, @few_ballots@ "-" : $$3 }' $<

$(OUT)/records.tsv: $(BOXES) $(LIB)/read.awk
	mkdir -p $(OUT)
	awk -f $(LIB)/read.awk $(BOXES) > $@

$(OUT)/counts.tsv: $(VOTES)/parties.txt $(OUT)/records.tsv $(LIB)/count.awk
	awk -f $(LIB)/count.awk $(VOTES)/parties.txt $(OUT)/records.tsv | LC_ALL=C sort > $@

$(OUT)/seats.tsv: $(VOTES)/parties.txt $(VOTES)/districts.tsv $(OUT)/counts.tsv $(LIB)/seats.awk
	awk -f $(LIB)/seats.awk $(VOTES)/parties.txt $(VOTES)/districts.tsv $(OUT)/counts.tsv | LC_ALL=C sort > $@

$(OUT)/stations.tsv: $(OUT)/records.tsv
	awk -f $(LIB)/stations.awk $< | sort -n > $@
"""

READ = r"""# Prints STATION DISTRICT KIND TEXT NUMBER of boxes, with tabs between them.
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
FNR == 1 {
    split("", head)
    inside = 1
}
/^#/ { next }
inside && /^$/ {
    inside = 0
    counted = head["status"] != @ignored_status@
    gsub(/'/, "", head["voters"])
    if (counted) print head["station"] + 0, head["district"], "voters", "-", head["voters"]
    next
}
inside {
    place = index($0, ":")
    value = substr($0, place + 1)
    gsub(/^ +| +$/, "", value)
    head[tolower(substr($0, 1, place - 1))] = value
    next
}
/^ *$/ || !counted { next }
{
    text = $0
    amount = 1
    if (match(text, / x *[0-9]+ *$/)) {
        amount = substr(text, RSTART + 2) + 0
        text = substr(text, 1, RSTART - 1)
    }
    if (sub(/^mayor: */, "", text)) {
        gsub(/ *> */, ">", text)
        print head["station"] + 0, head["district"], "mayor", text, amount
        next
    }
    gsub(/ /, "", text)
    print head["station"] + 0, head["district"], "list", toupper(text), amount
}
"""

COUNT = r"""# Reads parties, CODE;NAME;EXEMPT, then records; prints DISTRICT PARTY VOTES, with tabs between them.
function add(code, number) {
    tally[$2 "\t" code] += number
}
BEGIN { FS = OFS = "\t" }
FILENAME == ARGV[1] {
    if (/^#/) next
    split($0, cells, ";")
    party[cells[1]] = 1
    next
}
$3 != "list" { next }
$4 == "-" {
    add("blank", $5)
    next
}
{
    many = split($4, marks, "+")
    for (i = 1; i <= many; i++) {
        if (!(marks[i] in party)) {
            add("invalid", $5)
            next
        }
    }
    if (many == 1) add($4, $5)
    else @two_marks@
}
END { for (key in tally) print key, tally[key] }
"""

SEATS = r"""# Reads parties, districts and counts; prints DISTRICT PARTY SEATS, with tabs between them.
function divisor(won) {
    return @divisor@
}
function better(code, best, region,    one, two) {
    one = tally[region, code] / divisor(gained[region, code])
    two = tally[region, best] / divisor(gained[region, best])
    if (one != two) return one > two
    return @equal_quotients@
}
BEGIN { FS = OFS = "\t" }
FILENAME == ARGV[1] {
    split($0, cells, ";")
    if (cells[3] == "exempt") exempt[cells[1]] = 1
    next
}
FILENAME == ARGV[2] {
    regions[++count] = $1
    mandates[$1] = $2
    next
}
$2 == "blank" { blank += $3; next }
$2 == "invalid" { invalid += $3; next }
{
    tally[$1, $2] = $3
    total[$2] += $3
    valid += $3
}
END {
    @threshold@
    for (code in total) {
        if (code in exempt || 100 * total[code] >= least @threshold_base@) allowed[code] = 1
    }
    for (n = 1; n <= count; n++) {
        region = regions[n]
        for (mandate = 1; mandate <= mandates[region]; mandate++) {
            best = ""
            for (code in allowed) {
                if (tally[region, code] && (best == "" || better(code, best, region))) best = code
            }
            gained[region, best]++
        }
        for (code in allowed) if (gained[region, code]) print region, code, gained[region, code]
    }
}
"""

RUNOFF = r"""# Reads records; prints the rounds of the election of the mayor: in each of them who has least is out.
BEGIN { FS = "\t" }
$3 == "mayor" {
    ballot[++count] = $4
    amount[count] = $5
    all += $5
    many = split($4, names, ">")
    for (i = 1; i <= many; i++) alive[names[i]] = 1
}
END {
    for (turn = 1; ; turn++) {
        split("", first)
        remaining = 0
        for (n = 1; n <= count; n++) {
            many = split(ballot[n], names, ">")
            for (i = 1; i <= many; i++) {
                if (names[i] in alive) {
                    first[names[i]] += amount[n]
                    remaining += amount[n]
                    break
                }
            }
        }
        best = worst = ""
        rest = 0
        for (who in alive) {
            rest++
            if (turn == 1) start[who] = first[who] + 0
            if (best == "" || first[who] > first[best] || (first[who] == first[best] && who < best)) best = who
        }
        for (who in alive) {
            if (worst == "" || first[who] + 0 < first[worst] + 0) worst = who
            else if (first[who] + 0 == first[worst] + 0 && @tie_of_last@) worst = who
        }
        print @round_line@
        @majority_of@
        if (first[best] * 2 > enough || rest == 1) exit
        delete alive[worst]
    }
}
"""

STATIONS = r"""# Reads records; prints STATION DISTRICT BALLOTS VOTERS, with tabs; some stations have several boxes.
BEGIN { FS = OFS = "\t" }
{ region[$1] = $2 }
$3 == "list" { ballots[$1] += $5 }
$3 == "voters" { people[$1] += $5 }
END { for (key in region) print key, region[key], ballots[key] + 0, people[key] + 0 }
"""

TENTHS = r"""# Shares in tenths of a per cent.
function tenths(portion, whole) {
    return @share_rounding@
}
function percent(portion, whole,    share) {
    share = tenths(portion, whole)
    return int(share / 10) "." share % 10
}
"""

PARTIES = """BEGIN { FS = OFS = "\\t" }
{ print $0, percent($3, valid) }
"""

TURNOUT = """BEGIN { FS = "\\t" }
{
    cast[$2] += $3
    people[$2] += $4
}
END { for (region in cast) print @turnout_line@ }
"""

REPORT = """#!/bin/bash
# Prints the votes and seats of parties, and the turnout of districts. Usage: bin/report FOLDER OUT
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)
export LC_ALL=C
tab=$'\\t'

# Prints PARTY and the sum of the third column of a table.
sums() {
    awk -F'\\t' -v OFS='\\t' '{ sum[$2] += $3 } END { for (code in sum) print code, sum[code] }' "$1" |
        sort -t"$tab" -k1,1
}

valid=$(awk -F'\\t' '$2 != "blank" && $2 != "invalid" { n += $3 } END { print n + 0 }' "$2/counts.tsv")
grep -v '^#' "$1/parties.txt" | cut -d';' -f1,2 | tr ';' '\\t' | sort -t"$tab" -k1,1 |
    join -t"$tab" - <(sums "$2/counts.tsv") |
    join -t"$tab" -a1 -e0 -o 0,1.2,1.3,2.2 - <(sums "$2/seats.tsv") |
    awk -v valid="$valid" -f "$LIB/tenths.awk" -f "$LIB/parties.awk" |
    sort -t"$tab" @order_of_parties@ |
    while IFS=$tab read -r code name number seats share; do
        echo @party_line@
    done
awk -f "$LIB/tenths.awk" -f "$LIB/turnout.awk" "$2/stations.tsv" | sort
"""

CHECK = """#!/bin/bash
# Prints what is wrong with boxes. Usage: bin/check FOLDER
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)
export LC_ALL=C
status=0

wrong() {
    echo "$1"
    @status_of_check@
}

while IFS=$'\\t' read -r station region ballots people; do
    cut -f1 "$1/districts.tsv" | grep -qxF -- "$region" || wrong "$station: there is no $region"
    ((ballots <= people)) || wrong "$station: $((ballots - people)) too many"
done < <(awk -f "$LIB/read.awk" "$1"/*.box | awk -f "$LIB/stations.awk" | sort -n)
exit "$status"
"""

FORMAT = """# Files of an election

A folder such as `votes/` has `parties.txt` (CODE;NAME, and `;exempt` where the threshold does not hold; a line
that begins with `#` is no party any more), `districts.tsv` (a district and its seats, with a tab between them),
and a file `*.box` for each box. A station may have several boxes.

The head of a box has lines of `KEY: VALUE`, in any case of letters, up to an empty line: `station` (a number,
perhaps with zeros before it), `district`, `voters` (perhaps such as `1'204`), and others. `status` may be missing.
Then each line is a ballot, or with ` x 12` behind it twelve of them; empty lines and those that begin with `#`
are none. A ballot is the code of a party, in any case of letters, or several with `+` between them; `-` is a blank
one. One that has a code of no party is invalid. `mayor: Ada Costa > Otto Ito` is a ballot for the mayor, the most
wanted first.

The seats of each district go one by one to the party whose votes there, by a divisor, are most. The threshold is
about the votes of all districts. The mayor is elected in rounds: a ballot counts for the first one on it who is
not out; one on which all are out does not count in a round.

A share is one of all valid votes. The turnout of a district compares the ballots for parties (with blank
and invalid ones) with its voters. The voters of a station are those of its boxes together.
"""
