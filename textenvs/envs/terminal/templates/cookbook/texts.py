"""Files of the template `cookbook`; what stands between @ is drawn."""

MAKEFILE = """# Plans a week of meals. Usage: make -s [TARGET] [KITCHEN=kitchen] [OUT=out]
KITCHEN = kitchen
OUT = out
LIB = @lib@
AWK = LC_ALL=C awk -f $(LIB)/@numbers@.awk -f $(LIB)/@amounts@.awk
RECIPES = $(sort $(wildcard $(KITCHEN)/recipes/*.txt))
LINES = $(RECIPES:$(KITCHEN)/recipes/%.txt=$(OUT)/lines/%.tsv)
PANTRY = $(KITCHEN)/pantry.tsv

.PHONY: all week list allergens costs

all: week list allergens costs

week: $(OUT)/meals.tsv $(OUT)/book.tsv $(OUT)/allergens.tsv
	$(AWK) -f $(LIB)/week.awk etc/meals.tsv etc/allergens.tsv $(KITCHEN)/guests.txt $(OUT)/book.tsv \\
		$(OUT)/allergens.tsv $(OUT)/meals.tsv

list: $(OUT)/needs.tsv
	bin/list $(KITCHEN) $(OUT)

allergens: $(OUT)/allergens.tsv
	tr '\\t' ' ' < $<

costs: $(OUT)/needs.tsv
	$(AWK) -f $(LIB)/costs.awk $(PANTRY) $<

@shape_rules@"""

_PARSING = """$(OUT)/lines/%.tsv: $(KITCHEN)/recipes/%.txt etc/units.tsv
	mkdir -p $(@D)
	$(AWK) -f $(LIB)/parse.awk etc/units.tsv $< > $@
"""

_BOOK = """$(OUT)/book.tsv: $(LINES)
	@shape_book@ > $@
"""

_MEALS = """$(OUT)/meals.tsv: $(KITCHEN)/plan.txt
	mkdir -p $(OUT)
	$(AWK) -f $(LIB)/meals.awk $< | LC_ALL=C sort -s -k1,1n -k2,2n > $@
"""

_NEEDS = """$(OUT)/needs.tsv: $(OUT)/book.tsv $(OUT)/meals.tsv
	$(AWK) -f $(LIB)/expand.awk $^ > $@
"""

_ALLERGENS = """$(OUT)/allergens.tsv: etc/allergens.tsv $(PANTRY) $(OUT)/book.tsv
	$(AWK) -f $(LIB)/allergens.awk $^ | LC_ALL=C sort > $@
"""

#: Rules of the Makefile, in any order.
MAKE_RULES = (_PARSING, _BOOK, _MEALS, _NEEDS, _ALLERGENS)

SCALE = """#!/bin/bash
# Prints a recipe for so many portions. Usage: bin/scale KITCHEN RECIPE PORTIONS
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
recipe=$1/recipes/$2.txt
if [ ! -f "$recipe" ]; then
    echo "unknown: $2"
    exit
fi
awk -f @lib@/@numbers@.awk -f @lib@/@amounts@.awk -f @lib@/parse.awk etc/units.tsv "$recipe" |
    awk -v portions="$3" -f @lib@/@numbers@.awk -f @lib@/@amounts@.awk -f @lib@/card.awk
"""

LIST = r"""#!/bin/bash
# Prints what to buy for a week. Usage: bin/list KITCHEN OUT
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
first=$(sed -n 's/^from //p' "$1/plan.txt" | tr -d '\r')
last=$(date -d "$first +6 days" +%Y-%m-%d)
awk -v first="$first" -v last="$last" -f @lib@/@numbers@.awk -f @lib@/@amounts@.awk -f @lib@/list.awk \
    etc/units.tsv "$1/aisles.txt" "$1/pantry.tsv" "$1/stock.txt" "$2/needs.tsv" |
    sort -t $'\t' @order_of_list@ |
    while IFS=$'\t' read -r _ name amount packs aisle; do
        echo "@list_line@"
    done
"""

#: Functions of the awk programs: each stands in one of two files, in any order.
FUNCTIONS = {
    "value": """# The number of a word such as 2, 1/2, 1,5 or 1.5.
function value(word,    parts) {
    if (split(word, parts, "/") == 2) return parts[1] / parts[2]
    sub(/,/, ".", word)
    return word + 0
}
""",
    "nearest": """# The integer that is nearest to a / b.
function nearest(a, b) {
    return int((2 * a + b) / (2 * b))
}
""",
    "keep_unit": """# Reads a line of units: name, base, and thousandths of the base.
function keep_unit(line,    cells) {
    if (line ~ /^#/) return
    split(line, cells, "\\t")
    base_of[cells[1]] = cells[2]
    size_of[cells[1]] = cells[3]
}
""",
    "measure": """# Sets BASE, THOUSANDTHS and NAME of a text such as 1 1/2 l water.
function measure(text,    words, many, i, ends, low, high, unit, amount) {
    gsub(/½/, " 1/2", text)
    gsub(/¼/, " 1/4", text)
    many = split(text, words)
    low = high = 0
    for (i = 1; i <= many && words[i] ~ /^[0-9]/; i++) {
        if (split(words[i], ends, "-") < 2) ends[2] = ends[1]
        low += value(ends[1])
        high += value(ends[2])
    }
    @amount_range@
    unit = tolower(words[i])
    if (unit == "cups") unit = "cup"
    BASE = "pc"
    THOUSANDTHS = int(amount * 1000 + 0.5)
    if (unit in base_of && i < many) {
        BASE = base_of[unit]
        THOUSANDTHS = int(amount * size_of[unit] + 0.5)
        i++
    }
    if (words[i] == "of") i++
    for (NAME = ""; i <= many; i++) NAME = NAME (NAME == "" ? "" : " ") tolower(words[i])
}
""",
}

AMOUNTS = {
    "keep_good": """# Reads a line of the pantry.
function keep_good(line,    cells, names, many, i) {
    if (line ~ /^#/) return
    many = split(line, cells, "\\t")
    many = split(tolower(cells[1]), names, "|")
    for (i = 1; i <= many; i++) usual[names[i]] = names[1]
    stored[names[1]] = cells[2]
    density[names[1]] = cells[3]
    weight[names[1]] = cells[4]
    pack[names[1]] = cells[5] * 1000
    cents[names[1]] = cells[6]
    aisle_of[names[1]] = cells[7]
    allergens[names[1]] = cells[8]
    traces[names[1]] = cells[9]
}
""",
    "converted": """# Thousandths of the base in which a good is stored.
function converted(amount, base, name) {
    if (base == stored[name]) return amount
    if (base == "pc") return amount * weight[name]
    if (stored[name] == "pc") return nearest(amount, weight[name])
    if (base == "ml") return nearest(amount * density[name], 100)
    return nearest(amount * 100, density[name])
}
""",
    "rounded": """function rounded(amount,    result) {
    @weight_rounding@
    return result < 1 ? 1 : result
}
""",
    "pieces": """function pieces(amount) {
    @piece_rounding@
}
""",
    "shown": """# The text for an amount.
function shown(amount, base,    whole) {
    if (base == "pc") return pieces(amount) ""
    whole = rounded(amount)
    @large_unit@ return whole " " base
    return sprintf(@decimal_mark@, whole / 1000, whole % 1000) " " (base == "g" ? "kg" : "l")
}
""",
}

PARSE = r"""# Reads units and a recipe; prints RECIPE KIND and what belongs to it, with tabs between them.
function minutes(text,    parts) {
    if (split(text, parts, ":") == 2) return parts[1] * 60 + parts[2]
    return text + 0
}
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
FILENAME == ARGV[1] {
    keep_unit($0)
    next
}
FNR == 1 {
    recipe = FILENAME
    sub(/.*\//, "", recipe)
    sub(/\.txt$/, "", recipe)
}
!body && /^[A-Za-z]+:/ {
    place = index($0, ":")
    text = substr($0, place + 1)
    gsub(/^ +| +$/, "", text)
    head[tolower(substr($0, 1, place - 1))] = text
    next
}
/^[ \t]*[-*] / {
    body = 1
    line = $0
    sub(/^[ \t]*[-*] +/, "", line)
    @shape_optional@
    sub(/, .*/, "", line)
    if (line !~ /^[0-9]|^½|^¼/) next
    if (line ~ /@/) {
        split(line, words)
        sub(/.*@/, "", line)
        print recipe, "dish", int(value(words[1]) * 1000 + 0.5), tolower(line)
        next
    }
    measure(line)
    print recipe, "item", BASE, THOUSANDTHS, NAME, optional
}
END {
    split(head["time"], times, "+")
    print recipe, "recipe", head["serves"] + 0, minutes(times[1]), minutes(times[2]), head["title"]
}
"""

CARD = r"""# Reads the lines of a recipe; prints it for so many portions.
BEGIN { FS = "\t" }
$2 == "recipe" {
    serves = $3
    title = $6
    next
}
{ lines[++count] = $0 }
END {
    print title " for " portions
    for (i = 1; i <= count; i++) {
        split(lines[i], cells, "\t")
        if (cells[2] == "dish") {
            print "- " pieces(nearest(cells[3] * portions, serves)) " portions of " cells[4]
            continue
        }
        print "- " shown(nearest(cells[4] * portions, serves), cells[3]) " " cells[5] (cells[6] ? " (optional)" : "")
    }
}
"""

MEALS = r"""# Reads a plan; prints DAY MEAL RECIPE PORTIONS with tabs; a portion is 6.
BEGIN {
    OFS = "\t"
    many = split("mon tue wed thu fri sat sun", words, " ")
    for (i = 1; i <= many; i++) day_of[words[i]] = i
    many = split("breakfast lunch dinner", words, " ")
    for (i = 1; i <= many; i++) meal_of[words[i]] = i
}
{
    sub(/\r$/, "")
    sub(/#.*/, "")
}
/^[ \t]*$/ || /^from / { next }
{
    place = index($0, ":")
    split(tolower(substr($0, 1, place - 1)), words)
    text = substr($0, place + 1)
    match(text, / for [0-9+ ]+$/)
    split(substr(text, RSTART + 5), people, "+")
    many = split(tolower(substr(text, 1, RSTART - 1)), dishes, ",")
    for (i = 1; i <= many; i++) {
        gsub(/ /, "", dishes[i])
        print day_of[words[1]], meal_of[words[2]], dishes[i], 6 * people[1] + @child_portion@
    }
}
"""

EXPAND = r"""# Reads the book and the meals; prints DAY MEAL BASE THOUSANDTHS NAME, with tabs between them.
function helpings(over, under, recipe) {
    @sub_recipe@
}
function cook(recipe, over, under,    i, cells, part) {
    under *= serves[recipe]
    for (i = 1; i <= count[recipe]; i++) {
        split(lines[recipe, i], cells, "\t")
        if (cells[2] == "dish") {
            helpings(over * cells[3], under * 1000, cells[4])
            cook(cells[4], OVER, UNDER)
            continue
        }
        @optional_items@
        amount = nearest(cells[4] * over * part, under * 2)
        if (amount > 0) print day, meal, cells[3], amount, cells[5]
    }
}
BEGIN { FS = OFS = "\t" }
FILENAME == ARGV[1] {
    if ($2 == "recipe") serves[$1] = $3
    else lines[$1, ++count[$1]] = $0
    next
}
{
    day = $1
    meal = $2
    cook($3, $4, 6)
}
"""

LIST_AWK = r"""# Reads units, aisles, the pantry, the stock and needs; prints PLACE NAME AMOUNT PACKS AISLE, with tabs.
BEGIN { OFS = "\t" }
{ sub(/\r$/, "") }
FILENAME == ARGV[1] {
    keep_unit($0)
    next
}
FILENAME == ARGV[2] {
    if (!/^#/) place_of[$0] = FNR
    next
}
FILENAME == ARGV[3] {
    keep_good($0)
    next
}
FILENAME == ARGV[4] {
    if (/^[ \t]*(#|$)/) next
    many = split($0, cells, / *; */)
    best = many > 1 ? cells[2] : "9999"
    measure(cells[1])
    @stock_date@ stock[usual[NAME]] += converted(THOUSANDTHS, BASE, usual[NAME])
    next
}
{
    split($0, cells, "\t")
    name = usual[cells[5]]
    need[name] += converted(cells[4], cells[3], name)
}
END {
    for (name in need) {
        missing = need[name] - stock[name]
        if (missing <= 0) continue
        @packs_to_buy@
        print place_of[aisle_of[name]], name, shown(missing, stored[name]), packs, aisle_of[name]
    }
}
"""

ALLERGENS_AWK = r"""# Reads allergens, the pantry and the book; prints RECIPE and codes, with a tab between them.
function mark(names, sign,    words, many, i) {
    many = split(names, words, ",")
    for (i = 1; i <= many; i++) if (marks[words[i]] != "has") marks[words[i]] = sign
}
function collect(recipe,    i, cells) {
    for (i = 1; i <= count[recipe]; i++) {
        split(lines[recipe, i], cells, "\t")
        if (cells[2] == "dish") {
            collect(cells[4])
            continue
        }
        mark(allergens[usual[cells[5]]], "has")
        mark(traces[usual[cells[5]]], "traces")
    }
}
FILENAME == ARGV[1] {
    split($0, cells, "\t")
    codes[++known] = cells[1]
    names_of[known] = cells[2]
    next
}
FILENAME == ARGV[2] {
    sub(/\r$/, "")
    keep_good($0)
    next
}
{
    split($0, cells, "\t")
    if (cells[2] == "recipe") recipes[cells[1]] = 1
    else lines[cells[1], ++count[cells[1]]] = $0
}
END {
    for (recipe in recipes) {
        split("", marks)
        collect(recipe)
        text = ""
        for (i = 1; i <= known; i++) {
            sign = marks[names_of[i]]
            if (sign == "has") text = text "," codes[i]
            @traces@
        }
        print recipe "\t" (text == "" ? "-" : substr(text, 2))
    }
}
"""

WEEK = r"""# Reads times of meals, allergens, guests, the book, allergens of recipes, and meals; prints a week.
function clock(number) {
    return sprintf("%02d:%02d", number / 60, number % 60)
}
# Names of guests of a day who should not eat it.
function warned(day, recipe,    i, j, own, many, list) {
    many = split(codes_of[recipe], own, ",")
    for (i = 1; i <= guests; i++) {
        if (days_of[i] != "all" && index(days_of[i], days[day]) == 0) continue
        for (j = 1; j <= many; j++) {
            if (index("," avoids[i] ",", "," own[j] ",")) {
                list = list (list == "" ? "" : "+") guest[i]
                break
            }
        }
    }
    return list == "" ? "-" : list
}
BEGIN {
    FS = "\t"
    split("Mon Tue Wed Thu Fri Sat Sun", days, " ")
}
{ sub(/\r$/, "") }
FILENAME == ARGV[1] {
    split($2, parts, ":")
    meals[FNR] = $1
    served[FNR] = parts[1] * 60 + parts[2]
    next
}
FILENAME == ARGV[2] {
    code_of[$2] = $1
    next
}
FILENAME == ARGV[3] {
    if (/^[ \t]*(#|$)/) next
    split($0, cells, / *; */)
    guest[++guests] = cells[1]
    many = split(cells[2], words, / *, */)
    for (i = 1; i <= many; i++) avoids[guests] = avoids[guests] "," code_of[tolower(words[i])]
    days_of[guests] = cells[3]
    next
}
FILENAME == ARGV[4] {
    if ($2 == "recipe") {
        active[$1] = $4
        waiting[$1] = $5
        title[$1] = $6
    }
    next
}
FILENAME == ARGV[5] {
    codes_of[$1] = $2
    next
}
{
    @cooking_time@
    time = clock(served[$2] - spent)
    again = ($3 in cooked && @again_days@) ? " again" : ""
    cooked[$3] = $1
    portions = sprintf("%.2f", $4 / 6)
    print @week_line@ again
}
"""

COSTS = r"""# Reads the pantry and needs; prints the costs of days, and of all.
function part(a, b) {
    @cost_rounding@
}
function money(number) {
    return sprintf("%d.%02d", number / 100, number % 100)
}
BEGIN { split("Mon Tue Wed Thu Fri Sat Sun", days, " ") }
{ sub(/\r$/, "") }
FILENAME == ARGV[1] {
    keep_good($0)
    next
}
{
    split($0, cells, "\t")
    name = usual[cells[5]]
    spent = part(cents[name] * converted(cells[4], cells[3], name), pack[name])
    total[cells[1]] += spent
    sum += spent
}
END {
    @shape_days@
    print "all " money(sum)
}
"""

UNITS = """# name	base	thousandths
g	g	1000
kg	g	1000000
@pinch_size@
ml	ml	1000
dl	ml	100000
l	ml	1000000
tsp	ml	5000
@tbsp_size@
@cup_size@
"""

MEAL_TIMES = """breakfast	07:45
lunch	12:15
@dinner_time@
"""

ALLERGENS = """A	gluten
C	egg
F	soy
G	milk
H	nuts
L	celery
N	sesame
"""

#: Two ways to write a part of a program.
SHAPES = {
    "shape_book": ("cat $^", "cat $(LINES)"),
    "shape_optional": (
        'optional = sub(/ *\\(optional\\)/, "", line)',
        "optional = 0\n    if (line ~ /\\(optional\\)/) {\n        optional = 1\n"
        '        sub(/ *\\(optional\\)/, "", line)\n    }',
    ),
    "shape_days": (
        "for (i = 1; i <= 7; i++) if (i in total) print days[i], money(total[i])",
        'while (++i <= 7) {\n        if (!(i in total)) continue\n        print days[i] " " money(total[i])\n    }',
    ),
}

FORMAT = """# Kitchens

A kitchen is a folder such as `kitchen/`. `#` begins a comment line in all files but recipes.

- `recipes/NAME.txt`: lines such as `Serves: 4`, then ingredients, each behind `-` or `*`: an amount, perhaps a unit of
  `etc/units.tsv`, and a name; what is behind a comma and a space is a remark. Amounts are such as `2`, `1 1/2`, `½`,
  `1,5`, `1.5` or `2-3`. `(optional)` may stand anywhere. `2 portions of @pesto` needs another recipe. Ingredients
  without an amount are not counted. `Time: 20+1:10` is work and waiting, in minutes or hours and minutes.
- `pantry.tsv`: names of goods, with `|` between those that mean the same (the first one is printed), the base in
  which the good is stored (g, ml, or pc for pieces), grams of 100 ml, grams of a piece, what is in a pack, cents of a
  pack, aisle, allergens, and traces.
- `stock.txt`: what is there, perhaps with the last day after `;`. Without one it keeps.
- `aisles.txt`: the aisles of the shop, in its order.
- `plan.txt`: `from DAY`, a Monday, and meals, such as `Mon dinner: soup, bread for 4+2`: for 4 grown-ups and 2
  children.
- `guests.txt`: name; what a guest must not eat; on which days, or `all`.

Amounts are computed in thousandths of g, ml or pieces, and rounded to the nearest thousandth when they are read, when
a recipe is scaled, and when another base is needed.

- `make list`: what to buy, with the amount that is missing and the packs, or nothing where the stock has enough.
  Amounts are rounded as agreed, g and ml to 1 at least;
- `make week`: by days and meals, in the order of the plan: when to begin, so that it is ready at the time of the meal
  in `etc/meals.tsv`, codes of allergens (`-` for none), portions, and who must not eat it, such as `Ada+Otto`;
- `make allergens`: codes of `etc/allergens.tsv` in its order, for all recipes, with those of recipes in them;
- `make costs`: of the days with meals, and of all: each need is its part of the price of a pack, rounded by itself;
- `bin/scale KITCHEN RECIPE PORTIONS`: a recipe for other portions.
"""
