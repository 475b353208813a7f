"""Which tokens a stretch of a response's text came from."""

import bisect
from collections.abc import Callable, Sequence


def token_span(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int], start: int, end: int
) -> tuple[int, int]:
    """Tokens [a, b) of `ids` that hold the characters [start, end) of `decode(ids)`.

    A token that straddles an edge belongs to the span: its probability is of both sides, and
    leaving it out would leave a part of the stretch untrained.
    """

    def characters(count: int) -> int:
        # A cut character decodes to U+FFFD, which is not there yet.
        return len(decode(ids[:count]).rstrip("\ufffd"))

    counts = range(len(ids) + 1)
    first = bisect.bisect_right(counts, start, key=characters) - 1
    return first, bisect.bisect_left(counts, end, key=characters)
