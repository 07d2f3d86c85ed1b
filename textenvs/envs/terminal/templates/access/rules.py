"""Rules that the programs of the template `access` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "refused-state",
        "@lib@/rules.sh",
        "Users are refused all, or let in, because of the wrong state.",
        [
            Option(
                f"{state} ]]",
                f"Users whose state is `{state}` are denied everything; other states make no difference.",
                state,
            )
            for state in ("locked", "left", "guest", "expired")
        ],
    ),
    Rule(
        "trusted-group",
        "@lib@/rules.sh",
        "The wrong people may do everything.",
        [
            Option(
                f"everybody[{name}]", f"Members of `{name}` are allowed everything, unless their state denies it.", name
            )
            for name in ("admins", "owners", "wheel", "keepers")
        ],
    ),
    numbers(
        "group-depth",
        "@lib@/load.sh",
        "Members of groups in groups are missing, or there are too many.",
        (1, 2, 3),
        "(($2 < {}))",
        "Groups in a group count up to a depth of {}; at a depth of 1, those that it has itself, not those in them.",
    ),
    Rule(
        "matching-rule",
        "@lib@/rules.sh",
        "Where several rules are about a request, the wrong one counts.",
        [
            Option(
                "decision=${effects[n]} reason=$n; break",
                "Of several rules about a request, the first one counts.",
                lambda rules: rules[0],
            ),
            Option(
                "decision=${effects[n]} reason=$n",
                "Of several rules about a request, the last one counts.",
                lambda rules: rules[-1],
            ),
            Option(
                "[[ $hit == deny || $hit == ${effects[n]} ]] || { hit=${effects[n]}; decision=$hit reason=$n; }",
                "Of several rules about a request, the first one that denies counts, and without such a one the first "
                "that allows.",
                lambda rules: min(rules, key=lambda rule: rule.effect == "allow"),
            ),
            Option(
                "if ((${#patterns[n]} > longest)); then longest=${#patterns[n]} decision=${effects[n]} reason=$n; fi",
                "Of several rules about a request, the one with the longest pattern counts, of equally long ones the "
                "first.",
                lambda rules: max(rules, key=lambda rule: len(rule.pattern)),
            ),
        ],
    ),
    Rule(
        "otherwise",
        "@lib@/rules.sh",
        "What no rule is about is not decided as agreed.",
        [
            Option("otherwise=deny", "What no rule is about is denied.", lambda action: "deny"),
            Option("otherwise=allow", "What no rule is about is allowed.", lambda action: "allow"),
            Option(
                "otherwise=deny; [[ $action != read ]] || otherwise=allow",
                "What no rule is about is allowed to read, and denied else.",
                lambda action: "allow" if action == "read" else "deny",
            ),
        ],
    ),
    Rule(
        "reason-without-rule",
        "@lib@/rules.sh",
        "The reason for what no rule is about is not the one that was agreed.",
        [
            Option(f"reason={word}", f"The reason is `{word}` where no rule is about a request.", word)
            for word in ("none", "default", "0", "nothing")
        ],
    ),
    Rule(
        "star",
        "@lib@/rules.sh",
        "Rules are about paths that they should not be about, or the other way round.",
        [
            Option("star='.*'", "In a PATTERN, `*` is anything, with `/` in it or not.", ".*"),
            Option("star='[^/]*'", "In a PATTERN, `*` is anything that has no `/` in it.", "[^/]*"),
            Option("star='.+'", "In a PATTERN, `*` is one letter at least, with `/` in it or not.", ".+"),
        ],
    ),
    Rule(
        "end-of-hours",
        "@lib@/rules.sh",
        "In the last minute of somebody's hours, the decision is wrong.",
        [
            Option("(($1 < $2))", "At the minute at which hours end, they are over.", lambda now, end: now < end),
            Option("(($1 <= $2))", "The minute at which hours end belongs to them.", lambda now, end: now <= end),
        ],
    ),
    Rule(
        "last-day",
        "@lib@/rules.sh",
        "On the last day of a rule, the decision is wrong.",
        [
            Option(
                "[[ ! $date > ${ends[n]} ]]",
                "The day behind `until` is the last one of a rule.",
                lambda day, end: day <= end,
            ),
            Option(
                "[[ $date < ${ends[n]} ]]",
                "The day behind `until` is the first one without a rule.",
                lambda day, end: day < end,
            ),
        ],
    ),
    Rule(
        "implied-action",
        "@lib@/rules.sh",
        "Rules are not about all actions that they should be about.",
        [
            Option(
                ": 'no action has others'",
                "A rule is about the actions that it names alone.",
                lambda named, action: named,
            ),
            Option(
                '[[ $list != *,write,* ]] || list+="read,"',
                "A rule about `write` is about `read`, too.",
                lambda named, action: {*named, *(["read"] if "write" in named else [])},
            ),
            Option(
                '[[ $list != *,manage,* ]] || list+="$action,"',
                "A rule about `manage` is about all actions.",
                lambda named, action: {*named, *([action] if "manage" in named else [])},
            ),
        ],
    ),
    Rule(
        "decision-line",
        "bin/decide",
        "The doors do not understand decisions any more.",
        [
            Option(
                '"$decision ${login,,} $action $path ($reason)"',
                "A decision is such as `allow ada read /a (3)`.",
                "{0} {1} {2} {3} ({4})",
            ),
            Option(
                '"$path: ${login,,} $action=$decision, $reason"',
                "A decision is such as `/a: ada read=allow, 3`.",
                "{3}: {1} {2}={0}, {4}",
            ),
            Option(
                '"$reason;$decision;${login,,};$path;$action"',
                "A decision is such as `3;allow;ada;/a;read`.",
                "{4};{0};{1};{3};{2}",
            ),
        ],
    ),
    Rule(
        "member-line",
        "bin/members",
        "The lists of members are not as agreed.",
        [
            Option(
                '"  $login ${name_of[$login]}"',
                "A member is printed such as `  ada Ada Weber`, behind two spaces.",
                "  {0} {1}",
            ),
            Option(
                '"- ${name_of[$login]} ($login)"', "A member is printed such as `- Ada Weber (ada)`.", "- {1} ({0})"
            ),
            Option(
                '"$login:${state_of[$login]}"', "A member is printed such as `ada:active`, with the state.", "{0}:{2}"
            ),
        ],
    ),
    Rule(
        "matrix-line",
        "bin/matrix",
        "The matrix is not printed as agreed.",
        [
            Option('"$letters $user"', "A line of `matrix` is such as `rw- ada`.", "{1} {0}"),
            Option(
                '"$user=${letters//-/}"', "A line of `matrix` is such as `ada=rw`, and `ada=` for nothing.", "{0}={2}"
            ),
            Option('"$user: $letters"', "A line of `matrix` is such as `ada: rw-`.", "{0}: {1}"),
        ],
    ),
    Rule(
        "audit-line",
        "bin/audit",
        "What the audit prints is not as agreed.",
        [
            Option(
                '"$date $time $login $action $path: $outcome"',
                "The audit prints `2025-03-04 08:15 ada read /a: granted` for what should not be.",
                "{0} {1} {2} {3} {4}: {5}",
            ),
            Option(
                '"$outcome $login $path ($action, $time on $date)"',
                "The audit prints `granted ada /a (read, 08:15 on 2025-03-04)` for what should not be.",
                "{5} {2} {4} ({3}, {1} on {0})",
            ),
            Option(
                '"$login;$date;$time;$action;$path;$outcome"',
                "The audit prints `ada;2025-03-04;08:15;read;/a;granted` for what should not be.",
                "{2};{0};{1};{3};{4};{5}",
            ),
        ],
    ),
    numbers(
        "many-denials",
        "bin/audit",
        "The audit names too many users, or too few.",
        (3, 4, 5, 6),
        "((denials[$login] >= {}))",
        "The audit prints who was denied {} times or more.",
    ),
    numbers(
        "status-of-audit",
        "bin/audit",
        "The job that reads the audit goes on where it should end.",
        range(2, 10),
        "status={}",
        "The audit ends with the status {} where something should not be.",
    ),
)

IDENTIFIERS = (
    "letters expected clean members people direct inside everybody logins word effects subjects lists patterns hours "
    "ends verb subject words plain part parts fits regex during begin before_end applies hit longest otherwise field "
    "rest"
)
