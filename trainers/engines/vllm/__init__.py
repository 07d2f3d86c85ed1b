"""vLLM as an engine: its own HTTP server, started here or running already.

This imports nothing: vLLM's workers import :mod:`.server` in an environment that has vLLM and little else.
"""
