"""Hypothesis strategies: sizes and seeds. Arrays are filled from the seed, so a failing example stays small."""

from hypothesis import strategies as st

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)
dtypes = st.sampled_from(["float32", "float64"])


@st.composite
def cuts(draw: st.DrawFn, tokens: int) -> list[int]:
    """Rising positions at which a text of so many tokens is cut into parts, none of them empty."""
    return sorted(draw(st.sets(st.integers(1, tokens - 1), max_size=tokens - 1)))
