"""What the installed CuPy offers, as a table: functions with their parameters, ufuncs, methods of arrays, generators.

    python tests/cupy/make_cupy_api.py           compare with cupy_api.json and print what differs; exit code 1 then
    python tests/cupy/make_cupy_api.py --write   replace cupy_api.json

Exit code 2 where CuPy is not installed; it need not find a GPU. The stand-in
(tests/cupy/strict_cupy.py) refuses what is not in the table.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_name("cupy_api.json")
BESIDE = ("fuse",)  # what is used of CuPy and has no like in NumPy


def api() -> dict[str, Any]:
    """Return the table of the installed CuPy: of what NumPy has, too, the part that is there."""
    import cupy

    public = {name: getattr(cupy, name) for name in dir(cupy) if name in np.__all__}
    functions = {n: f for n, f in public.items() if callable(f) and not isinstance(f, (type, cupy.ufunc))}
    generators = {"generator": cupy.random.Generator, "randomstate": cupy.random.RandomState}
    return {
        "version": cupy.__version__,
        "beside": {name: parameters(getattr(cupy, name)) for name in BESIDE},
        "functions": {name: parameters(function) for name, function in functions.items()},
        "ufuncs": {name: methods(ufunc) for name, ufunc in public.items() if isinstance(ufunc, cupy.ufunc)},
        "ndarray": {name: member(cupy.ndarray, name) for name in dir(cupy.ndarray) if not name.startswith("__")},
        **{key: [n for n in dir(kind) if not n.startswith("_")] for key, kind in generators.items()},
    }


def parameters(function: Any) -> list[list[str]] | None:
    """Return (name, kind) of each parameter; None where Python cannot tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    return [[p.name, p.kind.name] for p in found]


def methods(ufunc: Any) -> dict[str, Any]:
    """Return which of the ufunc's methods work: `at` (by the name of its kernel), `reduce` (when it is tried)."""
    import cupy

    host = np.zeros(2)  # an array of CuPy needs memory, and no device before something is computed
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, 0)
    try:
        ufunc.reduce(cupy.ndarray(host.shape, host.dtype, cupy.cuda.MemoryPointer(memory, 0)))
        reduces = True
    except NotImplementedError:
        reduces = False
    except cupy.cuda.runtime.CUDARuntimeError:  # there is no device: it would have begun to compute
        reduces = True
    return {"at": ufunc._scatter_op, "reduce": reduces}


def member(kind: type, name: str) -> Any:
    """Return the signature of a method, or "attr"."""
    value = getattr(kind, name)
    if not callable(value):
        return "attr"
    return parameters(value) or (value.__doc__ or "").strip().splitlines()[0]


def differences(stored: Any, found: Any, path: str = "") -> list[str]:
    """Return a line for each entry that is new, gone or changed."""
    if isinstance(stored, dict) and isinstance(found, dict):
        lines = []
        for key in sorted({*stored, *found}):
            where = f"{path}.{key}" if path else key
            if key not in found:
                lines.append(f"gone: {where}")
            elif key not in stored:
                lines.append(f"new: {where}")
            else:
                lines += differences(stored[key], found[key], where)
        return lines
    return [] if stored == found else [f"changed: {path}: {stored} -> {found}"]


def main(argv: list[str]) -> int:
    try:
        found = api()
    except ModuleNotFoundError as error:
        print(f"error: CuPy is not installed ({error}): pip install cupy-cuda12x; no GPU is needed", file=sys.stderr)
        return 2
    if "--write" in argv:
        TABLE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    lines = differences(json.loads(TABLE.read_text(encoding="utf-8")), found)
    print("\n".join(lines) or f"CuPy {found['version']} offers what the table says")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
