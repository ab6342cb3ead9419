"""Run what the package asks of a device on a stand-in, then ask the real CuPy the same: would it take every call?

    python tests/cupy/replay/replay.py            prints a summary and every fault; exit code 1 if there is one,
                                                  2 if CuPy is not installed
    python tests/cupy/replay/replay.py --json     the same for a program

No GPU is needed, nor a driver (see host_cuda.py). A call is right when CuPy takes it and its result has the type, dtype
and shape that the stand-in gave. The one that ends in CUDA itself (no driver) or in a library that is not installed has
come through all that CuPy checks before; it is counted apart.
"""

import json
import operator
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.cupy.replay.host_cuda import import_cupy, launches
from tests.cupy.replay.recorder import Array, Call, HostArray, recording

REFLECTED = {
    f"__r{name}__": f"__{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
}
BUILT_IN = {"__len__": len, "__float__": float, "__int__": int, "__bool__": bool}


class Verdict(NamedTuple):
    """What became of a call: "same" result, "stopped" at the missing driver, or "rejected"."""

    outcome: str
    why: str
    launched: int


def verdict_of(cupy: Any, call: Call) -> Verdict:
    """Ask the real CuPy."""
    stopped = (cupy.cuda.runtime.CUDARuntimeError, ImportError)
    before = len(launches)
    try:
        result = replayed(cupy, call)
    except stopped as error:
        return Verdict("stopped", f"{type(error).__name__}: {error}", len(launches) - before)
    except Exception as error:
        return Verdict("rejected", f"{type(error).__name__}: {error}", len(launches) - before)
    difference = differs(cupy, call, call.result, result)
    return Verdict("rejected" if difference else "same", difference, len(launches) - before)


def replayed(cupy: Any, call: Call) -> Any:
    """Make the call's arguments, and make the call."""
    args = [made(cupy, value) for value in call.args]
    kwargs = {name: made(cupy, value) for name, value in call.kwargs}
    if call.kind == "function":
        return operator.attrgetter(call.name)(cupy)(*args, **kwargs)
    if call.kind == "attribute":
        return getattr(args[0], call.name)
    if call.kind == "method":
        return getattr(args[0], call.name)(*args[1:], **kwargs)
    if call.name in BUILT_IN:
        return BUILT_IN[call.name](*args)
    if call.name in REFLECTED:
        return getattr(operator, REFLECTED[call.name])(*reversed(args))
    return getattr(operator, call.name)(*args)


def made(cupy: Any, value: Any) -> Any:
    """Return an argument like the recorded one; arrays hold zeros."""
    if isinstance(value, Array):
        return device_array(cupy, value)
    if isinstance(value, HostArray):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, tuple) and value:
        kind, *parts = value
        if kind == "slice":
            return slice(*parts)
        if kind in ("bool", "float"):
            return parts[0] if kind == "bool" else float(parts[0])
        if kind == "scalar":
            return np.zeros((), parts[0])[()]
        made_parts = [made(cupy, part) for part in parts]
        return made_parts if kind == "list" else tuple(made_parts)
    return value


def device_array(cupy: Any, like: Array) -> Any:
    """Return a real CuPy array of this dtype, shape and layout."""
    extent = [(n - 1) * stride for n, stride in zip(like.shape, like.strides)]
    size = np.dtype(like.dtype).itemsize + sum(map(abs, extent))
    begin = -sum(e for e in extent if e < 0)
    memory = cupy.cuda.alloc(size)
    return cupy.ndarray(like.shape, like.dtype, memptr=memory + begin, strides=like.strides)


def differs(cupy: Any, call: Call, expected: Any, found: Any) -> str:
    """Say how the result differs in kind, or return "". How many entries of a mask were true, nobody knows here."""
    if isinstance(found, cupy.ndarray) and not isinstance(expected, Array):
        return f"returned an array, not {expected}"
    if isinstance(expected, Array):
        if not isinstance(found, cupy.ndarray):
            return f"returned {type(found).__name__}, not an array"
        counts = call.name in ("nonzero", "flatnonzero") or is_mask(call)
        shapes = (len(expected.shape), found.ndim) if counts else (expected.shape, found.shape)
        if found.dtype.str != expected.dtype or shapes[0] != shapes[1]:
            return f"returned {found.dtype.str} {found.shape}, not {expected.dtype} {expected.shape}"
        return ""
    if isinstance(expected, HostArray):
        found = np.asarray(found)
        same = (found.dtype.str, found.shape) == (expected.dtype, expected.shape)
        return "" if same else f"returned {found.dtype.str} {found.shape} on the host, not {expected}"
    if isinstance(expected, tuple) and expected and expected[0] in ("tuple", "list"):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected) - 1:
            return f"returned {type(found).__name__}, not {len(expected) - 1} things"
        return next(filter(None, (differs(cupy, call, e, f) for e, f in zip(expected[1:], found))), "")
    if isinstance(expected, np.dtype) and expected != found:
        return f"returned {found}, not {expected}"
    return ""


def is_mask(call: Call) -> bool:
    """Whether an array of bool chooses the entries."""
    index = call.args[1] if call.name == "__getitem__" else None
    parts = index if isinstance(index, tuple) and not isinstance(index, Array) else (index,)
    return any(isinstance(part, Array) and np.dtype(part.dtype).kind == "b" for part in parts)


def text_of(call: Call) -> str:
    """Return the call as a line."""
    words = [str(a) for a in call.args] + [f"{name}={value}" for name, value in call.kwargs]
    return f"{call.kind} {call.name}({', '.join(words)})"


def replay(calls: dict[Call, int]) -> dict[str, Any]:
    """Return counts and faults."""
    cupy = import_cupy()
    outcomes: Counter[str] = Counter()
    launching, faults, stops = 0, [], Counter()
    for call in calls:
        verdict = verdict_of(cupy, call)
        outcomes[verdict.outcome] += 1
        launching += verdict.launched > 0
        if verdict.outcome == "rejected":
            faults.append(f"{text_of(call)}: {verdict.why}")
        if verdict.outcome == "stopped":
            stops[f"{call.name}: {verdict.why.splitlines()[0]}"] += 1
    return {
        "cupy": cupy.__version__,
        "recorded": sum(calls.values()),
        "different": len(calls),
        "same": outcomes["same"],
        "stopped": outcomes["stopped"],
        "rejected": outcomes["rejected"],
        "launching": launching,
        "by_kind": dict(Counter(call.kind for call in calls)),
        "names": sorted({f"{call.kind} {call.name}" for call in calls}),
        "stops": dict(stops),
        "faults": faults,
    }


def main(argv: list[str]) -> int:
    try:
        import_cupy()  # before the stand-in takes its name
    except ModuleNotFoundError as error:
        print(f"error: CuPy is not installed ({error}): pip install cupy-cuda12x; no GPU is needed", file=sys.stderr)
        return 2
    from tests.cupy.replay.workload import run_everything
    from tests.cupy.strict_cupy import cupy as stand_in

    with recording(stand_in) as recorder:
        run_everything()
    result = replay(recorder.calls)
    if "--json" in argv:
        from tests.cupy.replay.planted import PLANTED

        planted = {name: verdict_of(import_cupy(), call)._asdict() for name, call in PLANTED.items()}
        print(json.dumps({**result, "planted": planted}))
        return 0
    print(
        f"CuPy {result['cupy']}: {result['recorded']:,} calls recorded, {result['different']:,} different ones "
        f"replayed; {result['same']:,} taken with the same result ({result['launching']:,} of all launch kernels), "
        f"{result['stopped']:,} stopped at the driver, {result['rejected']:,} rejected"
    )
    for line in [*result["stops"], *result["faults"]]:
        print("  " + line)
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
