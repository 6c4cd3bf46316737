"""What TVM raises on a model that it cannot take, and how to say it.

TVM has no exception of its own for that: converters raise whatever their first
failing statement happens to raise, and type inference prints whole registry
entries into its messages.
"""

from __future__ import annotations

import re

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

_LONGEST = 300


def reason(error: BaseException) -> str:
    """Return the message of ``error`` on one line of bearable length."""
    text = " ".join(str(error).split())
    text = re.sub(r'ir\.Op\(.*?name="([^"]+)".*support_level=\d+\)', r"\1", text)
    text = text[:_LONGEST].rstrip(" .:")
    # What a LookupError says is only the key.
    if isinstance(error, LookupError) or not text:
        return f"{type(error).__name__} {text}".rstrip()
    return text
