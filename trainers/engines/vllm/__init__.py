"""vLLM as an engine: a server under its own Python (:mod:`.server`), and its client here (:mod:`.client`)."""
