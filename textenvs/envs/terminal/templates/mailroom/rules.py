"""Rules that the programs of the template `mailroom` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "other-folder",
        "@lib@/match.awk",
        "Messages that fit no rule are in the wrong folder.",
        [
            Option(f'"{name}"', f"A message that fits no rule is put into `{name}`.", name)
            for name in ("other", "inbox", "unsorted", "rest", "misc")
        ],
    ),
    Rule(
        "order-of-rules",
        "@lib@/match.awk",
        "Messages that fit several rules are in the wrong folder.",
        [
            Option(
                "target = folders[n]; break",
                "Of several rules that fit, the first one counts.",
                lambda fitting: fitting[0],
            ),
            Option(
                "target = folders[n]", "Of several rules that fit, the last one counts.", lambda fitting: fitting[-1]
            ),
            Option(
                "if (length(patterns[n]) > longest) { target = folders[n]; longest = length(patterns[n]) }",
                "Of several rules that fit, the one with the longest text counts, and of equally long ones the first.",
                lambda fitting: max(fitting, key=lambda rule: len(rule[3])),
            ),
        ],
    ),
    Rule(
        "name-of-copy",
        "@lib@/match.awk",
        "The copies of messages have names that nobody expects.",
        [
            Option("target, $2", "A copy is called after the id of its message: `ID.eml`.", "{0}"),
            Option(
                'target, substr($4, 1, 10) "-" $2',
                "A copy is called after the day and the id of its message: `DAY-ID.eml`.",
                "{1}-{0}",
            ),
            Option(
                'target, $3 "-" $2',
                "A copy is called after the sender and the id of its message: `ADDRESS-ID.eml`.",
                "{2}-{0}",
            ),
            Option(
                'target, $2 "-" $7',
                "A copy is called after the id and the bytes of its message: `ID-BYTES.eml`.",
                "{0}-{3}",
            ),
        ],
    ),
    Rule(
        "order-of-folders",
        "bin/index",
        "The folders are in the wrong order.",
        [
            Option("-k1,1 ", "`index` lists the folders by name.", lambda row: row[0]),
            Option(
                "-k2,2n -k1,1 ",
                "`index` begins with the fewest messages, and of these by name.",
                lambda row: (row[1], row[0]),
            ),
            Option(
                "-k2,2nr -k1,1 ",
                "`index` begins with the most messages, and of these by name.",
                lambda row: (-row[1], row[0]),
            ),
            Option(
                "-k3,3n -k1,1 ",
                "`index` begins with the fewest bytes, and of these by name.",
                lambda row: (row[2], row[0]),
            ),
        ],
    ),
    Rule(
        "folder-line",
        "bin/index",
        "The program that reads the index does not understand it any more.",
        [
            Option("print $1, $2, $3", "A line of `index` is FOLDER MESSAGES BYTES.", lambda n, c, b: f"{n} {c} {b}"),
            Option(
                'print $1 ": " $2 " (" $3 ")"',
                "A line of `index` is FOLDER: MESSAGES (BYTES).",
                lambda n, c, b: f"{n}: {c} ({b})",
            ),
            Option(
                'printf "%s %d %.1f\\n", $1, $2, $3 / 1024',
                "A line of `index` is FOLDER MESSAGES KIB, such as `staff 3 1.5`.",
                lambda n, c, b: f"{n} {c} {b / 1024:.1f}",
            ),
            Option(
                'print $3 ";" $2 ";" $1', "A line of `index` is BYTES;MESSAGES;FOLDER.", lambda n, c, b: f"{b};{c};{n}"
            ),
        ],
    ),
    Rule(
        "subject-tag",
        "bin/lists",
        "The subjects of messages to lists do not show the list as agreed.",
        [
            Option(
                '"[$name] $subject"', "The subject of a message to a list is such as `[LIST] SUBJECT`.", "[{0}] {1}"
            ),
            Option('"$name: $subject"', "The subject of a message to a list is such as `LIST: SUBJECT`.", "{0}: {1}"),
            Option(
                '"$subject ($name)"', "The subject of a message to a list is such as `SUBJECT (LIST)`.", "{1} ({0})"
            ),
            Option(
                '"($name) $subject"', "The subject of a message to a list is such as `(LIST) SUBJECT`.", "({0}) {1}"
            ),
        ],
    ),
    Rule(
        "copy-to-sender",
        "bin/lists",
        "Those who write to a list do not get what was agreed of their own messages.",
        [
            Option(
                '[ "$member" != "$from" ] || continue',
                "Who writes to a list does not get the message back.",
                lambda member, sender, number: member != sender,
            ),
            Option(
                '[ "$member" ] || continue',
                "Who writes to a list gets the message as all others do.",
                lambda member, sender, number: True,
            ),
            Option(
                '[ "${member#*@}" != "${from#*@}" ] || continue',
                "Who has the sender's domain (what stands behind the @) does not get a message of a list.",
                lambda member, sender, number: member.split("@")[1] != sender.split("@")[1],
            ),
        ],
    ),
    Rule(
        "outgoing-line",
        "bin/lists",
        "The program that sends the messages does not understand what it is to send.",
        [
            Option('"$member $id $tagged"', "A line of `outgoing.txt` is ADDRESS ID SUBJECT.", "{0} {1} {2}"),
            Option(
                '"$id -> $member: $tagged"', "A line of `outgoing.txt` is ID -> ADDRESS: SUBJECT.", "{1} -> {0}: {2}"
            ),
            Option('"$id;$tagged;$member"', "A line of `outgoing.txt` is ID;SUBJECT;ADDRESS.", "{1};{2};{0}"),
            Option('"<$member> $tagged #$id"', "A line of `outgoing.txt` is <ADDRESS> SUBJECT #ID.", "<{0}> {2} #{1}"),
        ],
    ),
    Rule(
        "order-of-digest",
        "bin/digest",
        "The messages of a digest are in the wrong order.",
        [
            Option("-k8,8n)", "A digest begins with the oldest message.", lambda message: message.seconds),
            Option("-k8,8nr)", "A digest begins with the newest message.", lambda message: -message.seconds),
            Option(
                "-k6,6)",
                "A digest is sorted by subjects, as they are in the messages.",
                lambda message: message.subject,
            ),
            Option(
                "-k3,3 -k8,8n)",
                "A digest is sorted by addresses of senders, and of one sender begins with the oldest message.",
                lambda message: (message.sender, message.seconds),
            ),
        ],
    ),
    Rule(
        "digest-title",
        "bin/digest",
        "The first line of the digests is not the one that was agreed.",
        [
            Option(
                'echo "Digest of $name: $count"',
                "The first line of a digest is `Digest of LIST: MESSAGES`.",
                "Digest of {0}: {1}",
            ),
            Option('echo "$name ($count)"', "The first line of a digest is `LIST (MESSAGES)`.", "{0} ({1})"),
            Option('echo "$count x $name"', "The first line of a digest is `MESSAGES x LIST`.", "{1} x {0}"),
        ],
    ),
    Rule(
        "contents-line",
        "bin/digest",
        "The contents of the digests are not as agreed.",
        [
            Option(
                '"$place. $subject ($from)"',
                "The contents of a digest are such as `1. SUBJECT (ADDRESS)`.",
                "{0}. {1} ({2})",
            ),
            Option(
                '"$place: $from, $subject"',
                "The contents of a digest are such as `1: ADDRESS, SUBJECT`.",
                "{0}: {2}, {1}",
            ),
            Option('"- $subject [$id]"', "The contents of a digest are such as `- SUBJECT [ID]`.", "- {1} [{3}]"),
            Option('"$place/$count $subject"', "The contents of a digest are such as `1/9 SUBJECT`.", "{0}/{4} {1}"),
        ],
    ),
    Rule(
        "message-mark",
        "bin/digest",
        "One cannot see in the digests where a message begins.",
        [
            Option(
                f'echo "{mark} $seconds"',
                f"Before each message of a digest stands `{mark} SECONDS`, the time since 1970 in UTC.",
                mark,
            )
            for mark in ("----", "====", "* * *", "~~~~")
        ],
    ),
    numbers(
        "line-width",
        "bin/digest",
        "The lines of the digests are too long, or too short.",
        (38, 46, 54, 62),
        "-s -w {}",
        "Lines of messages in a digest are broken at spaces, so that they have at most {} characters; its title and "
        "contents are not.",
    ),
    Rule(
        "quoted-lines",
        "@lib@/body.sed",
        "What somebody quotes is not treated as agreed in the digests.",
        [
            Option("/^>/d", "A digest leaves out quoted lines, which begin with `>`.", lambda line: None),
            Option(
                "s/^>.*/[...]/", "A digest has `[...]` for a quoted line, which begins with `>`.", lambda line: "[...]"
            ),
            Option(
                "s/^>/|/", "In a digest, quoted lines begin with `|` and not with `>`.", lambda line: f"|{line[1:]}"
            ),
        ],
    ),
)

IDENTIFIERS = (
    "scan table members address mode addresses parts joined finish path bytes inside place kind pattern start cells "
    "count field kinds folders patterns seen target longest fits column rows member tagged seconds"
)
