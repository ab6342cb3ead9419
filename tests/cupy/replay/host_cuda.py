"""The real CuPy on a machine without a GPU: everything runs for real but the kernels themselves.

CuPy asks the CUDA runtime for a device before it looks at its arguments, so without a driver every call, right or
wrong, ends in the same error. Here the few functions of the runtime that stand in the way are replaced: memory is host
memory, copies are copies, there is one device, and launching a kernel does nothing but count. What is left is CuPy's
own code: signatures, refusals, shapes, promotion of dtypes, views, indexing. Values mean nothing: no kernel wrote them.

`import_cupy` must come before any other import of CuPy, and spoils it for this process: use a process of its own.
"""

import ctypes
import functools
import re
import sys
import types

# How CuPy's modules see each other's C functions: by capsules, named after their C signature. They are looked up once,
# when a module that needs them is imported; hence the order in `import_cupy`.
C_TYPES = {
    "PyObject *": ctypes.py_object,
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "intptr_t": ctypes.c_ssize_t,
    "size_t": ctypes.c_size_t,
}
capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
kept_alive = []  # what C code points to

launches = []  # names, one for each kernel or library routine that would have run
blocks = {}  # address -> memory


def malloc(size, *_):
    block = (ctypes.c_ubyte * max(size, 1))()  # zeros: an index that was never computed is 0, which always exists
    blocks[ctypes.addressof(block)] = block
    return ctypes.addressof(block)


def free(address, *_):
    blocks.pop(address, None)
    return True


def copy(to, source, size, *_):
    ctypes.memmove(to, source, size)
    return True


def fill(to, value, size, *_):
    ctypes.memset(to, value, size)
    return True


def launch(*_):
    launches.append("kernel")
    return True


def always(value):
    return lambda *_: value


def done(*_):
    return True  # not None: ctypes would take one reference too many from it


def attribute(which, _device, *_):
    """Compute capability 9.0; 1024 of whatever else is asked for."""
    return {75: 9, 76: 0}.get(which, 1024)


def properties(_device, *_):
    return {"name": b"host", "warpSize": 32, "multiProcessorCount": 1, "sharedMemPerBlock": 48 << 10}


RUNTIME = {
    "_ensure_context": done,
    "getDevice": always(0),
    "setDevice": done,
    "getDeviceCount": always(1),
    "getDeviceProperties": properties,
    "deviceGetAttribute": attribute,
    "deviceSynchronize": done,
    "streamSynchronize": done,
    "streamIsCapturing": always(0),
    "driverGetVersion": always(12090),
    "runtimeGetVersion": always(12090),
    "malloc": malloc,
    "free": free,
    "hostAlloc": malloc,
    "freeHost": free,
    "memcpy": copy,
    "memcpyAsync": copy,
    "memset": fill,
    "memsetAsync": fill,
    "pointerGetMemoryType": always(2),  # on a device
    "eventCreate": always(1),
    "eventCreateWithFlags": always(1),
    "eventRecord": done,
    "eventSynchronize": done,
    "eventDestroy": done,
}
DRIVER = {
    "moduleLoadData": always(1),
    "moduleUnload": done,
    "moduleGetFunction": always(1),
    "funcGetAttribute": always(1024),
    "occupancyMaxActiveBlocksPerMultiprocessor": always(1),
    "ctxGetCurrent": always(1),
    "launchKernel": launch,
}


class Library(types.ModuleType):
    """Stands in for a library of kernels (cuBLAS, Thrust): every routine is there, counts, and does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.upper() == name:
            return 0  # a constant

        def routine(*_, **__):
            launches.append(f"{self.__name__}.{name}")
            return 1

        return routine


def replace(module, name, function):
    """Let whoever imports `module` from C from now on call `function` in place of its `name`."""
    name_of_type = capsule_name(module.__pyx_capi__[name])
    result, arguments = re.fullmatch(r"(.*?)\s*\((.*)\)", name_of_type.decode()).groups()
    arguments = [] if arguments == "void" else [a.replace(" __pyx_skip_dispatch", "") for a in arguments.split(",")]
    types_ = [C_TYPES[a.strip()] for a in (result, *arguments)]  # KeyError: CuPy has changed, look again
    callback, buffer = ctypes.PYFUNCTYPE(*types_)(function), ctypes.create_string_buffer(name_of_type)
    kept_alive.extend((callback, buffer))
    address = ctypes.cast(callback, ctypes.c_void_p)
    module.__pyx_capi__[name] = new_capsule(address, ctypes.addressof(buffer), None)


@functools.cache
def import_cupy():
    """Return CuPy, computing on host memory and launching nothing."""
    assert "cupy" not in sys.modules, "CuPy was imported before: it cannot be changed any more"
    from cupy_backends.cuda.api import driver, runtime

    for module, functions in ((runtime, RUNTIME), (driver, DRIVER)):
        for name, function in functions.items():
            replace(module, name, function)
    import cupy_backends.cuda.libs as libraries

    libraries.cublas = sys.modules["cupy_backends.cuda.libs.cublas"] = Library("cublas")
    sys.modules["cupy.cuda.thrust"] = Library("thrust")
    import cupy
    from cupy.cuda import compiler, function

    cupy._core.set_routine_accelerators([])  # CUB and cuTENSOR bring compiled code with a runtime of its own
    cupy._core.set_reduction_accelerators([])
    compiler._compile_module_with_cache = lambda *_, **__: function.Module()
    return cupy
