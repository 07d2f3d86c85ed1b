"""Rules that the programs of the template `parcels` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


RULES = (
    Rule(
        "title-of-list",
        "bin/day",
        "The printer in the hall prints no lists any more.",
        [
            Option('"[$list]"', "A list begins with a line such as `[late]`.", "[{}]".format),
            Option('"*** $list"', "A list begins with a line such as `*** late`.", "*** {}".format),
            Option('"${list^}:"', "A list begins with a line such as `Late:`.", lambda name: f"{name.title()}:"),
            Option('"<$list>"', "A list begins with a line such as `<late>`.", "<{}>".format),
        ],
    ),
    Rule(
        "repeated-number",
        "@awk@/clean.awk",
        "Parcels that were typed twice have the wrong price.",
        [
            Option("if (number in lines) next", "Of several lines with a parcel's number, the first counts.", "first"),
            Option("delete lines[number]", "Of several lines with a parcel's number, the last counts.", "last"),
            Option(
                "if (number in lines && weight <= heaviest[number]) next",
                "Of several lines with a parcel's number, the one with the largest weight counts.",
                "heaviest",
            ),
        ],
    ),
    Rule(
        "code-without-zone",
        "@awk@/zones.awk",
        "Parcels to codes that are in no zone are not treated as agreed.",
        [
            Option('goal = "@far@"', "A receiver's code without a zone is in @far@.", lambda source, far: far),
            Option(
                "goal = source", "A receiver's code without a zone is in the sender's zone.", lambda source, far: source
            ),
            Option("lost++; next", "A parcel to a code without a zone has no price.", lambda source, far: None),
        ],
    ),
    numbers(
        "volume-of-gram",
        "@awk@/prices.awk",
        "Light parcels that are large have the wrong price.",
        (3, 4, 5, 6),
        "int($6 * $7 * $8 / {})",
        "The volume weight is a gram for {} cubic centimetres, rounded down.",
    ),
    Rule(
        "billed-weight",
        "@awk@/prices.awk",
        "Weights on invoices are not those of the contract.",
        [
            Option(
                "billed = volume > grams ? volume : grams",
                "The weight on the bill is the larger one of weight and volume weight.",
                max,
            ),
            Option(
                "billed = int((volume + grams) / 2)",
                "The weight on the bill is the mean of weight and volume weight, rounded down.",
                lambda grams, volume: (grams + volume) // 2,
            ),
            Option(
                "billed = volume > 2 * grams ? volume : grams",
                "The weight on the bill is the volume weight if this is more than twice the weight, else the weight.",
                lambda grams, volume: volume if volume > 2 * grams else grams,
            ),
        ],
    ),
    Rule(
        "full-grams",
        "@awk@/prices.awk",
        "Weights on invoices are not rounded as agreed.",
        [
            Option(
                f"{unit - 1}) / {unit}) * {unit}",
                f"The weight on the bill is rounded up to full {unit} grams.",
                lambda grams, unit=unit: _rounded_up(grams, unit),
            )
            for unit in (20, 50, 100, 250)
        ],
    ),
    Rule(
        "weight-at-step",
        "@awk@/prices.awk",
        "Parcels with exactly the weight of a step have the wrong price.",
        [
            Option(
                "return weight <= limit",
                "A weight of exactly the grams of a step fits it.",
                lambda weight, limit: weight <= limit,
            ),
            Option(
                "return weight < limit",
                "A weight of exactly the grams of a step does not fit it.",
                lambda weight, limit: weight < limit,
            ),
        ],
    ),
    Rule(
        "heavier-than-all",
        "@awk@/prices.awk",
        "Parcels above the last step have the wrong price.",
        [
            Option(
                "kilos = int((weight - top + 999) / 1000)",
                "Above the highest step, the price is that step's, plus an amount for each started kilogram.",
                lambda grams: -(-grams // 1000),
            ),
            Option(
                "kilos = int((weight - top) / 1000)",
                "Above the highest step, the price is that step's, plus an amount for each full kilogram.",
                lambda grams: grams // 1000,
            ),
            Option(
                "kilos = 2 * int((weight - top + 1999) / 2000)",
                "Above the highest step, the price is that step's, plus two amounts for each begun pair of kilograms.",
                lambda grams: -(-grams // 2000) * 2,
            ),
        ],
    ),
    Rule(
        "bulky-measure",
        "@awk@/prices.awk",
        "Parcels are bulky that should not be, or the other way round.",
        [
            Option("girth = $6", "The longest side says if a parcel is bulky.", lambda a, b, c: a),
            Option(
                "girth = $6 + 2 * ($7 + $8)",
                "The longest side, and twice the other two, say if a parcel is bulky.",
                lambda a, b, c: a + 2 * b + 2 * c,
            ),
            Option(
                "girth = $6 + $7 + $8", "The sum of the sides says if a parcel is bulky.", lambda a, b, c: a + b + c
            ),
        ],
    ),
    Rule(
        "basis-of-fuel",
        "@awk@/prices.awk",
        "The fuel of some parcels is too expensive, or too cheap.",
        [
            Option(
                "basis = price",
                "Fuel is a share of the tariff, without what a bulky parcel costs more.",
                lambda price, bulky, service: price,
            ),
            Option(
                "basis = price + bulky",
                "Fuel is a share of the tariff with what a bulky parcel costs more.",
                lambda price, bulky, service: price + bulky,
            ),
            Option(
                'basis = $9 == "express" ? 0 : price',
                "Fuel is a share of the tariff alone, and nothing for `express`.",
                lambda price, bulky, service: 0 if service == "express" else price,
            ),
        ],
    ),
    Rule(
        "cents-of-fuel",
        "@awk@/prices.awk",
        "Prices differ by some cents from those of the offer.",
        [
            Option("fuel = int(part / 100)", "Fuel is rounded down to cents.", lambda part: part // 100),
            Option("fuel = int((part + 99) / 100)", "Fuel is rounded up to cents.", lambda part: -(-part // 100)),
            Option(
                "fuel = 5 * int((part + 499) / 500)", "Fuel is rounded up to 5 cents.", lambda part: -(-part // 500) * 5
            ),
            Option("fuel = 5 * int(part / 500)", "Fuel is rounded down to 5 cents.", lambda part: part // 500 * 5),
        ],
    ),
    Rule(
        "measure-of-links",
        "@awk@/paths.awk",
        "Parcels go round in circles.",
        [
            Option("measure = $3", "The cost of a link is its minutes.", lambda minutes, kilometres: minutes),
            Option("measure = $4", "The cost of a link is its kilometres.", lambda minutes, kilometres: kilometres),
            Option(
                "measure = $3 + $4",
                "The cost of a link is the sum of its minutes and kilometres.",
                lambda minutes, kilometres: minutes + kilometres,
            ),
        ],
    ),
    Rule(
        "way-back",
        "@awk@/paths.awk",
        "Parcels do not go the way that lorries go.",
        [
            Option("add($2, $1, measure)", "Links can be used in both directions, at one cost.", lambda cost: cost),
            Option(
                "add($2, $1, 2 * measure)", "Against its direction, a link costs twice as much.", lambda cost: 2 * cost
            ),
            Option("oneway++", "Links can be used in the direction alone in which they are listed.", lambda cost: None),
        ],
    ),
    Rule(
        "waiting-times",
        "@awk@/paths.awk",
        "The costs of all ways are off by the same number.",
        [
            Option(
                "cost += 0",
                "The cost of a way has the minutes of depots for each of them but the first.",
                lambda links, wait: 0,
            ),
            Option(
                'cost += ENVIRON["@wait_key@"]',
                "The cost of a way has the minutes of depots for each of them, the first as well.",
                lambda links, wait: wait,
            ),
            Option(
                'if (start != end) cost -= ENVIRON["@wait_key@"]',
                "The cost of a way has the minutes of depots for each of them but the first and the last.",
                lambda links, wait: -wait if links else 0,
            ),
        ],
    ),
    Rule(
        "scans-of-a-minute",
        "@awk@/events.awk",
        "Some states are those of an earlier scan, says the hall.",
        [
            Option("place = ranks[$4]", "Of scans of one minute, the one with the highest rank is the last.", "rank"),
            Option("place = NR", "Of scans of one minute, the one behind the others in the files is the last.", "file"),
            Option(
                "place = -NR", "Of scans of one minute, the one before the others in the files is the last.", "reverse"
            ),
        ],
    ),
    Rule(
        "free-weekdays",
        "@awk@/promises.awk",
        "What comes at the end of a week is promised for the wrong day.",
        [
            Option("free = number > 5", "There is no work on Saturdays and Sundays.", lambda day, service: day > 5),
            Option("free = number == 7", "There is no work on Sundays.", lambda day, service: day == 7),
            Option(
                'free = number == 7 || (number == 6 && service != "express")',
                "There is no work on Sundays, and on Saturdays for `express` alone.",
                lambda day, service: day == 7 or (day == 6 and service != "express"),
            ),
        ],
    ),
    Rule(
        "last-minute",
        "@awk@/promises.awk",
        "What comes in the evening is promised for the wrong day.",
        [
            Option(
                "if (minute % 1440 > late) day++",
                "A parcel that comes in the minute at which a day ends belongs to it.",
                lambda minute, end: minute > end,
            ),
            Option(
                "if (minute % 1440 >= late) day++",
                "A parcel that comes in the minute at which a day ends belongs to the next one.",
                lambda minute, end: minute >= end,
            ),
        ],
    ),
    Rule(
        "hour-of-promise",
        "@awk@/promises.awk",
        "Parcels are late that should not be, or the other way round.",
        [
            Option("due = 1440 * day + 1439", "A parcel is due until 23:59 of its day.", lambda minute: 1439),
            Option("due = 1440 * day + 720", "A parcel is due until 12:00 of its day.", lambda minute: 720),
            Option("due = 1440 * day + 1020", "A parcel is due until 17:00 of its day.", lambda minute: 1020),
            Option(
                "due = 1440 * day + minute % 1440",
                "A parcel is due, on its day, until the minute at which it came.",
                lambda minute: minute,
            ),
        ],
    ),
    Rule(
        "end-of-delivery",
        "lists/late.sh",
        "Parcels are late for which nobody was at home, or the other way round.",
        [
            Option('$4 == "delivered"', "A parcel is there when it is `delivered`.", ["delivered"]),
            Option(
                '($4 == "delivered" || $4 == "failed")',
                "A parcel is there when it is `delivered`, or when this has `failed`.",
                ["delivered", "failed"],
            ),
            Option(
                '($4 == "delivered" || $4 == "deposited")',
                "A parcel is there when it is `delivered` or `deposited`.",
                ["delivered", "deposited"],
            ),
        ],
    ),
    Rule(
        "open-parcels",
        "@awk@/late.awk",
        "Parcels that are still on their way are not listed as agreed.",
        [
            Option(
                'if (now > $2) print $1, "open"',
                "A parcel that is not there is listed as `open` when it is due no more.",
                lambda now, due: now > due,
            ),
            Option('print $1, "open"', "Each parcel that is not there is listed as `open`.", lambda now, due: True),
            Option("open++", "Parcels that are not there are not listed.", lambda now, due: False),
        ],
    ),
    Rule(
        "unit-of-delay",
        "@awk@/late.awk",
        "The delays are too long, or too short.",
        [
            Option(
                "delay = int((minutes + 59) / 60)",
                "Delays are printed in hours, rounded up.",
                lambda minutes: -(-minutes // 60),
            ),
            Option("delay = int(minutes / 60)", "Delays are printed in hours, rounded down.", lambda m: m // 60),
            Option(
                "delay = int((minutes + 1439) / 1440)",
                "Delays are printed in days, rounded up.",
                lambda minutes: -(-minutes // 1440),
            ),
            Option("delay = minutes", "Delays are printed in minutes.", lambda minutes: minutes),
        ],
    ),
    numbers(
        "parcels-for-discount",
        "@awk@/bills.awk",
        "Customers have a discount who should have none, or the other way round.",
        (2, 3, 4, 5),
        "if (count[name] >= {})",
        "Customers have their discount with {} parcels or more.",
    ),
    Rule(
        "order-of-bills",
        "lists/bills.sh",
        "Bills do not lie in the order of envelopes.",
        [
            Option("-k1,1 -k2,2n", "Bills are in the order of names.", lambda row: row[0]),
            Option(
                "-k3,3nr -k1,1",
                "The largest bill is the first; equal ones are in the order of names.",
                lambda row: (-row[2], row[0]),
            ),
            Option(
                "-k2,2nr -k1,1",
                "The bill with most parcels is the first; equal ones are in the order of names.",
                lambda row: (-row[1], row[0]),
            ),
        ],
    ),
    Rule(
        "line-of-price",
        "lists/prices.sh",
        "The labels with prices cannot be printed.",
        [
            Option(
                '"$number $class $grams $francs"',
                "A price is printed such as `RA123456785CH 2 1500 12.40`: with class and grams.",
                "{0} {1} {2} {3}",
            ),
            Option(
                '"$francs;$number;${grams}g;$class"',
                "A price is printed such as `12.40;RA123456785CH;1500g;2`: with grams and class.",
                "{3};{0};{2}g;{1}",
            ),
            Option(
                '"$number: $francs (class $class, $grams g)"',
                "A price is printed such as `RA123456785CH: 12.40 (class 2, 1500 g)`.",
                "{0}: {3} (class {1}, {2} g)",
            ),
        ],
    ),
)

IDENTIFIERS = (
    "number weight heaviest lines total digit ordered grams names remember name_of source goal fields tariff "
    "service limits cents kilos billed volume girth basis bulky fuel price add tails heads lengths search "
    "costs ways searched measure changed cost day_of minute_of ranks fast place works closed late due percent "
    "sums count off now delay francs is_valid best top"
)
