"""Where verifiers finds its plugin for text environments: ``vf-eval textenvs_verifiers --env.taskset.env ID``.

Plugins are top-level modules to it, which export a taskset, an environment and a harness.
"""

from textenvs.integrations.verifiers import ChatHarness, TextEnvironment, TextTaskset

__all__ = ["ChatHarness", "TextEnvironment", "TextTaskset"]
