"""What the comparisons of attention and of a block with PyTorch share: masks, positions and visible keys."""

import numpy as np
import pytest

from numpy_minimind.checking.points import T, padding_mask
from numpy_minimind.layer import Context
from numpy_minimind.layers import RotaryEmbedding

MASKS = {
    "none": None,
    "left": padding_mask(T, left=(1, 0, 3)),
    "right": padding_mask(T, right=(1, 0, 3)),
    "both sides and a row of padding only": padding_mask(T, left=(1, T, 0), right=(2, 0, 0)),
}

every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def at(oracles, cfg, mask, first=0):
    """(Context for the package, positions and visible keys for the oracle); the oracle decides both."""
    mask = None if mask is None else oracles.torch.tensor(mask)
    positions, visible = oracles.token_positions(T, mask) + first, oracles.visible_keys(T, None, mask)
    layer = RotaryEmbedding(cfg.head_dim, cfg.rope_theta, cfg.yarn)
    rows = positions.numpy() if mask is None else positions.numpy()[:, None]  # (T,) or (B, 1, T)
    counted = None if mask is None else mask.numpy()
    return Context(*layer.table(rows, np.float64), visible.numpy(), counted), positions, visible
