"""Peak memory of a separate process, and what the machine says about itself."""

import functools
import mmap
import os

import numpy as np
import pytest

from numpy_minimind.measuring.machine import (
    cores,
    cpu_name,
    default_threads,
    limit_blas,
    machine,
    peak_bytes,
    peak_resident_bytes,
    resident_bytes,
)
from numpy_minimind.threads import blas_threads

MIB = 2**20


def test_peak_memory_is_that_of_the_work_alone_even_if_it_is_freed_again():
    ours = np.ones(40 * MIB, np.uint8)  # of this process: must not count
    found = peak_bytes(functools.partial, np.ones, 80 * MIB, np.uint8)
    assert 79 * MIB <= found < 100 * MIB  # the system counts its pages in batches
    assert peak_bytes(functools.partial, np.ones, 1, np.uint8) < 20 * MIB
    del ours


def test_an_error_in_the_other_process_is_an_error_here():
    with pytest.raises(ValueError, match="negative dimensions"):
        peak_bytes(functools.partial, np.ones, -1)


def test_resident_memory_grows_by_what_is_touched_and_the_peak_remains():
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MIB) as block:  # fresh pages: an array might get memory that this process has already
        block.write(b"x" * (64 * MIB))
        assert resident_bytes() - before > 60 * MIB
        assert peak_resident_bytes() >= before + 60 * MIB
    assert peak_resident_bytes() >= before + 60 * MIB


def test_the_machine_describes_itself():
    about = machine()
    assert set(about) == {"cpu", "cores", "system", "python", "numpy", "blas"}
    assert about["cpu"] == cpu_name() != "" and about["numpy"] == np.__version__
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_blas_threads_are_limited_and_given_back():
    before = blas_threads()
    with limit_blas(1):
        assert default_threads() == 1
    assert blas_threads() == before
