"""``textenvs rows``: episodes of an environment as the dataset of another library."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..env import EnvironmentFailure
from ..integrations import SpecError, episode_specs
from ..integrations.rows import write_episodes
from ..task import TaskError
from ..text import plural
from ..trust import person_only
from .common import CommandError, open_environment, parse_options, registered


def run(arguments: argparse.Namespace) -> int:
    options = parse_options(arguments.options)
    if Path(arguments.out).suffix != ".parquet":
        raise CommandError(f"-o {arguments.out}: the file is Parquet; give a name that ends in .parquet", 2)
    open_environment(arguments.id, options).close()  # mistakes are named here
    try:
        specs = episode_specs(arguments.id, arguments.count, seed=arguments.seed, env_kwargs=options)
        path = write_episodes(arguments.library, specs, Path(arguments.out).expanduser(), split=arguments.split)
    except SpecError as error:
        raise CommandError(str(error), 2) from error
    except (TaskError, ImportError, OSError, ValueError, EnvironmentFailure) as error:
        raise CommandError(str(error)) from error
    last = arguments.seed + arguments.count - 1
    what = f"{plural(arguments.count, 'episode')} of {arguments.id}, seeds {arguments.seed} to {last}"
    print(f"{path}: {what}, for {arguments.library}")
    restricted = {name: options[name] for name in person_only(options)}
    if restricted or registered(arguments.id) is None:
        # Who reads the rows is to say so, too: a row alone chooses no such thing.
        print(f"give where they are read: environments={json.dumps({arguments.id: restricted})} (docs/security.md)")
    return 0
