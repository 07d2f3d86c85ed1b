"""Tests of kernels in Triton without a GPU: run by Triton's interpreter, or compiled and not run.

The interpreter replaces Triton's functions when they are defined, so one process has either it or the compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest


def run_interpreted(which, *tests):
    """Run the tests of these files with marks as in ``which``, with ``TRITON_INTERPRET=1``; they must pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, *map(str, tests)]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@contextmanager
def interpreter(kernels):
    """Mend Triton's interpreter for the kernels of a module.

    It keeps bfloat16 as integers, and multiplies these: products get the numbers in float32. Each call of a function
    replaces Triton's functions again, which takes most of the time: it is done once, for a module of kernels by the
    launch.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle, _convert_float

    product, slow, replaced = InterpreterBuilder.create_dot, InterpretedFunction.__call__, {kernels.__name__}

    def create_dot(self, a, b, *rest):
        def exact(handle):
            if handle.dtype.scalar != tl.bfloat16:
                return handle
            return TensorHandle(_convert_float(handle.data, tl.bfloat16, tl.float32, None).view(np.float32), tl.float32)

        return product(self, exact(a), exact(b), *rest)

    def call(self, *rest, **named):
        if self.fn.__module__ in replaced:
            return self.rewrite()(*rest, **named)
        replaced.add(self.fn.__module__)
        return slow(self, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(InterpretedFunction, "__call__", call)
        yield


class _Driver:
    """A driver of Triton for a GPU that is not there: enough to compile."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class _Launcher:
    def __init__(self, function, compiled):
        self.function, self.compiled = function, compiled

    def __getitem__(self, grid):
        def compile(*arguments, **constants):
            self.compiled[self.function.__name__] = self.function.warmup(*arguments, grid=grid, **constants)

        return compile


@contextmanager
def compiled_kernels(module, names, cache, capability=90):
    """Replace ``module.load_kernel``: launches compile for a GPU, do not run, and leave the kernels by name."""
    driver = pytest.importorskip("triton").runtime.driver
    kernel, compiled = module.load_kernel(), {}
    launchers = {name: _Launcher(getattr(kernel, name), compiled) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        patch.setattr(module, "load_kernel", lambda: SimpleNamespace(**launchers))
        patch.setattr(driver, "_active", _Driver(capability))
        yield compiled
    for launcher in launchers.values():  # functions keep what was compiled, by the number of the device
        launcher.function.device_caches.clear()
