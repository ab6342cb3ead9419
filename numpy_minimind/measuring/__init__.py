"""How fast, against what could be: clocks, the floor of matrix products, peak memory, where a step's time goes."""

from typing import TYPE_CHECKING

from numpy_minimind.lazy import attributes

if TYPE_CHECKING:
    from numpy_minimind.measuring.clocks import interleaved, spread
    from numpy_minimind.measuring.machine import limit_blas, peak_bytes
    from numpy_minimind.measuring.profiler import StepProfile, profile_steps
    from numpy_minimind.measuring.workloads import Decode, Prefill, TrainStep
else:
    __getattr__, __dir__ = attributes(
        __name__,
        {
            "Decode": "numpy_minimind.measuring.workloads",
            "Prefill": "numpy_minimind.measuring.workloads",
            "StepProfile": "numpy_minimind.measuring.profiler",
            "TrainStep": "numpy_minimind.measuring.workloads",
            "interleaved": "numpy_minimind.measuring.clocks",
            "limit_blas": "numpy_minimind.measuring.machine",
            "peak_bytes": "numpy_minimind.measuring.machine",
            "profile_steps": "numpy_minimind.measuring.profiler",
            "spread": "numpy_minimind.measuring.clocks",
        },
    )

__all__ = [
    "Decode",
    "Prefill",
    "StepProfile",
    "TrainStep",
    "interleaved",
    "limit_blas",
    "peak_bytes",
    "profile_steps",
    "spread",
]
