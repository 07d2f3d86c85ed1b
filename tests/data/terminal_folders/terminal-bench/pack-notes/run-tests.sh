#!/bin/bash
python3 -I "$TEST_DIR/test_outputs.py"
