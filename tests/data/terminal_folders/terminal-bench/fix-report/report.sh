#!/bin/bash
awk '{ sum += $1 } END { printf "%.2f\n", sum / (NR + 1) }' "$1"
