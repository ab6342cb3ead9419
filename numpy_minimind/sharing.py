"""How work is shared: parts as equal as can be."""

from __future__ import annotations


def even_sizes(total: int, parts: int) -> list[int]:
    """Return the sizes of so many parts of a whole: they differ by at most one.

    >>> even_sizes(7, 3)
    [2, 2, 3]
    """
    return [(i + 1) * total // parts - i * total // parts for i in range(parts)]
