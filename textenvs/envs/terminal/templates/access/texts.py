"""Files of the template `access`; what stands between @ is drawn."""

DECIDE = """#!/bin/bash
# Prints what is decided about requests. Usage: bin/decide FOLDER FILE
. "$(dirname "$0")/../@lib@/load.sh"
load "$1"
while read -r date time login action path || [[ -n $date ]]; do
    path=${path%$'\\r'}
    decide "$date" "$time" "$login" "$action" "$path"
    echo @decision_line@
done < "$2"
"""

MEMBERS = """#!/bin/bash
# Prints the members of groups. Usage: bin/members FOLDER GROUP...
. "$(dirname "$0")/../@lib@/load.sh"
load "$1"
shift
for group in "$@"; do
    echo "$group:"
    for login in $(printf '%s\\n' ${everybody[$group]} | sort -u); do
        echo @member_line@
    done
done
"""

MATRIX = """#!/bin/bash
# Prints who may do what with a path. Usage: bin/matrix FOLDER DATE TIME PATH
. "$(dirname "$0")/../@lib@/load.sh"
load "$1"
for user in "${logins[@]}"; do
    letters=
    for action in read write manage; do
        decide "$2" "$3" "$user" "$action" "$4"
        if [[ $decision == allow ]]; then letters+=${action:0:1}; else letters+=-; fi
    done
    echo @matrix_line@
done
"""

AUDIT = """#!/bin/bash
# Compares a log of doors with what is decided, and prints who was denied often. Usage: bin/audit FOLDER LOG
. "$(dirname "$0")/../@lib@/load.sh"
load "$1"
status=0
declare -A denials
while IFS=$'\\t' read -r date time login action path outcome; do
    decide "$date" "$time" "$login" "$action" "$path"
    [[ $decision == deny ]] && denials[$login]=$((${denials[$login]:-0} + 1))
    expected=granted
    [[ $decision == deny ]] && expected=refused
    if [[ $outcome != "$expected" ]]; then
        echo @audit_line@
        @status_of_audit@
    fi
done < <(awk -f "$LIB/door.awk" "$2")
for login in "${!denials[@]}"; do
    @many_denials@ && echo "$login ${denials[$login]} denials"
done | sort -k2,2nr -k1,1
exit "$status"
"""

LOAD = r"""# Functions that read users, groups and rules. Words of files are never patterns of files of ours.
set -f
export LC_ALL=C
LIB=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
. "$LIB/rules.sh"
declare -A name_of state_of direct inside everybody
logins=()

# Prints a file without comments, ends of lines of other systems, and white space around lines.
clean() {
    sed 's/\r$//; s/#.*//; s/^[ \t]*//; s/[ \t]*$//; /^$/d' "$1"
}

# Adds the members of a group, and those of groups in it, to people.
members() {
    local word
    for word in ${direct[$1]} ${inside[$1]}; do
        if [[ $word != @* ]]; then
            people+=("${word,,}")
        elif @group_depth@; then
            members "${word#@}" $(($2 + 1))
        fi
    done
}

# Reads LOGIN:NAME:GROUP,GROUP:STATE.
load_users() {
    local login name groups state group
    while IFS=: read -r login name groups state; do
        login=${login,,}
        logins+=("$login")
        name_of[$login]=$name
        state_of[$login]=$state
        for group in ${groups//,/ }; do direct[$group]+=" $login"; done
    done < <(clean "$1")
}

# Reads GROUP: MEMBER MEMBER @GROUP; a group may have several lines.
load_groups() {
    local group list
    while IFS=: read -r group list; do inside[$group]+=" $list"; done < <(clean "$1")
    for group in "${!direct[@]}" "${!inside[@]}"; do
        people=()
        members "$group" 0
        everybody[$group]=" ${people[*]} "
    done
}

load() {
    load_users "$1/users.txt"
    load_groups "$1/groups.txt"
    load_rules "$1/rules.conf"
}
"""

RULES_TEXT = r"""# Functions that read rules, and decide by them.
count=0

# Reads EFFECT WHO ACTION,ACTION PATTERN [from HH:MM-HH:MM] [until DATE], and include FILE.
load_rules() {
    local verb subject list path rest words i
    while read -r verb subject list path rest; do
        if [[ $verb == include ]]; then
            load_rules "${1%/*}/$subject"
            continue
        fi
        count=$((count + 1))
        effects[count]=$verb
        subjects[count]=$subject
        lists[count]=$list
        patterns[count]=$path
        read -ra words <<< "$rest"
        for ((i = 0; i < ${#words[@]}; i += 2)); do
            case ${words[i]} in
                from) hours[count]=${words[i + 1]} ;;
                until) ends[count]=${words[i + 1]} ;;
            esac
        done
    done < <(clean "$1")
}

# Sets REPLY to the minutes of a time.
minutes() {
    REPLY=$((10#${1%:*} * 60 + 10#${1#*:}))
}

# Sets REPLY to a path without // and . and .. and / at its end.
plain() {
    local IFS=/ part parts=()
    for part in $1; do
        case $part in
            '' | .) ;;
            ..) [[ ${#parts[@]} -gt 0 ]] && unset 'parts[-1]' ;;
            *) parts+=("$part") ;;
        esac
    done
    REPLY="/${parts[*]}"
}

# Tells if a path fits a pattern.
fits() {
    local regex=$2 star
    @star@
    regex=${regex//./\\.}
    regex=${regex//\?/[^/]}
    regex=${regex//\*/$star}
    regex=${regex//\%u/$3}
    [[ $1 =~ ^$regex$ ]]
}

during() {
    local begin end
    minutes "${2%-*}"
    begin=$REPLY
    minutes "${2#*-}"
    end=$REPLY
    minutes "$1"
    if ((begin > end)); then
        ((REPLY >= begin)) || before_end "$REPLY" "$end"
    else
        ((REPLY >= begin)) && before_end "$REPLY" "$end"
    fi
}

before_end() {
    @end_of_hours@
}

# Tells if a rule is about a request.
applies() {
    local n=$1 date=$2 time=$3 login=$4 action=$5 path=$6 list=",${lists[$1]},"
    case ${subjects[n]} in
        '*') ;;
        @*) [[ ${everybody[${subjects[n]#@}]} == *" $login "* ]] || return 1 ;;
        *) [[ ${subjects[n],,} == "$login" ]] || return 1 ;;
    esac
    @implied_action@
    [[ $list == *",$action,"* || $list == ,all, ]] || return 1
    fits "$path" "${patterns[n]}" "$login" || return 1
    [[ -z ${hours[n]} ]] || during "$time" "${hours[n]}" || return 1
    [[ -z ${ends[n]} ]] || @last_day@
}

# Sets decision, reason and path: of DATE TIME LOGIN ACTION PATH.
decide() {
    local login=${3,,} action=$4 n hit='' longest=0 otherwise
    plain "$5"
    path=$REPLY
    if [[ -z ${state_of[$login]} ]]; then
        decision=deny reason=unknown
        return
    fi
    if [[ ${state_of[$login]} == @refused_state@; then
        decision=deny reason=state
        return
    fi
    if [[ ${@trusted_group@} == *" $login "* ]]; then
        decision=allow reason=trusted
        return
    fi
    @otherwise@
    decision=$otherwise
    @reason_without_rule@
    for ((n = 1; n <= count; n++)); do
        applies "$n" "$1" "$2" "$login" "$action" "$path" || continue
        @matching_rule@
    done
}
"""

DOOR = r"""# Reads a log of doors: 2025-03-04T08:15:59 action=read login=ada path="/a b" result=granted
function field(name,    place, rest) {
    place = index($0, " " name "=")
    rest = substr($0, place + length(name) + 2)
    if (substr(rest, 1, 1) == "\"") return substr(rest, 2, index(substr(rest, 2), "\"") - 1)
    sub(/ .*/, "", rest)
    return rest
}
BEGIN { OFS = "\t" }
/ path="/ {
    sub(/\r$/, "")
    print substr($0, 1, 10), substr($0, 12, 5), tolower(field("login")), field("action"), field("path"),
        field("result")
}
"""

FORMATS = """# Users, groups, rules

Logins may be in any case of letters, and are printed in small ones. `#` begins a comment in all files but logs.

- `users.txt`: LOGIN:NAME:GROUP,GROUP:STATE.
- `groups.txt`: GROUP: and further members, with spaces between them; `@OTHER` is all members of another
  group. A group may have several lines.
- `rules.conf`: EFFECT WHO ACTIONS PATTERN, and perhaps `from 08:00-17:30` or `until 2025-06-30`. EFFECT is `allow` or
  `deny`; WHO is a login, `@GROUP`, or `*`; ACTIONS have commas between them, and `all` is any. In a PATTERN, `?` is any
  letter but `/`, and `%u` is who asks; hours may go over midnight. `include FILE` takes the rules of a file, whose path
  is relative to that of the including one. Rules are numbered in the order in which they are read.

`bin/decide FOLDER FILE` decides on requests: lines of DATE TIME LOGIN ACTION PATH. In a path, `//`, `.`, `..` and `/`
at the end are left out first. Nobody else than users is allowed anything: the reason is `unknown`. Where a state
or a trusted group decides, the reason is `state` or `trusted`; it is the number of the rule where a rule does.
`bin/members FOLDER GROUP...` prints members in the order of logins, `bin/matrix FOLDER DATE TIME PATH` what each user
may do with a path: `r` for read, `w` for write, `m` for manage. `bin/audit FOLDER LOG` compares a log of doors with
that, and prints who was denied often, most denials first; the log has other lines, too.
"""
