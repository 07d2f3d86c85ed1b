"""From a configuration to the parts of a run. Nothing here trains or plays; :mod:`trainers.ppo` reads top to bottom.

What cannot be had raises :class:`.errors.SetupError`, which names the key to change.
"""
