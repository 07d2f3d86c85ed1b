"""Protocols of model services in front of an episode: a program's call of the model is an observation.

``openai_chat``, ``openai_responses`` and ``anthropic_messages`` translate, ``session`` orders the calls (all without
I/O), and ``server`` is the HTTP server around them.
"""
