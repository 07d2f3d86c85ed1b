"""When to try a request again, and how long to wait first. Pure functions of a fault; no clock, no network."""

from __future__ import annotations

import email.utils
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

#: Status codes of a request that may well succeed later; besides these, all of 5xx.
RETRIED: frozenset[int] = frozenset({408, 409, 429})

# 429 codes that mean "pay first": no wait mends them.
_HOPELESS = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


# How services say that a conversation is too long: OpenAI and Azure by code; vLLM, SGLang, llama.cpp, TGI and others in
# words of their own.
_TOO_LONG_CODE = "context_length_exceeded"
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (input|model) length|prompt is too long|must have less than \d+ tokens",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Fault:
    """Why an attempt failed.

    Args:
        what: In words, without secrets.
        status: The HTTP status, where there was one.
        code: The service's own error code, where it gave one.
        retry_after_s: How long the service asked to be left alone.
        billable: Whether the service may have done the work, and may charge for it.
    """

    what: str
    status: int | None = None
    code: str | None = None
    retry_after_s: float | None = None
    billable: bool = False

    @property
    def passing(self) -> bool:
        """Whether trying again may help. Without a status it was the line or the answer that broke, which may pass."""
        if self.status is None:
            return True
        return (self.status in RETRIED or self.status >= 500) and self.code not in _HOPELESS

    @property
    def too_long(self) -> bool:
        """Whether the request was refused because it does not fit into the model's context."""
        if self.status not in (400, 413, 422):
            return False
        return self.code == _TOO_LONG_CODE or _TOO_LONG.search(self.what) is not None


@dataclass(frozen=True)
class Backoff:
    """How long to wait: doubling from ``first_s`` up to ``longest_s``, each wait drawn from its upper half.

    The draw keeps clients that failed together from coming back together.
    """

    first_s: float
    longest_s: float

    def wait_s(self, retry: int, fault: Fault, rng: random.Random) -> float | None:
        """Seconds before retry number ``retry`` (from 0); at least what the service asked for.

        ``None`` when the service asks for more than ``longest_s``: then waiting is not worth it.
        """
        usual = min(self.longest_s, self.first_s * 2.0 ** min(retry, 60)) * rng.uniform(0.5, 1.0)
        if fault.retry_after_s is None:
            return usual
        if fault.retry_after_s > self.longest_s:
            return None
        return max(usual, fault.retry_after_s + rng.uniform(0.0, self.first_s))


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """What ``retry-after-ms`` or ``Retry-After`` (RFC 9110: seconds or a date) asks for, in seconds, or ``None``.

    Args:
        headers: The answer's headers; names in lower case, or a mapping that ignores case.
        now: The present time, with a time zone.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if 0 <= seconds < float("inf") else None
    try:
        until = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    if until.tzinfo is None:  # "-0000": the time is UTC, and nothing is known of the place
        until = until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())
