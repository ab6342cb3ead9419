"""Proof that every gradient is right: difference checks, the complex step, float32 against float64."""

from numpy_minimind.checking.complex_step import complex_step_check
from numpy_minimind.checking.differences import Effort
from numpy_minimind.checking.float32 import compare_float32
from numpy_minimind.checking.gradcheck import check_layer
from numpy_minimind.checking.layers import MUTANTS
from numpy_minimind.checking.report import GradReport, TensorRow
from numpy_minimind.checking.whole_model import check_model

__all__ = [
    "MUTANTS",
    "Effort",
    "GradReport",
    "TensorRow",
    "check_layer",
    "check_model",
    "compare_float32",
    "complex_step_check",
]
