"""Token ids as JSON, quickly: a conversation says the same ids at every turn."""

import functools
from collections.abc import Sequence

BLOCK = 512  # ids that are written, and looked at, once for all prompts that begin alike
REMEMBERED = 16_384  # blocks: about 100 MB


def token_text(ids: Sequence[int]) -> tuple[str, int, int]:
    """The ids as a JSON list, the smallest, and the largest; `ids` has at least one."""
    ids = tuple(ids)
    whole = len(ids) - len(ids) % BLOCK
    blocks = [_remembered(ids[start : start + BLOCK]) for start in range(0, whole, BLOCK)]
    if whole < len(ids):
        blocks.append(_block(ids[whole:]))
    texts, lows, highs = zip(*blocks, strict=True)
    return f"[{','.join(texts)}]", min(lows), max(highs)


def _block(ids: tuple[int, ...]) -> tuple[str, int, int]:
    return ",".join(map(str, ids)), min(ids), max(ids)


_remembered = functools.lru_cache(REMEMBERED)(_block)
