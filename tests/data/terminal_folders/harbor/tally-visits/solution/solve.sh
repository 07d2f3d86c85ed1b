#!/bin/bash
set -e
cat /app/visits/*.csv | awk -F';' '{sum[$2] += $3} END {for (city in sum) print city ";" sum[city]}' | sort > /app/tally.csv
