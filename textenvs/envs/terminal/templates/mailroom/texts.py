"""Files of the template `mailroom`; what stands between @ is drawn."""

MAKEFILE = """# Delivers messages. Usage: make [TARGET] [SRC=inbox] [OUT=out] [RULES=@etc@/rules.txt] [LISTS=lists]
SRC = inbox
OUT = out
RULES = @etc@/rules.txt
LISTS = lists
MESSAGES = $(wildcard $(SRC)/*.eml)
MEMBERS = $(wildcard $(LISTS)/*.txt)

.PHONY: all deliver index lists digests

all: index lists digests

deliver: $(OUT)/.delivered

index: deliver
	bin/index $(OUT)/sorted

lists: $(OUT)/outgoing.txt

digests: $(OUT)/.digests

$(OUT)/.delivered: $(MESSAGES) $(RULES)
	mkdir -p $(OUT)/sorted
	bin/deliver $(SRC) $(OUT)/sorted $(RULES)
	touch $@

$(OUT)/outgoing.txt: $(MESSAGES) $(MEMBERS)
	mkdir -p $(OUT)
	bin/lists $(SRC) $(LISTS) > $@

$(OUT)/.digests: $(MESSAGES) $(MEMBERS)
	mkdir -p $(OUT)/digests
	for list in $(MEMBERS); do bin/digest $(SRC) $$list > $(OUT)/digests/$$(basename $$list); done
	touch $@
"""

COMMON = """# Functions of all programs.
export LC_ALL=C

# Prints FILE ID FROM DATE TO SUBJECT BYTES SECONDS of the messages of a folder, with tabs between them.
scan() {
    local table
    table=$(awk -f "$LIB/scan.awk" "$1"/*.eml)
    paste <(cat <<< "$table") <(cut -f4 <<< "$table" | date -u -f - +%s)
}

# Prints the members of a list, and their modes. Where a line is @NAME, those of another list are printed.
members() {
    local address mode
    while read -r address mode || [ -n "$address" ]; do
        case $address in
            '' | '#'*) ;;
            @*) members "$1" "${address#@}" ;;
            *) echo "$address $mode" ;;
        esac
    done < "$1/$2.txt"
}
"""

SCAN = """# Prints FILE ID FROM DATE TO SUBJECT BYTES of messages, with tabs between them.
function address(text) {
    sub(/^.*</, "", text)
    sub(/>.*$/, "", text)
    gsub(/[ \\t]/, "", text)
    return tolower(text)
}
function addresses(text,    parts, count, i, joined) {
    count = split(text, parts, ",")
    for (i = 1; i <= count; i++) joined = joined (i > 1 ? "," : "") address(parts[i])
    return joined
}
function finish() {
    if (!path) return
    sub(/@.*/, "", value["message-id"])
    print path, address(value["message-id"]), address(value["from"]), value["date"], addresses(value["to"]),
        value["subject"], bytes
}
BEGIN { OFS = "\\t" }
FNR == 1 {
    finish()
    path = FILENAME
    inside = 1
    bytes = 0
}
{ bytes += length($0) + 1; sub(/\\r$/, "") }
/^$/ { inside = 0 }
!inside { next }
/^[ \\t]/ {
    sub(/^[ \\t]+/, " ")
    value[name] = value[name] $0
    next
}
{
    place = index($0, ":")
    name = tolower(substr($0, 1, place - 1))
    value[name] = substr($0, place + 1)
    sub(/^[ \\t]+/, "", value[name])
}
END { finish() }
"""

DELIVER = """#!/bin/bash
# Copies messages into folders by rules. Usage: bin/deliver SOURCE OUT RULES
set -u
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)
. "$LIB/common.sh"
scan "$1" | awk -f "$LIB/match.awk" "$3" - | while IFS=$'\\t' read -r file folder name; do
    [ -d "$2/$folder" ] || mkdir "$2/$folder"
    cp "$file" "$2/$folder/$name.eml"
done
"""

MATCH = """# Reads rules, FIELD TEST FOLDER TEXT, then messages; prints FILE FOLDER NAME. An id counts once.
function fits(text, kind, pattern,    start) {
    if (kind == "is") return text == pattern
    if (kind == "contains") return index(text, pattern) > 0
    if (kind == "begins") return index(text, pattern) == 1
    start = length(text) - length(pattern) + 1
    if (kind == "ends") return start > 0 && substr(text, start) == pattern
    return kind == "above" && text + 0 > pattern * 1024
}
BEGIN {
    FS = OFS = "\\t"
    column["from"] = 3
    column["to"] = 5
    column["subject"] = 6
    column["size"] = 7
}
FNR == NR {
    if ($0 == "" || $0 ~ /^#/) next
    split($0, cells, " ")
    count++
    field[count] = cells[1]
    kinds[count] = cells[2]
    folders[count] = cells[3]
    text = $0
    sub(/^[^ ]+ +[^ ]+ +[^ ]+ +/, "", text)
    patterns[count] = tolower(text)
    next
}
$2 in seen { next }
{
    seen[$2] = 1
    target = @other_folder@
    longest = 0
    for (n = 1; n <= count; n++) {
        if (!fits(tolower($column[field[n]]), kinds[n], patterns[n])) continue
        @order_of_rules@
    }
    print $1, @name_of_copy@
}
"""

INDEX = """#!/bin/bash
# Prints how many messages the folders have, and how large they are. Usage: bin/index OUT
set -u
export LC_ALL=C
cd "$1" || exit 1
for folder in */; do
    copies=("$folder"*)
    count=${#copies[@]}
    bytes=$(cat "$folder"* | wc -c)
    echo "${folder%/} $count $bytes"
done | sort @order_of_folders@ | awk '{ @folder_line@ }'
"""

LISTS = """#!/bin/bash
# Prints which message goes to which member of which list. Usage: bin/lists SOURCE LISTS
set -u
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)
. "$LIB/common.sh"
rows=$(scan "$1")
mapfile -t subjects < <(cut -f6 <<< "$rows" | sed -f "$LIB/subject.sed")
place=0
while IFS=$'\\t' read -r file id from date to subject bytes seconds; do
    subject=${subjects[place]}
    place=$((place + 1))
    for list in "$2"/*.txt; do
        name=${list##*/}
        name=${name%.txt}
        case ",$to," in
            *",$name@lists.@domain@,"*) ;;
            *) continue ;;
        esac
        tagged=@subject_tag@
        members "$2" "$name" | while read -r member mode; do
            [ "$mode" = each ] || continue
            @copy_to_sender@
            printf '%s\\n' @outgoing_line@
        done
    done
done <<< "$rows" | sort -u
"""

SUBJECT = """# Takes the marks of answers off a subject.
:again
s/^\\([Rr][Ee]\\|[Aa][Ww]\\|[Ff][Ww][Dd]\\): *//
t again
"""

DIGEST = """#!/bin/bash
# Prints the digest of a list. Usage: bin/digest SOURCE LIST
set -u
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)
. "$LIB/common.sh"
name=$(basename "$2" .txt)
rows=$(scan "$1" | awk -F'\\t' -v entry=",$name@lists.@domain@," 'index("," $5 ",", entry)' |
    sort -t$'\\t' @order_of_digest@
[ -n "$rows" ] || exit 0
count=$(wc -l <<< "$rows")
@digest_title@
place=0
while IFS=$'\\t' read -r file id from date to subject bytes seconds; do
    place=$((place + 1))
    printf '%s\\n' @contents_line@
done <<< "$rows"
while IFS=$'\\t' read -r file _ _ _ _ _ _ seconds; do
    @message_mark@
    sed -f "$LIB/body.sed" "$file"
done <<< "$rows" | fold @line_width@
"""

BODY = """# Prints what somebody has written: no head, and no signature.
s/\\r$//
1,/^$/d
/^-- $/,$d
@quoted_lines@
"""

OWN_RULES = """# FIELD TEST FOLDER TEXT; the tests are is, contains, begins, ends, and above (for size, in KiB)
subject contains bills invoice
from ends staff @staff.@domain@
size above large 64
"""
