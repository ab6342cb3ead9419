"""How fast, against what could be: clocks, the floor of matrix products, peak memory."""
