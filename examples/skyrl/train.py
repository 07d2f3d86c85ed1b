"""SkyRL's trainer on environments of this library: SkyRL's own entry point, with one line more.

Never run here: it needs the package `skyrl` (its `fsdp` extra) and a GPU. See README.md.
"""

import sys

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp, validate_cfg
from skyrl.train.utils import initialize_ray

from textenvs.integrations.skyrl import register


@ray.remote(num_cpus=1)
def entrypoint(config: SkyRLTrainConfig) -> None:
    register()  # in the process that makes the environments
    BasePPOExp(config).run()


if __name__ == "__main__":
    config = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(config)
    initialize_ray(config)
    ray.get(entrypoint.remote(config))
