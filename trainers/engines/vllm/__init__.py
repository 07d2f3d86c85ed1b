"""vLLM as an engine: a server of our own and its client (:mod:`.client`), or one that runs already (:mod:`.served`)."""
