"""The kernels in Triton, run by its interpreter: in one process for all, because it takes seconds to start."""

import sys
from pathlib import Path

import pytest
from triton_tools import run_interpreted

FILES = ("engines/interpreted_kernel.py", "learner/interpreted_tree_kernel.py")


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is there for Linux alone")
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_interpreted_kernels_pass_their_tests(which):
    run_interpreted(which, *(Path(__file__).parent / name for name in FILES))
