"""Rules that the programs of the template `cookbook` keep, and the identifiers in them: each project draws some."""

from __future__ import annotations

from ..variation import Option, Rule, numbers

RULES = (
    numbers(
        "tbsp-size",
        "etc/units.tsv",
        "What is measured with large spoons is too much or too little.",
        (14, 15, 18, 20),
        "tbsp\tml\t{}000",
        "A `tbsp` has {} ml.",
    ),
    numbers(
        "cup-size",
        "etc/units.tsv",
        "Dishes from abroad have too much of some ingredients, or too little.",
        (200, 225, 240, 250),
        "cup\tml\t{}000",
        "A `cup` has {} ml.",
    ),
    numbers(
        "pinch-size",
        "etc/units.tsv",
        "The costs of spices are not as agreed.",
        (250, 300, 400, 500),
        "pinch\tg\t{}",
        "A `pinch` has {} thousandths of a g.",
    ),
    Rule(
        "amount-range",
        "@lib@/@home_measure@.awk",
        "Where a recipe leaves the choice, the amounts are not as agreed.",
        [
            Option("amount = low", "Of an amount such as `2-3`, the smaller number counts.", lambda low, high: low),
            Option("amount = high", "Of an amount such as `2-3`, the larger number counts.", lambda low, high: high),
            Option(
                "amount = (low + high) / 2",
                "Of an amount such as `2-3`, the number in the middle counts.",
                lambda low, high: (low + high) / 2,
            ),
        ],
    ),
    Rule(
        "child-portion",
        "@lib@/meals.awk",
        "There is too much or too little when children come.",
        [
            Option("3 * people[2]", "A child eats half a portion.", 3),
            Option("4 * people[2]", "A child eats two thirds of a portion.", 4),
            Option("6 * people[2]", "A child eats a portion.", 6),
            Option("2 * people[2]", "A child eats a third of a portion.", 2),
        ],
    ),
    Rule(
        "sub-recipe",
        "@lib@/expand.awk",
        "Of what is made for other dishes, the list has an amount that nobody has agreed on.",
        [
            Option(
                "OVER = over; UNDER = under",
                "Of a recipe that another one needs, the very part is made.",
                lambda portions, serves: portions,
            ),
            Option(
                "OVER = int((over + under - 1) / under); UNDER = 1",
                "Of a recipe that another one needs, portions are made, rounded up.",
                lambda portions, serves: -(-portions // 1),
            ),
            Option(
                "UNDER = 1; under *= serves[recipe]; OVER = serves[recipe] * int((over + under - 1) / under)",
                "A recipe that another one needs is made as it stands, once or several times.",
                lambda portions, serves: -(-portions // serves) * serves,
            ),
        ],
    ),
    Rule(
        "optional-items",
        "@lib@/expand.awk",
        "Optional ingredients are not bought as agreed.",
        [
            Option("part = 2 - 2 * cells[6]", "Optional ingredients are no needs.", 0),
            Option("part = 2 - cells[6]", "Of optional ingredients, half is needed.", 1),
            Option("part = 2", "Optional ingredients are needed as the others.", 2),
        ],
    ),
    Rule(
        "stock-date",
        "@lib@/list.awk",
        "What is in the stock is bought, or too old things are used.",
        [
            Option(
                "if (best >= first)",
                "The stock counts that is good on the first day of the plan.",
                lambda best, first, last: best >= first,
            ),
            Option(
                "if (best > first)",
                "The stock counts that is good longer than on the first day of the plan.",
                lambda best, first, last: best > first,
            ),
            Option(
                "if (best >= last)",
                "The stock counts that is good on the seventh day of the plan.",
                lambda best, first, last: best >= last,
            ),
        ],
    ),
    Rule(
        "packs-to-buy",
        "@lib@/list.awk",
        "The numbers of packs in the list are not those that were agreed.",
        [
            Option(
                "packs = int((missing + pack[name] - 1) / pack[name])",
                "Packs are bought so that nothing is missing.",
                lambda missing, pack: -(-missing // pack),
            ),
            Option(
                "packs = nearest(missing, pack[name]); if (packs < 1) packs = 1",
                "The nearest number of packs is bought, but one at least.",
                lambda missing, pack: max((2 * missing + pack) // (2 * pack), 1),
            ),
            Option(
                "packs = int((missing + pack[name] / 4 + pack[name] - 1) / pack[name])",
                "Packs are bought so that a quarter of one is left at least.",
                lambda missing, pack: -(-(missing + pack // 4) // pack),
            ),
        ],
    ),
    Rule(
        "weight-rounding",
        "@lib@/@home_rounded@.awk",
        "The amounts cannot be weighed as the cooks have agreed.",
        [
            Option(
                "result = int((amount + 2500) / 5000) * 5",
                "Amounts in g and ml are rounded to the nearest 5.",
                lambda n: (n + 2500) // 5000 * 5,
            ),
            Option(
                "result = int((amount + 9999) / 10000) * 10",
                "Amounts in g and ml are rounded up to tens.",
                lambda n: -(-n // 10000) * 10,
            ),
            Option(
                "result = int((amount + 500) / 1000)",
                "Amounts in g and ml are rounded to the nearest integer.",
                lambda n: (n + 500) // 1000,
            ),
            Option("result = int(amount / 1000)", "Amounts in g and ml are rounded down.", lambda n: n // 1000),
        ],
    ),
    Rule(
        "piece-rounding",
        "@lib@/@home_pieces@.awk",
        "There are fractions of eggs in the list, or the wrong ones.",
        [
            Option("return int((amount + 999) / 1000)", "Pieces are rounded up.", lambda n: -(-n // 1000)),
            Option(
                "return int((amount + 250) / 500) / 2",
                "Pieces are rounded to the nearest half.",
                lambda n: (n + 250) // 500 / 2,
            ),
            Option(
                "return int((amount + 249) / 250) / 4",
                "Pieces are rounded up to quarters.",
                lambda n: -(-n // 250) / 4,
            ),
        ],
    ),
    numbers(
        "large-unit",
        "@lib@/@home_shown@.awk",
        "Some amounts are in a unit that was not agreed.",
        (1000, 1200, 1500, 2000),
        "if (whole < {})",
        "Amounts of {} g or ml and more are printed in kg or l, after they were rounded.",
    ),
    Rule(
        "decimal-mark",
        "@lib@/@home_shown@.awk",
        "The scales do not understand amounts in kg.",
        [
            Option('"%d.%03d"', "An amount in kg or l is such as `1.250 kg`.", "{0}.{1:03}"),
            Option('"%d,%03d"', "An amount in kg or l is such as `1,250 kg`.", "{0},{1:03}"),
            Option('"%d %03d/1000"', "An amount in kg or l is such as `1 250/1000 kg`.", "{0} {1:03}/1000"),
        ],
    ),
    Rule(
        "order-of-list",
        "bin/list",
        "One has to walk through the shop several times with the list.",
        [
            Option("-k1,1n -k2,2", "The list is in the order of aisles, and then of names.", lambda row: row[0]),
            Option(
                "-k1,1nr -k2,2",
                "The list is in the order of aisles backwards, and then of names.",
                lambda row: -row[0],
            ),
            Option("-k4,4nr -k2,2", "The list begins with most packs; equal ones by name.", lambda row: -row[3]),
            Option(
                "-k5,5 -k2,2", "The list is in the alphabetical order of aisles, and then of names.", lambda r: r[4]
            ),
        ],
    ),
    Rule(
        "list-line",
        "bin/list",
        "The shop does not understand our list.",
        [
            Option("$name: $amount ($packs)", "A line of the list is such as `flour: 500 g (2)`.", "{1}: {2} ({3})"),
            Option("$packs x $name, $amount", "A line of the list is such as `2 x flour, 500 g`.", "{3} x {1}, {2}"),
            Option(
                "$aisle; $name; $amount; $packs",
                "A line of the list is such as `baking; flour; 500 g; 2`.",
                "{4}; {1}; {2}; {3}",
            ),
        ],
    ),
    Rule(
        "traces",
        "@lib@/allergens.awk",
        "Guests are warned of what is no allergen for them, or not warned.",
        [
            Option(
                'else if (sign == "traces") text = text "," codes[i]', "Traces of allergens are printed as these.", "{}"
            ),
            Option(
                'else if (sign == "traces") text = text ",(" codes[i] ")"',
                "Traces of allergens are printed such as `(H)`; guests are not warned of them.",
                "({})",
            ),
            Option("else continue", "Traces of allergens are not printed, and guests are not warned of them.", ""),
        ],
    ),
    Rule(
        "dinner-time",
        "etc/meals.tsv",
        "In the evening, the meal is ready too late or too early.",
        [Option(f"dinner\t{time}", f"Dinner is at {time}.", time) for time in ("18:15", "18:40", "19:10", "19:45")],
    ),
    Rule(
        "cooking-time",
        "@lib@/week.awk",
        "The plan lets cooks begin at the wrong time.",
        [
            Option(
                "spent = active[$3] + waiting[$3]",
                "Cooking begins so early that there is time for the work, and then for waiting.",
                lambda work, wait: work + wait,
            ),
            Option(
                "spent = active[$3] > waiting[$3] ? active[$3] : waiting[$3]",
                "The work is done while one waits: cooking begins by what is longer.",
                max,
            ),
            Option(
                "spent = active[$3]",
                "Waiting is done the day before: cooking begins by the time of the work alone.",
                lambda work, wait: work,
            ),
        ],
    ),
    numbers(
        "again-days",
        "@lib@/week.awk",
        "The plan does not complain of the same dishes as agreed.",
        (1, 2, 3, 4),
        "$1 - cooked[$3] <= {}",
        "A dish has `again` behind it where the last time in the plan was at most {} days before, or on the same day.",
    ),
    Rule(
        "week-line",
        "@lib@/week.awk",
        "The plan cannot be hung up: it has other columns than agreed.",
        [
            Option(
                "days[$1], time, title[$3], codes_of[$3], portions, warned($1, $3)",
                "A line of the plan is such as `Mon 18:20 Red soup A,C 5.33 Ada`.",
                "{0} {1} {2} {3} {4} {5}",
            ),
            Option(
                'days[$1] ": " title[$3] " (" codes_of[$3] ") for " portions " at " time " " warned($1, $3)',
                "A line of the plan is such as `Mon: Red soup (A,C) for 5.33 at 18:20 Ada`.",
                "{0}: {2} ({3}) for {4} at {1} {5}",
            ),
            Option(
                'time ";" days[$1] ";" $3 ";" portions ";" codes_of[$3] ";" warned($1, $3)',
                "A line of the plan is such as `18:20;Mon;red-soup;5.33;A,C;Ada`, with the name of the recipe's file.",
                "{1};{0};{6};{4};{3};{5}",
            ),
        ],
    ),
    Rule(
        "cost-rounding",
        "@lib@/costs.awk",
        "The costs of a day differ by some cents from those of the treasurer.",
        [
            Option("return int(a / b)", "Cents of a need are rounded down.", lambda a, b: a // b),
            Option(
                "return nearest(a, b)",
                "Cents of a need are rounded to the nearest.",
                lambda a, b: (a + a + b) // (b + b),
            ),
            Option("return int((a + b - 1) / b)", "Cents of a need are rounded up.", lambda a, b: -(-a // b)),
        ],
    ),
)

IDENTIFIERS = (
    "value nearest keep_unit base_of size_of measure words many ends low high unit amount keep_good usual stored "
    "density weight pack converted rounded result pieces whole body place line times people dishes over under cook "
    "part best need stock missing packs mark marks collect codes names_of sign codes_of warned own avoids guest served "
    "code_of active waiting cooked spent money total aisle helpings OVER UNDER aisle_of place_of day_of meal_of"
)
