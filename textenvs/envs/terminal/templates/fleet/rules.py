"""Rules that the programs of the template `fleet` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    Rule(
        "private-purpose",
        "sql/trips.sql",
        "Drivers say that the wrong trips are taken for private ones.",
        [
            Option(f"r.purpose = '{word}'", f"Trips with the purpose `{word}` are private, and no others.", word)
            for word in ("home", "lunch", "family", "errand")
        ],
    ),
    Rule(
        "gap-km",
        "sql/drivers.sql",
        "The kilometres of some drivers are not as agreed.",
        [
            Option("c.km", "Missing kilometres are those of no driver.", "nobody"),
            Option("c.km + c.gap", "Missing kilometres are those of the driver of the trip after them.", "after"),
            Option(
                "c.km + c.next_gap", "Missing kilometres are those of the driver of the trip before them.", "before"
            ),
        ],
        shows=True,
    ),
    Rule(
        "day-of-trip",
        "sql/trips.sql",
        "At the edge of a period, trips of a night are in the wrong one.",
        [
            Option("date(d.begins)", "A trip is of the day on which it begins.", 0),
            Option("date(d.ends)", "A trip is of the day on which it ends.", 1),
        ],
    ),
    Rule(
        "mile-rounding",
        "@lib@/functions.py",
        "Distances of vehicles from abroad differ by a kilometre.",
        [
            Option("distance * metres", "Kilometres of miles are rounded down.", 0),
            Option("(distance * metres + 500)", "Kilometres of miles are rounded to the nearest.", 500),
            Option("(distance * metres + 999)", "Kilometres of miles are rounded up.", 999),
        ],
    ),
    Rule(
        "hours-rounding",
        "@lib@/@dates@.py",
        "The hours of drivers are not counted as agreed.",
        [
            Option("return number", "All minutes of a trip count as they are.", lambda n: n),
            Option(
                "return -(-number // 15) * 15",
                "Minutes of a trip are rounded up to quarters.",
                lambda n: n + -n % 15,
            ),
            Option("return number // 10 * 10", "Minutes of a trip are rounded down to tens.", lambda n: n - n % 10),
            Option(
                "return max(number, 120)", "A trip counts as 120 minutes at least.", lambda n: n if n > 120 else 120
            ),
        ],
    ),
    Rule(
        "full-filling",
        "sql/fuel.sql",
        "The consumption is not computed from one full tank to the next as agreed.",
        [
            Option("f.full", "A tank is full where the receipt says so.", lambda marked, part: marked),
            Option(
                "(f.full OR f.centilitres >= v.tank * 65)",
                "A tank is full where the receipt says so, and after a filling of 65 % of it or more.",
                lambda marked, part: marked or part >= 65,
            ),
            Option(
                "(f.full OR f.centilitres >= v.tank * 75)",
                "A tank is full where the receipt says so, and after a filling of 75 % of it or more.",
                lambda marked, part: marked or part >= 75,
            ),
            Option(
                "(f.full AND f.centilitres >= v.tank * 35)",
                "A tank is full where the receipt says so and the filling is 35 % of it or more.",
                lambda marked, part: marked and part >= 35,
            ),
        ],
    ),
    Rule(
        "consumption-figure",
        "reports/fuel.sql",
        "The figures of consumption cannot be compared with those of other firms.",
        [
            Option(
                "printf('%d.%02d', burned / driven, burned * 100 / driven % 100)",
                "The consumption is in litres for 100 km, such as 7.45; more digits are cut off.",
                lambda cl, km: f"{cl * 100 // km / 100:.2f}",
            ),
            Option(
                "printf('%d.%02d', driven * 100 / burned, driven * 10000 / burned % 100)",
                "The consumption is in km for a litre, such as 13.42; more digits are cut off.",
                lambda cl, km: f"{km * 10000 // cl / 100:.2f}",
            ),
            Option(
                "burned * 10 / driven",
                "The consumption is in millilitres for a km, such as 74; digits behind the point are cut off.",
                lambda cl, km: str(cl * 10 // km),
            ),
        ],
    ),
    Rule(
        "repeated-receipt",
        "sql/fuel.sql",
        "Receipts that were corrected do not count as agreed.",
        [
            Option("ORDER BY day, time)", "Of lines with one receipt, the earliest counts.", lambda fill: fill.when),
            Option(
                "ORDER BY day DESC, time DESC)",
                "Of lines with one receipt, the latest counts.",
                lambda fill: tuple(-part for part in fill.when),
            ),
            Option("ORDER BY cents)", "Of lines with one receipt, the cheapest counts.", lambda fill: fill.cents),
            Option("ORDER BY cents DESC)", "Of lines with one receipt, the dearest counts.", lambda fill: -fill.cents),
        ],
    ),
    Rule(
        "due-by",
        "@lib@/functions.py",
        "The workshop is asked for services too early, or too late.",
        [
            Option("any(over)", "A service is due by kilometres or by days: what is first counts.", any),
            Option("all(over)", "A service is due when it is so by kilometres and by days, where it has both.", all),
            Option(
                "over[0]",
                "A service is due by its kilometres, and by days where it has none.",
                lambda over: over[0],
            ),
            Option(
                "over[-1]",
                "A service is due by its days, and by kilometres where it has none.",
                lambda over: over[-1],
            ),
        ],
    ),
    numbers(
        "soon-km",
        "etc/@year@.json",
        "The list of services for the next weeks is too long or too short.",
        (400, 800, 1200, 1600),
        '"@km_key@": {}',
        "A service will be due soon with {} km left or fewer.",
    ),
    numbers(
        "soon-days",
        "etc/@year@.json",
        "The calendar of the workshop has other services than agreed.",
        (10, 20, 30, 45),
        '"@days_key@": {}',
        "A service will be due soon with {} days left or fewer.",
    ),
    Rule(
        "never-serviced",
        "sql/services.sql",
        "Services that were never done are not treated as agreed.",
        [
            Option(
                "LEFT JOIN latest",
                "The intervals of a service that was never done begin with the day when the vehicle was bought, and "
                "with the start of the records.",
                True,
            ),
            Option("JOIN latest", "A service that was never done is not in `due`: others pay for it.", False),
        ],
    ),
    numbers(
        "depreciation-years",
        "etc/@year@.json",
        "Auditors say that vehicles lose their value too fast, or too slowly.",
        (4, 5, 6, 8),
        '"@years_key@": {}',
        "A vehicle has a life of {} years.",
    ),
    numbers(
        "rest-value",
        "@lib@/functions.py",
        "The loss of value is too large or too small by the same part for all vehicles.",
        (0, 10, 20, 25),
        "(100 - {})",
        "Of the price of a vehicle, {} % are left at the end of its life.",
    ),
    Rule(
        "fixed-share",
        "@lib@/functions.py",
        "The fixed costs of a period are not those that were agreed.",
        [
            Option(
                "return cents * (days(begin, end) + 1) // 365",
                "Of yearly costs, a day that they are for is a part in 365; fractions are cut off.",
                lambda cents, days, months: cents * days // 365,
            ),
            Option(
                "return cents * (months_between(begin, end) + 1) // 12",
                "Of yearly costs, a month counts as a twelfth as soon as it has one day; fractions are cut off.",
                lambda cents, days, months: cents * months // 12,
            ),
            Option(
                "return cents",
                "Yearly costs count in full as soon as a day of them is in the period.",
                lambda cents, days, months: cents,
            ),
        ],
    ),
    Rule(
        "cost-per-km",
        "reports/costs.sql",
        "The costs of a kilometre are not what our customers pay for.",
        [
            Option("nullif(km, 0)", "Costs are divided by the km of all trips.", (0, 0)),
            Option("nullif(km - private_km, 0)", "Costs are divided by the km of trips that are not private.", (-1, 0)),
            Option("nullif(km + missing, 0)", "Costs are divided by the km of all trips and the missing ones.", (0, 1)),
        ],
    ),
    Rule(
        "order-of-costs",
        "reports/costs.sql",
        "The list of costs is not in the order that was agreed.",
        [
            Option("ORDER BY total DESC", "`costs` begins with the dearest vehicle.", lambda row: -row.total),
            Option("ORDER BY total", "`costs` begins with the cheapest vehicle.", lambda row: row.total),
            Option("ORDER BY model", "`costs` is in the order of models.", lambda row: row.model),
            Option(
                "ORDER BY lost DESC",
                "`costs` begins with what loses most value.",
                lambda row: -row.lost,
            ),
        ],
    ),
    Rule(
        "amount",
        "@lib@/functions.py",
        "Accounting cannot read the amounts.",
        [
            Option('f"{cents // 100}.{cents % 100:02}"', "Amounts are such as 1203.05.", "{0}.{1:02}"),
            Option('f"{cents // 100},{cents % 100:02}"', "Amounts are such as 1203,05.", "{0},{1:02}"),
            Option('f"{cents // 100}"', "Amounts are such as 1203: the cents are cut off.", "{0}"),
            Option('f"{cents // 100}\'{cents % 100:02}"', "Amounts are such as 1203'05.", "{0}'{1:02}"),
        ],
    ),
    Rule(
        "licence-last-day",
        "sql/alerts.sql",
        "On one day, a driver is taken for somebody without a licence, or not.",
        [
            Option("date(r.begins) > d.until", "A licence is good on its last day.", 0),
            Option("date(r.begins) >= d.until", "A licence is not good on its last day any more.", 1),
        ],
    ),
    Rule(
        "licence-classes",
        "@lib@/functions.py",
        "Drivers are reported for vehicles that they may drive, or not reported.",
        [
            Option(
                "needed in own",
                "A driver has to have the very class that a vehicle needs.",
                lambda own, needed: needed in own,
            ),
            Option(
                'needed in own or "C" in own',
                "Who has the class C may drive all vehicles.",
                lambda own, needed: bool({needed, "C"} & {*own}),
            ),
            Option(
                'needed in own or needed == "B"',
                "Everybody may drive what needs B, whatever their classes.",
                lambda own, needed: needed in ("B", *own),
            ),
        ],
    ),
    numbers(
        "tank-tolerance",
        "sql/alerts.sql",
        "There are alerts about fillings that are possible, or none about others.",
        (100, 105, 110, 115),
        "v.tank * {}",
        "A filling is too large with more than {} % of the tank.",
    ),
    Rule(
        "overlapping-trips",
        "sql/alerts.sql",
        "The alerts about trips at the same time are not those that were agreed.",
        [
            Option("e.driver = r.driver", "Trips overlap where one driver has two at a time.", "driver"),
            Option("e.plate = r.plate", "Trips overlap where one vehicle has two at a time.", "plate"),
        ],
    ),
    Rule(
        "long-day",
        "sql/alerts.sql",
        "Days of drivers are called long that are not, or the other way round.",
        [Option(f"{n} * 60", f"A day of more than {n} hours is too long for a driver.", n) for n in (8, 9, 10, 11)],
    ),
    Rule(
        "mileage-columns",
        "reports/mileage.sql",
        "The tax office does not get the columns of `mileage` that were agreed.",
        [
            Option(
                "plate, km, private_km, missing",
                "`mileage` has plate, km of all trips, of private ones, and missing km.",
                lambda km, private, missing: (km, private, missing),
            ),
            Option(
                "plate, km - private_km, private_km, missing",
                "`mileage` has plate, km of business trips, of private ones, and missing km.",
                lambda km, private, missing: (km - private, private, missing),
            ),
            Option(
                "plate, km + missing, private_km + missing",
                "`mileage` has plate, km with the missing ones, and private km with the missing ones.",
                lambda km, private, missing: (km + missing, private + missing),
            ),
            Option(
                "plate, private_km, missing, km",
                "`mileage` has plate, private km, missing km, and km of all trips.",
                lambda km, private, missing: (private, missing, km),
            ),
        ],
    ),
)

IDENTIFIERS = (
    "scratch depot parts times purpose cells separator many heads stream table marks columns sources step query "
    "distance remaining over number margins near life oldest youngest own length rides begins ends previous_stop "
    "next_start distances counted private_km missing gap next_gap marked numbered stages stage "
    "complete origin consumption burned driven latest readings plan km_left next_day service_costs fixed_costs totals "
    "shifts spent iso clock hundredths reached share decline may_drive money kilometres months_between"
)
