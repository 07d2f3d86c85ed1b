"""Tools: typed functions that a policy may call, and the ways to write a call down."""

from .formats import FORMATS, CallFormat, Parsed, call, make_format
from .schema import Tool, ToolError, tool
from .toolbox import Toolbox, ToolResult

__all__ = [
    "FORMATS",
    "CallFormat",
    "Parsed",
    "Tool",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "call",
    "make_format",
    "tool",
]
