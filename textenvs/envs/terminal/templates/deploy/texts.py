"""Files of the template `deploy`; what stands between @ is drawn."""

from collections.abc import Sequence

MAKEFILE = """# Renders configurations of hosts. Usage: make -s [render|check|plan] [SRC=@src@] [OUT=out] [LIVE=live]
SRC = @src@
OUT = out
LIVE = live
PROGRAMS = bin/render $(wildcard @lib@/*)
INPUTS = $(shell find $(SRC) -type f | sort)

.PHONY: all render check plan
.DELETE_ON_ERROR:

all: render check plan

@steps@"""

STEP_OF_HOSTS = """$(OUT)/done: $(INPUTS) $(PROGRAMS)
	bin/render $(SRC) $(OUT) && touch $@

render: $(OUT)/done
"""

STEP_OF_CHECK = """check: render
	bin/check $(SRC) $(OUT)
"""

STEP_OF_PLAN = """plan: render
	bin/plan $(SRC) $(OUT) $(LIVE)
"""

HOSTS = """#!/bin/bash
# Prints NAME SITE ROLES of hosts. Usage: bin/hosts SRC
. "$(dirname "$0")/../@lib@/hosts.sh"
hosts "$1"
"""

RENDER = """#!/bin/bash
# Writes the files of all hosts. Usage: bin/render SRC OUT
lib=$(dirname "$0")/../@lib@
. "$lib/hosts.sh"
@sourced@src=$1 out=$2
mapfile -t map < <(clean "$src/files.map")
hosts "$src" | while read -r name site roles; do
    rm -rf "${out:?}/$name"
    mkdir -p "$out/$name"
    mapfile -t files < <(layers "$src" "$name" "$site" "$roles")
    awk -v HOST="$name" -v SITE="$site" -v ROLES="$roles" -f "$lib/merge.awk" "${files[@]}" > "$out/$name.tsv"
    for row in "${map[@]}"; do
        read -r wanted template path <<< "$row"
        has_role "$wanted" "$roles" || continue
        target=$out/$name/$path
        mkdir -p "${target%/*}"
        awk -v SRC="$src" -v HOST="$name" -v SITE="$site" -v FILE="$path" -v TEMPLATE="$template" \\
            -f "$lib/fill.awk" "$out/$name.tsv" > "$target"
        # The status says that there is a secret in it.
        if (($? == 3)); then @mode_of_secrets@; fi
    done
done
"""

PLAN = """#!/bin/bash
# Compares rendered files with those of hosts, and prints what is to be done, in waves. Usage: bin/plan SRC OUT LIVE
. "$(dirname "$0")/../@lib@/hosts.sh"
src=$1 out=$2 live=$3

# Prints a file without what makes no difference.
normal() {
    @ignored_differences@
}

# Prints the paths of the files of a folder.
paths() {
    [[ ! -d $1 ]] || find "$1" -type f -printf '%P\\n' | sort
}

report() {
    local verb=$1 name=$2 path=$3 count=$4
    echo @plan_line@
}

# Prints the changes of a host.
changes() {
    local name=$1 path count
    @loop_over_files@
        if [[ ! -e $live/$name/$path ]]; then
            report add "$name" "$path" "$(wc -l < "$out/$name/$path")"
            continue
        fi
        ! cmp -s "$live/$name/$path" "$out/$name/$path" || continue
        count=$(diff <(normal "$live/$name/$path") <(normal "$out/$name/$path") | grep -c '^[<>]')
        if ((count > 0)); then report change "$name" "$path" "$count"; fi
    done
    paths "$live/$name" | while read -r path; do
        [[ ! -e $out/$name/$path ]] || continue
        @stray_files@
    done
}

totals=$(mktemp)
hosts "$src" | while read -r name _; do
    lines=$(changes "$name")
    [[ -n $lines ]] || continue
    echo "$lines"
    echo "$(wc -l <<< "$lines") $name" >> "$totals"
done
@order_of_waves@ "$totals" | awk '{ names = names " " $2 }
    @hosts_of_wave@ { print "wave " ++wave ":" names; names = "" }
    END { if (names != "") print "wave " ++wave ":" names }'
rm "$totals"
"""

LOOPS: Sequence[str] = (
    'paths "$out/$name" | while read -r path; do',
    'mapfile -t list < <(paths "$out/$name")\n    for path in "${list[@]}"; do',
)

CHECK = """#!/bin/bash
# Looks for mistakes in rendered files. Usage: bin/check SRC OUT
lib=$(dirname "$0")/../@lib@
. "$lib/hosts.sh"
src=$1 out=$2
problems=$(hosts "$src" | (cd "$out" && while read -r name site _; do
    find "$name" -type f | sort | xargs -d '\\n' \\
        awk -v START="$name\\t$site" '{ print START "\\t" FILENAME "\\t" FNR "\\t" $0 }'
done) | awk -f "$lib/lint.awk" "$lib/../etc/@reserved@.txt" - | sort)
[[ -z $problems ]] && exit
echo "$problems"
@status_of_problems@
"""

EXPLAIN = """#!/bin/bash
# Prints values of a host, and where they are from. Usage: bin/explain OUT NAME KEY...
settings=$1/$2.tsv
shift 2
for key in "$@"; do
    awk -F '\\t' -v KEY="$key" '$1 == KEY { print @line_of_value@ }' "$settings"
done | sed 's/secret(\\([^)]*\\))@masked_secret@'
"""

HOSTS_LIBRARY = r"""# Functions about hosts and files of tables.
export LC_ALL=C
set -f

# Prints a table without comments and empty lines.
clean() {
    sed 's/\r$//; s/#.*//; s/[ \t]*$//; /^$/d' "$1"
}

# Sets range to the names of a range: db[08-10] is db08, db09 and db10.
expand() {
    local number name
    range=()
    if [[ $1 =~ ^(.*)\[([0-9]+)-([0-9]+)\](.*)$ ]]; then
        for ((number = 10#${BASH_REMATCH[2]}; number <= 10#${BASH_REMATCH[3]}; number++)); do
            printf -v name '%s%0*d%s' "${BASH_REMATCH[1]}" "${#BASH_REMATCH[2]}" "$number" "${BASH_REMATCH[4]}"
            range+=("$name")
        done
    else
        range=("$1")
    fi
}

# Prints NAME SITE ROLES of hosts, from lines of NAMES SITE ROLES STATE.
hosts() {
    local names site roles state name
    clean "$1/hosts.txt" | while read -r names site roles state; do
        [[ @skipped_state@ ]] || continue
        expand "${names,,}"
        for name in "${range[@]}"; do echo "$name $site $roles"; done
    done
}
"""

LAYERS = r"""
# Tells if some of the roles that a file is for are those of a host.
has_role() {
    local one
    for one in ${1//,/ }; do
        [[ $one == '*' || ,$2, == *,"$one",* ]] && return
    done
    return 1
}

# Prints the roles of a host, that which counts least first.
ordered() {
    tr , '\n' <<< "$1" | @several_roles@
}

# Prints the files of layers of SRC NAME SITE ROLES, that which counts least first.
layers() {
    local kind path role
    for kind in @layer_order@; do
        case $kind in
            common) echo "$1/layers/common.conf" ;;
            site) echo "$1/layers/site/$3.conf" ;;
            role) for role in $(ordered "$4"); do echo "$1/layers/role/$role.conf"; done ;;
            host) echo "$1/layers/host/$2.conf" ;;
        esac
    done | while read -r path; do
        [[ ! -f $path ]] || echo "$path"
    done
}
"""

MERGE = r"""# Reads layers, that which counts least first; prints KEY VALUE ORIGIN, with tabs between them.
@functions_of_merge@
BEGIN {
    OFS = "\t"
    values["host"] = HOST
    values["site"] = SITE
    values["roles"] = ROLES
    origins["host"] = origins["site"] = origins["roles"] = "hosts"
}
FNR == 1 {
    origin = FILENAME
    sub(/.*layers\//, "", origin)
    sub(/\.conf$/, "", origin)
    split("", own)
    held = ""
}
{ sub(/\r$/, "") }
/^[ \t]*[#;]/ || /^[ \t]*$/ { next }
/\\$/ {
    held = held substr($0, 1, length($0) - 1)
    next
}
{
    line = held trimmed($0)
    held = ""
    place = index(line, "=")
    key = trimmed(substr(line, 1, place - 1))
    value = trimmed(substr(line, place + 1))
    adds = sub(/[ \t]*\+$/, "", key)
    if (value ~ /^".*"$/) value = substr(value, 2, length(value) - 2)
    if (adds && values[key] != "") value = @appended_values@
    else if @key_twice_in_layer@
    own[key] = 1
    values[key] = value
    origins[key] = origin
}
END { for (key in origins) print key, resolved(values[key]), origins[key] }
"""

TRIMMED = r"""function trimmed(text) {
    gsub(/^[ \t]+|[ \t]+$/, "", text)
    return text
}
"""

RESOLVED = r"""# Replaces ${key} by its last value, in which there may be others.
function resolved(text,    before, after) {
    while (match(text, /\$\{[a-z_]+\}/)) {
        before = substr(text, 1, RSTART - 1)
        after = substr(text, RSTART + RLENGTH)
        text = before values[substr(text, RSTART + 2, RLENGTH - 3)] after
    }
    return text
}
"""

FILL = r"""# Prints a file of a host, of settings (KEY VALUE ORIGIN) and a template; the status is 3 if it has secrets.
@functions_of_fill@
# Prints a line, if it is not left out.
function emit(line) {
    if (drop) {
        drop = 0
        return
    }
    @empty_lines_of_templates@
    last = line
    print line
}

# Prints a template. Parts are in each other's conditions, as if they stood there.
function render(name, depth,    line, path, cells) {
    path = SRC "/templates/" name
    while ((getline line < path) > 0) {
        sub(/\r$/, "", line)
        if (line ~ /^%#/) continue
        if (line ~ /^%(if|unless) /) {
            split(line, cells, " ")
            level++
            met[level] = truth(cells[2]) == (cells[1] == "%if")
            on[level] = on[level - 1] && met[level]
        } else if (line ~ /^%else/) on[level] = on[level - 1] && !met[level]
        else if (line ~ /^%end/) level--
        else if (!on[level]) continue
        else if (line ~ /^%include /) {
            if (@include_depth@) render(substr(line, 10), depth + 1)
        } else if (line ~ /^%each /) each(line)
        else emit(filled(line))
    }
    close(path)
}
BEGIN { FS = "\t" }
{ values[$1] = $2 }
END {
    level = 0
    on[level] = 1
    print @header_line@
    render(TEMPLATE, 0)
    exit revealed_some ? 3 : 0
}
"""

SECRETS = r"""# Returns the first line of a secret; a site's own one comes before that of all.
function secret(name,    line, path) {
    path = SRC "/secrets/" SITE "/" name
    if ((getline line < path) < 0) {
        path = SRC "/secrets/" name
        getline line < path
    }
    close(path)
    revealed_some = 1
    return line
}

# Replaces secret(NAME) by the secret.
function revealed(text,    before, after) {
    while (match(text, /secret\([a-z0-9-]+\)/)) {
        before = substr(text, 1, RSTART - 1)
        after = substr(text, RSTART + RLENGTH)
        text = before secret(substr(text, RSTART + 7, RLENGTH - 8)) after
    }
    return text
}
"""

PLACEHOLDERS = r"""# Returns the value of KEY, or of KEY:-DEFAULT.
function value_of(key,    place, rest) {
    place = index(key, ":-")
    if (place) {
        rest = substr(key, place + 2)
        key = substr(key, 1, place - 1)
        if (@default_of_value@) return rest
    }
    if (key in values) return revealed(values[key])
    @placeholder_without_value@
}

# Replaces {{KEY}} and {{KEY:-DEFAULT}}; what is in values is not looked at again.
function filled(text,    done) {
    while (match(text, /\{\{[^}]*\}\}/)) {
        done = done substr(text, 1, RSTART - 1)
        key = substr(text, RSTART + 2, RLENGTH - 4)
        text = substr(text, RSTART + RLENGTH)
        done = done value_of(key)
    }
    return done text
}
"""

CONDITIONS = r"""# Tells if a condition is met.
function truth(key) {
    return (key in values) && @condition@
}

# Prints the rest of %each KEY REST once for each item of a list, which is {{item}} in it.
function each(line,    words, items, many, i) {
    split(line, words, " ")
    many = split(values[words[2]], items, /[ ,]+/)
    sub(/^%each +[a-z_]+ /, "", line)
    for (i = 1; i <= many; i++) {
        values["item"] = items[i]
        emit(filled(line))
    }
    delete values["item"]
}
"""

LINT = r"""# Reads reserved ports, then HOST SITE PATH NUMBER TEXT of files; prints problems.
function problem(text) {
    print @problem_line@
}
BEGIN { FS = "\t" }
FILENAME ~ /@reserved@/ {
    sub(/#.*/, "")
    if ($1 != "") reserved[$1 + 0] = 1
    next
}
$5 ~ /\{\{/ { problem("placeholder") }
$5 ~ /^[ \t]*(port|listen)[ =]+[0-9]+[ \t]*$/ {
    port = $5
    gsub(/[^0-9]/, "", port)
    port += 0
    if (@lowest_port@) problem("low port " port)
    if (port in reserved) problem("reserved port " port)
    @port_conflict@
    if ((scope, port) in used) problem("port " port " twice")
    used[scope, port] = 1
}
"""

PAGE = """# Configurations of hosts

`make render` writes the files of all hosts of `SRC` to `OUT`, and `make check` looks for mistakes in them; `make
plan` compares them with those in `LIVE`, and prints what is to be done. `bin/hosts SRC` prints hosts with site and
roles, and `bin/explain OUT NAME KEY...` values of a host after `make render`, with the layer that they are from.

`SRC` has these files; `#` begins a comment in tables, whose lines may end as those of other systems.

- `hosts.txt`: lines of NAMES SITE ROLES, and perhaps a STATE. ROLES have commas between them. NAMES may be a range:
  `db[08-10]-lab` is `db08-lab`, `db09-lab` and `db10-lab`. Names are in small letters.
- `layers/common.conf`, `layers/site/SITE.conf`, `layers/role/ROLE.conf`, `layers/host/NAME.conf`: lines `KEY =
  VALUE`; lines that begin with `#` or `;` are comments. A line that ends with a backslash goes on in the next one.
  Double quotes around a value are left out. `KEY += VALUE` adds to the value that there is, if any. `${KEY}` in a
  value is the final value of that key, whichever layer it is from. `host`, `site` and `roles` are set by the table of
  hosts.
- `secrets/NAME` and `secrets/SITE/NAME`: `secret(NAME)` in a value becomes the first line of the site's file, or else
  of the other, in a rendered file and nowhere else.
- `files.map`: lines of ROLES TEMPLATE PATH: which hosts get a file; `*` is all. A path may have spaces in it.
- `templates/`: in a line, `{{KEY}}` is a value, and `{{KEY:-DEFAULT}}` one with a default. `%if KEY`, `%unless KEY`,
  `%else` and `%end` are conditions, in conditions as well; `%include TEMPLATE` is another template in that place, at
  a depth of 1, whose own ones are at a depth of 2; `%each KEY REST` is the rest once for each item of a list with
  commas or spaces; `%#` begins a comment.

A rendered file begins with a line about itself. `make check` prints placeholders that are left, and ports (lines such
as `port 8080` or `listen = 8080`) that are too low, in `etc/@reserved@.txt`, or used before. The plan names files to
be added, changed and removed, with a number of lines: those of a new file, and else those that are in one of the
files alone. Hosts of which something is to be changed are in waves.
"""
