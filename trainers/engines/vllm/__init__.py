"""vLLM as an engine: a server of our own and its client (:mod:`.client`), or a server that runs already (:mod:`.served`)."""
