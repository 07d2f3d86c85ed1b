"""Time of ``import textenvs`` next to that of ``import gymnasium``, each in fresh interpreters.

Run ``python benchmarks/import_time.py``. Prints the medians, their difference (0.15 s is the promise) and their ratio.
"""

import argparse
import statistics
import subprocess
import sys

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    """Return the time of one import in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CODE.format(module)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {"gymnasium": [], "textenvs": []}
    for module in times:
        seconds(module)  # writes the bytecode
    for _ in range(repeats):
        for module, module_seconds in times.items():  # in turns, so that a busy moment of the machine hits both
            module_seconds.append(seconds(module))
    gymnasium, textenvs = (statistics.median(module_seconds) for module_seconds in times.values())
    print(f"import gymnasium {gymnasium:.3f} s, import textenvs {textenvs:.3f} s")
    print(f"over gymnasium   {textenvs - gymnasium:.3f} s (at most 0.15), ratio {textenvs / gymnasium:.2f}")


if __name__ == "__main__":
    main()
