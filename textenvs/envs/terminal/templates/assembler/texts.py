"""Files of the template `assembler`; what stands between @ is drawn."""

MAKEFILE = """# Assembles programs. Usage: make -s [SRC=programs] [OUT=build]
SRC = programs
OUT = build
SOURCES = $(wildcard $(SRC)/*.s)
PARTS = $(wildcard $(SRC)/*/*.inc)
IMAGES = $(SOURCES:$(SRC)/%.s=$(OUT)/%.hex)

.PHONY: all sizes

all: $(IMAGES)

$(OUT)/%.hex: $(SRC)/%.s $(PARTS) $(wildcard @lib@/*.awk)
	mkdir -p $(OUT)
	bin/asm $< > $@

# Prints how many lines each image has.
sizes: $(IMAGES)
	for image in $(IMAGES); do echo "$$(basename $$image .hex) $$(grep -c : $$image)"; done
"""

ASM = """#!/bin/bash
# Assembles a program. Usage: bin/asm FILE
. "$(dirname "$0")/../@lib@/common.sh"
records=$(assemble "$1")
if errors=$(grep '^error' <<< "$records"); then
    awk -F'\\t' '{ print @error_line@ }' <<< "$errors"
    @status_of_error@
fi
awk -f "$LIB/words.awk" -f "$LIB/hex.awk" <<< "$records"
"""

LIST = """#!/bin/bash
# Prints a program with its addresses and words, and the names in it. Usage: bin/list FILE
. "$(dirname "$0")/../@lib@/common.sh"
records=$(assemble "$1")
grep '^code' <<< "$records" | awk -F'\\t' '{ print @list_line@ }'
echo
grep '^name' <<< "$records" | sort -t$'\\t' @order_of_names@ | awk -F'\\t' '{ print @name_line@ }'
"""

RUN = """#!/bin/bash
# Runs an assembled program. Usage: bin/run IMAGE
. "$(dirname "$0")/../@lib@/common.sh"
awk -f "$LIB/words.awk" -f "$LIB/machine.awk" "$1"
"""

COMMON = """# Functions of all programs.
export LC_ALL=C
LIB=$(cd "$(dirname "$0")/../@lib@" && pwd)

# Prints records of a program, with tabs between the columns: code ADDRESS WORDS SOURCE, error FILE LINE MESSAGE, and
# name NAME VALUE USES.
assemble() {
    local lines
    lines=$(mktemp)
    awk -v path="$1" -f "$LIB/scan.awk" > "$lines"
    awk -f "$LIB/value.awk" -f "$LIB/assemble.awk" turn=1 "$lines" turn=2 "$lines"
    rm "$lines"
}
"""

SCAN = r"""# Prints FILE LINE LABEL OPERATION OPERANDS SOURCE of a program and what it includes, with tabs between them.
function bare(text,    i, letter, quote, result) {
    for (i = 1; i <= length(text); i++) {
        letter = substr(text, i, 1)
        if (quote == "" && letter == @comment_mark@) break
        if (quote == "" && letter ~ /["']/) quote = letter
        else if (letter == quote) quote = ""
        result = result letter
    }
    return result
}
function trimmed(text) {
    gsub(/^ +| +$/, "", text)
    return text
}
function scan(path,    folder, name, number, line, text, label, op, rest) {
    folder = name = path
    sub(/[^\/]*$/, "", folder)
    sub(/.*\//, "", name)
    while ((getline line < path) > 0) {
        number++
        sub(/\r$/, "", line)
        gsub(/\t/, " ", line)
        text = bare(line)
        label = ""
        if (match(text, /^[A-Za-z_.][A-Za-z0-9_]*:/)) {
            label = substr(text, 1, RLENGTH - 1)
            text = substr(text, RLENGTH + 1)
        }
        text = trimmed(text)
        op = text
        sub(/ .*$/, "", op)
        rest = trimmed(substr(text, length(op) + 1))
        op = toupper(op)
        if (op == "INCLUDE") {
            if (label != "") print name, number, label, "", "", trimmed(line)
            gsub(/"/, "", rest)
            scan(folder rest)
        } else if (label op != "") print name, number, label, op, rest, trimmed(line)
    }
    close(path)
}
BEGIN {
    OFS = "\t"
    scan(path)
}
"""

VALUE = r"""# Values of expressions.
function peek() {
    sub(/^ +/, "", todo)
    return substr(todo, 1, 1)
}
function take(count,    result) {
    result = substr(todo, 1, count)
    todo = substr(todo, count + 1)
    return result
}
function digits(text, base,    i, result) {
    for (i = 1; i <= length(text); i++) result = result * base + index("0123456789abcdef", substr(text, i, 1)) - 1
    return result
}
function factor(    result) {
    peek()
    if (match(todo, /^-/)) {
        take(1)
        return 0 - factor()
    }
    if (match(todo, /^\(/)) {
        take(1)
        result = sums()
        peek()
        take(1)
        return result
    }
    if (match(todo, /^'.'/)) return code[substr(take(3), 2, 1)]
    if (match(todo, /^0[xX][0-9a-fA-F]+/)) return digits(tolower(substr(take(RLENGTH), 3)), 16)
    if (match(todo, /^0[bB][01]+/)) return digits(substr(take(RLENGTH), 3), 2)
    if (match(todo, /^[0-9]+/)) return take(RLENGTH) + 0
    if (match(todo, /^\$/)) {
        take(1)
        return here
    }
    match(todo, /^[A-Za-z_.][A-Za-z0-9_]*/)
    if (RLENGTH < 0) {
        problem("no value: " todo)
        todo = ""
        return 0
    }
    return named(take(RLENGTH))
}
function products(    result, other) {
    result = factor()
    while (peek() ~ /[*\/]/) {
        if (take(1) == "*") result = result * factor()
        else {
            other = factor()
            if (other == 0) problem("division by zero")
            else @division@
        }
    }
    return result
}
function sums(    result) {
    result = products()
    while (peek() ~ /[-+]/) result = take(1) == "+" ? result + products() : result - products()
    return result
}
function floor(number,    whole) {
    whole = int(number)
    return whole > number ? whole - 1 : whole
}
function value(text,    result) {
    todo = text
    result = sums()
    if (peek() != "") problem("too much: " todo)
    return result
}
BEGIN { for (n = 32; n < 127; n++) code[sprintf("%c", n)] = n }
"""

ASSEMBLE = r"""# Reads scanned lines twice: addresses first, then words.
function problem(message) {
    if (turn == 2) print "error", $1, $2, message
}
function full(name) {
    return substr(name, 1, 1) == "." ? scope name : name
}
function named(name) {
    name = full(name)
    if (turn == 2) uses[name]++
    if (name in address) return address[name]
    if (turn == 2) @undefined_name@
    return missing
}
function define(name, number) {
    if (turn == 2) return
    if (name in address) {
        @second_label@
    } else address[name] = number
}
function add(number) {
    if (number > 65535 || number < -32768) problem("too large: " number)
    number = number % 65536
    words = words " " sprintf("%04X", number < 0 ? number + 65536 : number)
    here++
}
# Splits operands at commas that are in no text.
function operands(text, parts,    i, letter, inside, count) {
    split("", parts)
    if (text == "") return 0
    count = 1
    for (i = 1; i <= length(text); i++) {
        letter = substr(text, i, 1)
        if (letter == "\"") inside = !inside
        if (letter == "," && !inside && substr(text, i - 1, 3) != "','") count++
        else parts[count] = parts[count] letter
    }
    for (i = 1; i <= count; i++) gsub(/^ +| +$/, "", parts[i])
    return count
}
function glyph(text, i) {
    return code[substr(text, i, 1)] + 0
}
function letters(text,    i) {
    text = substr(text, 2, length(text) - 2)
    @text_packing@
}
function instruction(    count, i, register, mode, operand) {
    count = operands($5, parts)
    for (i = 1; i <= count; i++) {
        if (parts[i] ~ /^[A-D]$/) register = index("ABCD", parts[i]) - 1
        else if (parts[i] ~ /^\[[A-D]\]$/) {
            mode = 3
            operand = index("ABCD", substr(parts[i], 2, 1)) - 1
        } else if (parts[i] ~ /^#/) {
            mode = 1
            operand = value(substr(parts[i], 2))
        } else {
            mode = 2
            operand = value(parts[i])
        }
    }
    add(number_of[$4] * 4096 + register * 256 + mode)
    if (mode) add(operand)
}
BEGIN {
    FS = OFS = "\t"
    count = split("LOAD STORE ADD SUB MUL JMP JZ JN OUT CALL RET HALT", parts, " ")
    for (n = 1; n <= count; n++) number_of[parts[n]] = n
}
FNR == 1 {
    @origin@
    scope = ""
}
{
    words = ""
    begin = here
    if ($3 ~ /^[^.]/) scope = $3
    if ($4 == "EQU") define(full($3), value($5))
    else if ($3 != "") define(full($3), here)
    if (($1, $2) in twice) problem("name twice: " twice[$1, $2])
}
$4 == "ORG" { here = begin = value($5) }
$4 == "SPACE" {
    number = value($5)
    for (n = 1; n <= number; n++) @filling@
}
$4 == "WORD" {
    total = operands($5, items)
    for (n = 1; n <= total; n++) {
        if (items[n] ~ /^"/) letters(items[n])
        else add(value(items[n]))
    }
}
$4 in number_of { instruction() }
$4 !~ /^(|EQU|ORG|SPACE|WORD)$/ && !($4 in number_of) { problem("no operation: " $4) }
turn == 2 { print "code", sprintf("%04X", begin), substr(words, 2), $6 }
END { for (name in address) print "name", name, address[name], uses[name] + 0 }
"""

WORDS = r"""# Words in hexadecimal digits.
function number(digits,    i, result) {
    for (i = 1; i <= length(digits); i++) result = result * 16 + index("0123456789ABCDEF", substr(digits, i, 1)) - 1
    return result
}
# Puts the bytes of a word into the order of images, and back.
function ordered(digits) {
    @byte_order@
}
"""

HEX = r"""# Prints an image: in each line a colon, how many words, their address, the words, and a checksum.
function checksum(digits,    i, total) {
    for (i = 1; i < length(digits); i += 2) total += number(substr(digits, i, 2))
    return @checksum@
}
function flush(    i, digits) {
    if (!count) return
    digits = sprintf("%02X%04X", count, start)
    for (i = 1; i <= count; i++) digits = digits ordered(data[i])
    print ":" digits sprintf("%02X", checksum(digits))
    start += count
    count = 0
}
BEGIN { FS = "\t" }
$1 == "code" {
    many = split($3, words, " ")
    if (many && number($2) != following) {
        flush()
        start = number($2)
    }
    for (n = 1; n <= many; n++) {
        data[++count] = words[n]
        @words_of_line@
    }
    if (many) following = number($2) + many
}
END { flush() }
"""

MACHINE = r"""# Runs an image, from its first address.
function signed(word) {
    return word > 32767 ? word - 65536 : word
}
function wrapped(word) {
    word = word % 65536
    return word < 0 ? word + 65536 : word
}
{
    many = number(substr($0, 2, 2))
    place = number(substr($0, 4, 4))
    if (NR == 1) at = place
    for (i = 0; i < many; i++) memory[place + i] = number(ordered(substr($0, 8 + 4 * i, 4)))
}
END {
    for (steps = 0; steps < 5000; steps++) {
        word = memory[at++] + 0
        op = int(word / 4096)
        register = int(word / 256) % 16
        mode = word % 256
        if (mode) operand = memory[at++] + 0
        where = mode == 3 ? registers[operand] + 0 : operand
        what = mode == 1 ? operand : memory[where] + 0
        if (op == 1) registers[register] = what
        else if (op == 2) memory[where] = registers[register] + 0
        else if (op == 3) registers[register] = wrapped(registers[register] + what)
        else if (op == 4) registers[register] = wrapped(registers[register] - what)
        else if (op == 5) registers[register] = wrapped(registers[register] * what)
        else if (op == 6) at = operand
        else if (op == 7) at = registers[register] == 0 ? operand : at
        else if (op == 8) at = signed(registers[register]) < 0 ? operand : at
        else if (op == 9) {
            word = registers[register] + 0
            @printed_number@
        } else if (op == 10) {
            stack[++depth] = at
            at = operand
        } else if (op == 11) at = stack[depth--]
        else break
    }
    print "stopped at " at
}
"""

LANGUAGE = """# The language

A line has perhaps a label with a colon, an operation and operands with commas between them, and a comment. Operations
may be in any case of letters, names may not. A label that begins with a point is one of the label before it that does
not: each of these may have a `.loop` of its own.

- `LOAD`, `STORE`, `ADD`, `SUB`, `MUL`: a register (`A` to `D`) and `#VALUE`, an address, or `[B]`, which is the address
  in a register. `JMP ADDRESS`, `CALL ADDRESS`; `JZ A, ADDRESS` and `JN A, ADDRESS` jump where A is zero, or below zero.
  `OUT A` prints, `RET` goes back behind the last `CALL`, `HALT` ends.
- `WORD` has values, and texts such as `"abc"`; `SPACE 4` is four words; `ORG 64` goes on at address 64;
  `NAME: EQU VALUE` gives a name to a value; `INCLUDE "FILE"` takes the lines of a file, whose path is relative to that
  of the including one.
- Values: `12`, `0x1F`, `0b101`, `'a'`, names, `$` (the address of the line's next word), with `+`, `-`, `*`, `/` and
  parentheses. Several of one rank are computed from the left to the right.

An operation is one word (its number in the list above, from LOAD to HALT with OUT, CALL, RET behind JN, times 4096,
plus the register times 256, plus 1 for `#VALUE`, 2 for an address and 3 for `[B]`), and a word for the operand. Words
have 16 bits; values below zero are those plus 65536.

`bin/asm` prints an image: in each line a colon, two digits for how many words it has, four for their address, the
words, and two digits for a checksum, all in hexadecimal. A line ends where addresses are not consecutive. Where there
are errors, they are all that is printed. `bin/list` prints addresses and words, then the names, with their values and
how often they are used; `bin/run` runs an image.
"""
