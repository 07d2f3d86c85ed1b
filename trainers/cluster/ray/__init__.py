"""Learner ranks and engines as Ray actors. Ray is imported inside functions, with an error that names the extra."""
