"""The kernels in Triton, run by its interpreter: in one process for all, because it takes seconds to start."""

import sys
from pathlib import Path

import pytest
from triton_tools import run_interpreted

FILES = ("engines/interpreted_kernel.py", "learner/interpreted_tree_kernel.py")


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is there for Linux alone")
def test_interpreted_kernels_pass_their_tests():
    run_interpreted(*(Path(__file__).parent / name for name in FILES))
