"""The side that runs under vLLM's own Python. It imports vLLM, and of this project only what needs no other package."""
