"""Where verifiers finds its plugin for text environments: ``vf-eval textenvs_verifiers --env.taskset.env ID``.

Plugins are top-level modules to it, which export a taskset, an environment and a harness. Those of its older interface
have ``load_environment``: ``vf-eval textenvs_verifiers -a '{"env": "ID"}'``.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any


def load_environment(env: str, **options: Any) -> Any:
    """A ``MultiTurnEnv`` of verifiers before 0.4; see :mod:`textenvs.integrations.verifiers_multiturn`."""
    from textenvs.integrations import verifiers_multiturn

    return verifiers_multiturn.load_environment(env, **options)


def _has_tasksets() -> bool:
    try:
        return tuple(map(int, version("verifiers").split(".")[:2])) >= (0, 3)
    except PackageNotFoundError:
        return True  # the import below says what is missing


if _has_tasksets():
    from textenvs.integrations.verifiers import ChatHarness, TextEnvironment, TextTaskset

    __all__ = ["ChatHarness", "TextEnvironment", "TextTaskset"]
else:
    __all__ = ["load_environment"]
