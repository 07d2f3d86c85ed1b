"""Rules that the programs of the template `archive` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    numbers(
        "missing-rating",
        "bin/scan",
        "Photos that nobody has rated are in albums where they should not be, or are missing.",
        (0, 1, 2, 3),
        "[rating]={}",
        "A photo without a rating counts as {}.",
    ),
    Rule(
        "repeated-key",
        "bin/scan",
        "Corrections in sidecars are not treated as agreed.",
        [
            Option("continue 1", "Where a key stands twice, the first line holds.", lambda first, last: first),
            Option("seen[$key]=2", "Where a key stands twice, the last line holds.", lambda first, last: last),
            Option(
                'text="${value[$key]}, $text"',
                "Where a key stands twice, the lines are joined, with a comma and a space.",
                "{}, {}".format,
            ),
        ],
    ),
    Rule(
        "undated",
        "bin/import",
        "Photos without a date are not where they should be.",
        [
            Option('"$taken" = - ]; then continue', "Photos without a date are left out.", None),
            Option('"$taken" = - ]; then seconds=0', "Photos without a date count as of 1970-01-01 00:00.", 0),
            Option(
                '"$taken" = - ]; then seconds=946728000',
                "Photos without a date count as of 2000-01-01 12:00.",
                946_728_000,
            ),
        ],
    ),
    Rule(
        "clock",
        "bin/import",
        "The times of some cameras are wrong by twice as much as before.",
        [
            Option("seconds - 60", "The minutes of a camera are how much its clock is fast.", -60),
            Option("seconds + 60", "The minutes of a camera are how much its clock is slow.", 60),
        ],
    ),
    numbers(
        "night-hours",
        "bin/import",
        "Photos of a night are in the wrong folder, or in the wrong album.",
        (2, 3, 4, 6),
        "3600 * {}",
        "The day ends {} hours after midnight.",
    ),
    Rule(
        "folder",
        "bin/import",
        "Nobody finds the photos in their folders.",
        [
            Option("folder=${day:0:4}", "The folder of a photo is such as `2024`.", lambda day, slug: day[:4]),
            Option("folder=${day:0:7}", "The folder of a photo is such as `2024-05`.", lambda day, slug: day[:7]),
            Option("folder=$slug", "The folder of a photo is its place.", lambda day, slug: slug),
            Option(
                "folder=${day:0:4}/$slug",
                "The folder of a photo is such as `2024/PLACE`.",
                lambda day, slug: f"{day[:4]}/{slug}",
            ),
        ],
    ),
    Rule(
        "name-of-photo",
        "bin/import",
        "The names of photos are not as agreed.",
        [
            Option(
                "name=${day//-/}-$clock-$slug", "The name of a photo is such as `20240531-235900-PLACE`.", "{0}-{1}-{2}"
            ),
            Option("name=$day-$slug", "The name of a photo is such as `2024-05-31-PLACE`.", "{3}-{2}"),
            Option("name=$slug-$clock", "The name of a photo is such as `PLACE-235900`.", "{2}-{1}"),
            Option("name=$clock-$slug", "The name of a photo is such as `235900-PLACE`.", "{1}-{2}"),
        ],
    ),
    Rule(
        "same-content",
        "bin/import",
        "Photos that were imported twice are not treated as agreed.",
        [
            Option(':-}" ]; then continue', "Of photos with the same content, the earliest one is imported.", "skip"),
            Option(
                ':-}" ]; then folder=twice',
                "Photos whose content was there already are put into the folder `twice`.",
                "folder",
            ),
            Option(
                ':-}" ]; then name=$name-copy',
                "Photos whose content was there already have `-copy` at the end of their names.",
                "name",
            ),
        ],
    ),
    Rule(
        "slug",
        "@lib@/names.sh",
        "The spelling of places in names is not the one that was agreed.",
        [
            Option(
                "${text// /-}",
                "In names of files, a space in a place becomes `-`.",
                lambda text: text.replace(" ", "-"),
            ),
            Option(
                "${text// /_}",
                "In names of files, a space in a place becomes `_`.",
                lambda text: text.replace(" ", "_"),
            ),
            Option(
                "${text// /}",
                "In names of files, places are written without spaces.",
                lambda text: text.replace(" ", ""),
            ),
            Option("${text%% *}", "In names of files, a place is its first word.", lambda text: text.partition(" ")[0]),
        ],
    ),
    Rule(
        "collision",
        "@lib@/names.sh",
        "Photos of the same second have names that were not agreed.",
        [
            Option(
                "$start-$number",
                "Where a name is there already, the next ones end with `-2`, `-3` and so on.",
                "{0}-{1}",
            ),
            Option(
                "${start}_$number",
                "Where a name is there already, the next ones end with `_2`, `_3` and so on.",
                "{0}_{1}",
            ),
            Option(
                "$start.$((number - 1))",
                "Where a name is there already, the next ones end with `.1`, `.2` and so on.",
                "{0}.{2}",
            ),
            Option(
                "$number-$start",
                "Where a name is there already, the next ones begin with `2-`, `3-` and so on.",
                "{1}-{0}",
            ),
        ],
    ),
    Rule(
        "last-day",
        "bin/album",
        "The last photos of albums are missing, or there are too many.",
        [
            Option("! $day > ${rule[to]}", "The last day of an album is in it.", lambda day, to: day <= to),
            Option("$day < ${rule[to]}", "The last day of an album is not in it any more.", lambda day, to: day < to),
            Option(
                "! ${day:0:7} > ${rule[to]:0:7}",
                "The last month of an album is in it as a whole.",
                lambda d, to: d[:7] <= to[:7],
            ),
        ],
    ),
    Rule(
        "tags-of-album",
        "bin/album",
        "Albums have photos of the wrong tags.",
        [
            Option(
                '-eq "${#labels[@]}"', "A photo of an album has all of its tags.", lambda hits, count: hits == count
            ),
            Option(
                '-ge "$((${#labels[@]} > 0))"',
                "A photo of an album has one of its tags or more.",
                lambda h, n: h >= min(n, 1),
            ),
            Option(
                '-eq "$((${#labels[@]} > 0))"',
                "A photo of an album has one of its tags, and no more.",
                lambda h, n: h == min(n, 1),
            ),
        ],
    ),
    Rule(
        "order-of-album",
        "bin/album",
        "Albums are in the wrong order.",
        [
            Option("-k2,2 -k1,1", "Albums are sorted by day, and then by path.", lambda row: (row[1], row[0])),
            Option("-k2,2r -k1,1", "Albums begin with the newest day; equal ones by path.", None),
            Option(
                "-k3,3nr -k1,1",
                "Albums begin with the highest rating; equal ones by path.",
                lambda row: (-row[2], row[0]),
            ),
            Option("-k5,5 -k1,1", "Albums are sorted by title; equal ones by path.", lambda row: (row[4], row[0])),
        ],
    ),
    numbers(
        "longest-album",
        "bin/album",
        "Albums are too long or too short.",
        (4, 5, 6, 7),
        "head -n {}",
        "An album has {} photos at most, the first ones.",
    ),
    Rule(
        "album-line",
        "bin/album",
        "The gallery does not understand the lists of albums.",
        [
            Option('"$day $title"', "A line of an album is DAY TITLE.", "{1} {4}"),
            Option('"$title ($place)"', "A line of an album is TITLE (PLACE).", "{4} ({5})"),
            Option('"$rating $title, $day"', "A line of an album is RATING TITLE, DAY.", "{2} {4}, {1}"),
            Option('"$place: $title"', "A line of an album is PLACE: TITLE.", "{5}: {4}"),
        ],
    ),
    Rule(
        "album-title",
        "bin/album",
        "Albums have other titles than agreed.",
        [
            Option(
                '"${rule[title]:-${name%.rule}}"',
                "An album without a title has the name of its file.",
                lambda t, n: t or n,
            ),
            Option('"${rule[title]}"', "An album without a title begins with an empty line.", lambda t, n: t),
            Option(
                '"* ${name%.rule}"',
                "An album begins with `* ` and the name of its file, whatever its title.",
                lambda t, n: f"* {n}",
            ),
            Option(
                '"${name%.rule} ${rule[title]}"',
                "An album begins with the name of its file and its title.",
                lambda t, n: f"{n} {t}",
            ),
        ],
    ),
    Rule(
        "group-of-years",
        "bin/years",
        "The photos are not counted as agreed.",
        [
            Option("${day:0:4}", "`make years` counts the photos of years.", lambda row: row[1][:4]),
            Option("${day:0:7}", "`make years` counts the photos of months.", lambda row: row[1][:7]),
            Option("$place", "`make years` counts the photos of places.", lambda row: row[5]),
            Option(
                "${day:5:2}",
                "`make years` counts the photos of months of all years, such as `05`.",
                lambda row: row[1][5:7],
            ),
        ],
    ),
    Rule(
        "order-of-years",
        "bin/years",
        "The counts are in the wrong order.",
        [
            Option("-k1,1", "`make years` is sorted by what is counted.", lambda row: row[0]),
            Option(
                "-k2,2n -k1,1",
                "`make years` begins with the fewest photos; equal ones by name.",
                lambda row: (row[1], row[0]),
            ),
            Option(
                "-k2,2nr -k1,1",
                "`make years` begins with the most photos; equal ones by name.",
                lambda row: (-row[1], row[0]),
            ),
        ],
    ),
    Rule(
        "line-of-years",
        "bin/years",
        "The page of counts is empty.",
        [
            Option('"$group $number"', "A line of `make years` is such as `2024 12`.", "{0} {1}"),
            Option('"$number x $group"', "A line of `make years` is such as `12 x 2024`.", "{1} x {0}"),
            Option(
                '"$group $number ($sum)"',
                "A line of `make years` is such as `2024 12 (30)`, with the sum of ratings.",
                "{0} {1} ({2})",
            ),
            Option(
                '"$number/$group=$sum"',
                "A line of `make years` is such as `12/2024=30`, with the sum of ratings.",
                "{1}/{0}={2}",
            ),
        ],
    ),
    Rule(
        "orphan-photo",
        "bin/orphans",
        "The list of what is missing cannot be read.",
        [
            Option('"photo $photo"', "A photo without a sidecar is reported such as `photo a.jpg`.", "photo {}"),
            Option(
                '"$photo: no sidecar"',
                "A photo without a sidecar is reported such as `a.jpg: no sidecar`.",
                "{}: no sidecar",
            ),
            Option(
                '"+ $photo.txt"', "A photo without a sidecar is reported as the file to add: `+ a.jpg.txt`.", "+ {}.txt"
            ),
        ],
    ),
    Rule(
        "orphan-sidecar",
        "bin/orphans",
        "The list of what is too much cannot be read.",
        [
            Option(
                '"sidecar $sidecar"',
                "A sidecar without a photo is reported such as `sidecar a.jpg.txt`.",
                "sidecar {0}",
            ),
            Option(
                '"${sidecar%.txt}: no photo"',
                "A sidecar without a photo is reported such as `a.jpg: no photo`.",
                "{1}: no photo",
            ),
            Option(
                '"- $sidecar"', "A sidecar without a photo is reported as the file to remove: `- a.jpg.txt`.", "- {0}"
            ),
        ],
    ),
)

IDENTIFIERS = "line key text seen number content folder labels label hits chosen link group sum path start"
