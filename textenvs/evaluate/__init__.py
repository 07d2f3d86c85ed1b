"""Playing many episodes with a policy and saying what came of them: the engine room of ``textenvs evaluate``."""
