#!/bin/bash
python3 -I /tests/compare.py
