#!/bin/bash
sed -i 's|(NR + 1)|NR|' report.sh
