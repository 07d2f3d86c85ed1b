"""Code that runs under vLLM's own Python. It imports vLLM, and only parts of this project without other packages."""
