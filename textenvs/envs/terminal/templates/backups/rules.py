"""Rules that the programs of the template `backups` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule
from .texts import FOLDERS

RULES = (
    Rule(
        "umask",
        "bin/backup",
        "The auditors say that the wrong people on the host can list the backups.",
        [
            Option(f"umask {mask}", f"The folder of a backup has the mode {mode}.", mode)
            for mask, mode in (("077", "700"), ("027", "750"), ("007", "770"), ("037", "740"), ("072", "705"))
        ],
    ),
    Rule(
        "digest",
        "bin/backup",
        "The auditors cannot verify the manifests any more.",
        [
            Option(f"-r {name}sum >", f"The manifest has checksums of {name.upper()}.", name)
            for name in ("sha256", "sha1", "md5", "sha224", "sha512")
        ],
    ),
    Rule(
        "link",
        "bin/backup",
        "A restore does not find the newest backup.",
        [
            Option(f'"$2/{name}"', f"The link to the newest backup is `{name}`.", name)
            for name in ("latest", "current", "newest", "now", "head")
        ],
    ),
    Rule(
        "copied-line",
        "bin/backup",
        "The watch on backups does not find the number of copies.",
        [
            Option(
                'echo "copied $count"',
                "`bin/backup` prints such as `copied 3`: files and folders of the top.",
                "copied {}",
            ),
            Option(
                'echo "$count copied"',
                "`bin/backup` prints such as `3 copied`: files and folders of the top.",
                "{} copied",
            ),
            Option(
                'echo "copies=$count"',
                "`bin/backup` prints such as `copies=3`: files and folders of the top.",
                "copies={}",
            ),
            Option(
                'printf "%03d\\n" "$count"', "`bin/backup` prints such as `003`: files and folders of the top.", "{:03}"
            ),
        ],
    ),
    Rule(
        "excluded-folder",
        "@etc@/exclude.txt",
        "A folder is in no backup, or one is that should not be.",
        [Option(f"\n{name}\n", f"The folder `{name}` is in no backup.", name) for name in FOLDERS],
    ),
    Rule(
        "overwritten-first",
        "bin/rotate",
        "Of old months, another backup is left than was agreed.",
        [
            Option(
                '[ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the first backup.",
                min,
            ),
            Option("first[${name:0:7}]=$name", "Of each month, `bin/rotate` leaves the last backup.", max),
            Option(
                '[ "${name:8:2}" -gt 14 ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the last backup of the first 14 days.",
                lambda dates: max((date for date in dates if date.day <= 14), default=None),
            ),
            Option(
                '[ "${name:8:2}" -lt 8 ] || [ -n "${first[${name:0:7}]:-}" ] || first[${name:0:7}]=$name',
                "Of each month, `bin/rotate` leaves the first backup since the 8th.",
                lambda dates: min((date for date in dates if date.day >= 8), default=None),
            ),
        ],
    ),
    Rule(
        "kept-months",
        "bin/rotate",
        "The oldest month of which a backup is left is not the one that was agreed.",
        [
            Option(
                '-lt "$keep_months"',
                "A backup of a month is kept while it is fewer than `keep_months` months old.",
                lambda n, k: n < k,
            ),
            Option(
                '-le "$keep_months"',
                "A backup of a month is kept while it is at most `keep_months` months old.",
                lambda n, k: n <= k,
            ),
            Option(
                '-lt "$((2 * keep_months))"',
                "These of months are left that are fewer than twice `keep_months` months old.",
                lambda n, k: n < 2 * k,
            ),
            Option(
                '-lt "$((keep_months - 1))"',
                "These of months are left that are fewer than `keep_months` less one months old.",
                lambda n, k: n < k - 1,
            ),
        ],
    ),
    Rule(
        "removal",
        "bin/rotate",
        "Old backups are not where they should be after a rotation.",
        [
            Option('rm -r "${store:?}/$name"', "`bin/rotate` deletes what it removes.", ""),
            *(
                Option(
                    f'mv "$store/$name" "$store/{word}-$name"',
                    f"`bin/rotate` renames what it removes, to `{word}-DATE`.",
                    f"{word}-",
                )
                for word in ("old", "gone", "expired")
            ),
        ],
    ),
    Rule(
        "removed-line",
        "bin/rotate",
        "The watch on backups does not find the number of those that were removed.",
        [
            Option('echo "removed $removed"', "`bin/rotate` prints such as `removed 3`.", "removed {0}"),
            Option('echo "$removed removed"', "`bin/rotate` prints such as `3 removed`.", "{0} removed"),
            Option(
                'echo "$removed of $position"',
                "`bin/rotate` prints such as `3 of 9`: of so many backups.",
                "{0} of {1}",
            ),
            Option(
                'echo "left $((position - removed))"',
                "`bin/rotate` prints such as `left 6`: how many it left.",
                "left {2}",
            ),
        ],
    ),
    Rule(
        "step-offset",
        "@lib@/due.awk",
        "Jobs that are to run every few minutes run at the wrong minutes.",
        [
            Option(
                f"if ((value + {offset}) % substr(parts[i], 3) == 0) return 1",
                f"In a table of jobs, `*/N` fits where the value and {offset} together can be divided by N.",
                offset,
            )
            for offset in range(5)
        ],
    ),
    Rule(
        "day-and-weekday",
        "@lib@/due.awk",
        "A job that has a day and a weekday does not run as agreed.",
        [
            Option(
                '!= "*") return in_month || in_week',
                "Where a job has a day and a weekday, one of them is enough.",
                lambda day, week: day or week,
            ),
            Option(
                '!= "*") return in_month && in_week',
                "Where a job has a day and a weekday, both must fit.",
                lambda day, week: day and week,
            ),
            Option(
                '!= "*") return in_week',
                "Where a job has a day and a weekday, the weekday alone counts.",
                lambda day, week: week,
            ),
            Option(
                '!= "*") return in_month',
                "Where a job has a day and a weekday, the day alone counts.",
                lambda day, week: day,
            ),
        ],
    ),
    Rule(
        "due-head",
        "@lib@/due.awk",
        "The program that starts the jobs does not understand which are due.",
        [
            Option(f'"{word}"', f"A line of `bin/due` begins with `{word}`.", word)
            for word in ("due:", "run:", "start:", "jobs:", ">")
        ],
    ),
    Rule(
        "due-separator",
        "@lib@/due.awk",
        "The program that starts the jobs starts none.",
        [
            Option(f'line "{mark}" name', f"In a line of `bin/due`, `{mark}` is before each job.", mark)
            for mark in (" ", " +", ",", " /", " -")
        ],
    ),
)

IDENTIFIERS = (
    "target count file store today first position excluded backups months pattern years fits field value parts range "
    "in_month in_week line minute hour weekday"
)
