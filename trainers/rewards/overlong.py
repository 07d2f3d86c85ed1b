"""DAPO's soft overlong punishment: what an episode pays for coming near its limit of tokens."""

from __future__ import annotations


def overlong_penalty(tokens: int, limit: int, buffer: int, factor: float = 1.0) -> float:
    """0 up to ``limit - buffer`` tokens, then evenly down to ``-factor`` at the limit (DAPO, arXiv 2503.14476, eq. 13).

    Args:
        tokens: That the response has.
        limit: That it may have.
        buffer: Over how many of them the penalty grows; at least 1, at most ``limit``.
        factor: At least 0.

    Raises:
        ValueError: The buffer or the factor is outside its range.
    """
    if not 1 <= buffer <= limit:
        raise ValueError(f"buffer must be at least 1 and at most limit={limit}, not {buffer}")
    if not factor >= 0:
        raise ValueError(f"factor must be at least 0, not {factor!r}")
    over = min(max(tokens - (limit - buffer), 0), buffer)
    return -factor * over / buffer if over else 0.0
