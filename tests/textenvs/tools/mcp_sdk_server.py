"""A server made with the SDK: over stdio, or over streamable HTTP on the port that is its argument."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from pydantic import BaseModel

server = MCPServer("test")


class Point(BaseModel):
    x: int
    y: float = 0.0


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def norm(point: Point, labels: list[str]) -> dict[str, float]:
    """Takes nested types."""
    return dict.fromkeys(labels, point.x**2 + point.y**2)


@server.tool()
def picture() -> list:
    """Text and a picture."""
    return ["before", Image(data=b"12345", format="png")]


@server.tool()
async def wait(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"


@server.tool()
def stop() -> str:
    """Stop while the call is under way."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
