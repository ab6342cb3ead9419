"""A case: one layer at one kind of point, as the command and the tests run it.

Each draws from a generator of its own name, so that adding one changes no other.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from numpy_minimind.checking.complex_step import complex_step_check
from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.float32 import compare_float32
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.points import Build, Point, Rng
from numpy_minimind.checking.report import GradReport


@dataclass(frozen=True)
class Case:
    """One layer at one kind of point."""

    id: str  # "layer/what is special"
    build: Build
    effort: Effort | None = None  # None: that of check_layer

    @property
    def layer(self) -> str:
        return self.id.partition("/")[0]

    def check(self, seed: int = 0) -> GradReport:
        """Compare with central differences."""
        rng, point = self.draw(seed)
        return check_layer(point.layer, *point.inputs, rng=rng, name=self.id, effort=self.effort, **point.options)

    def check_complex_step(self, seed: int = 0) -> GradReport:
        """Compare with the complex step."""
        rng, point = self.draw(seed)
        options = {k: v for k, v in point.options.items() if k not in ("smallest_scale", "strided")}
        return complex_step_check(point.layer, *point.inputs, rng=rng, name=self.id, effort=self.effort, **options)

    def check_float32(self, seed: int = 0) -> GradReport:
        """Compare float32 with float64."""
        rng, point = self.draw(seed)
        cotangents = point.options.get("cotangents")
        return compare_float32(point.layer, *point.inputs, rng=rng, name=self.id, cotangents=cotangents)

    def draw(self, seed: int = 0) -> tuple[Rng, Point]:
        """Return the generator, as the drawing left it, and the point."""
        rng = np.random.default_rng([seed, zlib.crc32(self.id.encode())])
        return rng, self.build(rng)
