"""Files of the template `archive`; what stands between @ is drawn."""

MAKEFILE = """# Sorts photos. Usage: make [TARGET] [SRC=FOLDER] [OUT=FOLDER] [RULES=FOLDER] [CAMERAS=FILE]
SRC = incoming
OUT = out
RULES = @etc@/albums
CAMERAS = @etc@/cameras.txt
SIDECARS = $(wildcard $(SRC)/*.txt)
ALBUMS = $(patsubst $(RULES)/%.rule,$(OUT)/albums/%/list.txt,$(wildcard $(RULES)/*.rule))

.PHONY: all orphans years

all: $(ALBUMS) years orphans

$(OUT)/index.tsv: $(SIDECARS) $(CAMERAS)
	mkdir -p $(OUT)
	bin/import $(SRC) $(OUT) $(CAMERAS)

$(OUT)/albums/%/list.txt: $(RULES)/%.rule $(OUT)/index.tsv
	bin/album $< $(OUT)

years: $(OUT)/index.tsv
	bin/years $(OUT)/index.tsv

orphans:
	bin/orphans $(SRC)
"""

SCAN = r"""#!/bin/bash
# Prints FILE TAKEN CAMERA PLACE RATING TAGS TITLE of photos, with tabs between them. Usage: bin/scan FOLDER
set -u
export LC_ALL=C
shopt -s nullglob nocaseglob
for photo in "$1"/*.jpg; do
    declare -A value=([taken]=- [camera]=- [place]=- @missing_rating@ [tags]=- [title]=-)
    declare -A seen=()
    if [ -f "$photo.txt" ]; then
        while IFS= read -r line || [ -n "$line" ]; do
            line=${line%$'\r'}
            case $line in
                '#'* | '') continue ;;
            esac
            key=${line%%:*}
            key=${key,,}
            text=${line#*:}
            text=${text#"${text%%[! ]*}"}
            if [ -n "${seen[$key]:-}" ]; then
                @repeated_key@
            fi
            seen[$key]=1
            value[$key]=${text:--}
        done < "$photo.txt"
    fi
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$photo" "${value[taken]}" "${value[camera]}" "${value[place]}" \
        "${value[rating]}" "${value[tags]}" "${value[title]}"
done
"""

IMPORT = r"""#!/bin/bash
# Copies photos by the rules of the house, and writes OUT/index.tsv. Usage: bin/import SOURCE OUT CAMERAS
set -u
export LC_ALL=C TZ=UTC
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/@lib@/names.sh"
target=$2/photos
rm -rf "$target"

declare -A ahead=() copies=()
while read -r number camera; do
    ahead[$camera]=$((10#$number))
done < "$3"

rows=$("$ROOT/bin/scan" "$1")
seconds_of_rows=$(cut -f2 <<< "$rows" | sed 's/^-$/1970-01-01/' | date -f - +%s)
while IFS=$'\t' read -r photo taken camera place rating tags title seconds; do
    content=$(< "$photo")
    if [ @undated@
    else
        seconds=$((@clock@ * ${ahead[$camera]:-0}))
    fi
    printf -v day '%(%F)T' $((seconds - @night_hours@))
    printf -v clock '%(%H%M%S)T' "$seconds"
    slug "$place"
    @folder@
    @name_of_photo@
    if [ -n "${copies[$content]@same_content@
    fi
    copies[$content]=1
    free_name "$target/$folder" "$name"
    [ -d "$target/$folder" ] || mkdir -p "$target/$folder"
    cp "$photo" "$target/$folder/$name.jpg"
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$folder/$name.jpg" "$day" "$rating" "$tags" "$title" "$place"
done < <(paste <(cat <<< "$rows") <(cat <<< "$seconds_of_rows") | sort -t$'\t' -k8,8n -k1,1) > "$2/index.tsv"
"""

NAMES = """# Functions for names of files.

# Sets slug: a place as a part of a file's name.
slug() {
    local text=$1
    slug=@slug@
}

# Sets name: a name that no photo in a folder has.
free_name() {
    local start=$2 number=1
    while [ -e "$1/$name.jpg" ]; do
        number=$((number + 1))
        name=@collision@
    done
}
"""

ALBUM = r"""#!/bin/bash
# Makes a folder of links to the photos of an album, and its list. Usage: bin/album RULE OUT
set -u
export LC_ALL=C
declare -A rule=([tags]= [from]=0000 [to]=9999 [rating]=0 [title]=)
while IFS= read -r line || [ -n "$line" ]; do
    case $line in
        '#'* | '') continue ;;
    esac
    text=${line#*:}
    rule[${line%%:*}]=${text# }
done < "$1"

name=${1##*/}
album=$2/albums/${name%.rule}
rm -rf "$album"
mkdir -p "$album"
IFS=, read -ra labels <<< "${rule[tags]//, /,}"

# Prints the photos of the album, as lines of the index.
chosen() {
    local path day rating tags title place label hits
    while IFS=$'\t' read -r path day rating tags title place; do
        [ "$rating" -ge "${rule[rating]}" ] || continue
        [[ ! $day < ${rule[from]} && @last_day@ ]] || continue
        tags=${tags,,}
        hits=0
        for label in "${labels[@]}"; do
            case ",${tags//, /,}," in
                *",${label,,},"*) hits=$((hits + 1)) ;;
            esac
        done
        [ "$hits" @tags_of_album@ ] || continue
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$path" "$day" "$rating" "$tags" "$title" "$place"
    done < "$2"
}

rows=$(chosen "$1" "$2/index.tsv" | sort -t$'\t' @order_of_album@ | @longest_album@)
count=0
{
    echo @album_title@
    while IFS=$'\t' read -r path day rating tags title place; do
        [ -n "$path" ] || continue
        count=$((count + 1))
        printf -v link '%03d' "$count"
        ln -s "../../photos/$path" "$album/$link.jpg"
        printf '%s\n' @album_line@
    done <<< "$rows"
    echo "$count"
} > "$album/list.txt"
"""

YEARS = r"""#!/bin/bash
# Prints how many photos there are. Usage: bin/years INDEX
set -u
export LC_ALL=C
declare -A count=() stars=()
while IFS=$'\t' read -r path day rating tags title place; do
    group=@group_of_years@
    count[$group]=$((${count[$group]:-0} + 1))
    stars[$group]=$((${stars[$group]:-0} + rating))
done < "$1"
for group in "${!count[@]}"; do
    printf '%s\t%s\t%s\n' "$group" "${count[$group]}" "${stars[$group]}"
done | sort -t$'\t' @order_of_years@ | while IFS=$'\t' read -r group number sum; do
    echo @line_of_years@
done
"""

ORPHANS = r"""#!/bin/bash
# Prints photos without a sidecar, and sidecars without a photo. Usage: bin/orphans FOLDER
set -u
export LC_ALL=C
shopt -s nullglob nocaseglob
cd "$1" || exit 1
for photo in *.jpg; do
    [ -e "$photo.txt" ] || echo @orphan_photo@
done
for sidecar in *.jpg.txt; do
    [ -e "${sidecar%.txt}" ] || echo @orphan_sidecar@
done
"""

FORMAT = """# Photos, sidecars and albums

A photo is a file whose name ends with `.jpg`, in letters of either case. Its sidecar has the same name with `.txt` at
the end, and lines such as `place: Bad Ragaz`: taken (a time in UTC, by the clock of the camera), camera, place, rating
(0 to 5), tags (with commas between them) and title. Letters of both cases are used in keys. A key may be empty, as if
it were not there; a value may have colons, stars or backslashes in it. `#` begins a comment. The last line need not
end, and some sidecars are of another system.

`{etc}/cameras.txt` has the minutes that the clocks of cameras are wrong, with zeros in front, and the cameras.

`make` imports the photos in the order of the times in their sidecars (equal ones by name, and those without a time
first) into `out/photos`, and writes `out/index.tsv`: path, day, rating, tags, title, place. Whatever changes in the
sidecars, the cameras or the albums, `make` does what is necessary; photos that are gone are gone in `out/`, too.

An album is a file such as `{etc}/albums/*.rule`, with tags, from, to (days), rating (the least) and title, each of
which may be missing; tags are compared without regard to case. It becomes a folder in `out/albums` with links
`001.jpg` and so on, and `list.txt`: the title, a line for each photo, and how many there are. `make years` counts
photos, and `make orphans` prints photos without a sidecar, which are imported nevertheless, and sidecars without a
photo.
"""
