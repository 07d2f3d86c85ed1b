#!/bin/bash
# Prints results as pytest -rA does; images of this project's tests have no pytest.
python3 -I "$TEST_DIR/test_outputs.py"
