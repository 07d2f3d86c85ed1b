#!/bin/bash
# 1 where the tally is the expected one, else 0.
if cmp -s /app/tally.csv /tests/expected.csv; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
