"""Sets of moments, as sorted spans that don't touch: what two things did at the same time, and what one did alone."""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]
"""Begin and end, in any unit of time; the end is no part of it."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The moments in any of the spans.

    >>> union([(5, 9), (0, 2), (1, 4), (9, 9)])
    [(0, 4), (5, 9)]
    """
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The moments of `spans` that are not in `others`; both as `union` gives them.

    >>> without([(0, 10), (20, 30)], [(2, 4), (8, 25)])
    [(0, 2), (4, 8), (25, 30)]
    """
    left: list[Span] = []
    first = 0
    for begin, end in spans:
        while first < len(others) and others[first][1] <= begin:
            first += 1
        index = first
        while index < len(others) and others[index][0] < end:
            if others[index][0] > begin:
                left.append((begin, others[index][0]))
            begin = max(begin, others[index][1])
            index += 1
        if begin < end:
            left.append((begin, end))
    return left


def within(spans: Iterable[Span], window: Span) -> list[Span]:
    """The parts of spans that lie in a window.

    >>> within([(0, 5), (7, 9), (12, 15)], (3, 8))
    [(3, 5), (7, 8)]
    """
    cut = ((max(begin, window[0]), min(end, window[1])) for begin, end in spans)
    return [(begin, end) for begin, end in cut if begin < end]


def total(spans: Iterable[Span]) -> int:
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
