"""Environments over HTTP and WebSocket, one session an episode, and the client that makes them local ones.

``protocol`` has the messages, ``sessions`` the sessions (a pure state machine), ``host`` carries requests out, on the
environments of ``variants``, through ``calls`` (deadlines, and ``threads`` for what blocks); ``server`` is the
transport around it. ``client`` is the other end, and ``remote`` the environment made of it.
"""
