"""Programs in turns: a process for each, of which one at a time works and the others wait.

A program is named "module:function", and its module is imported in its own process only: what it imports, keeps and
starts is its own, and those that are not asked for need not be installed.
"""

import contextlib
import pkgutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from numpy_minimind.measuring.machine import peak_resident_bytes, resident_bytes

PAUSE = 0.1  # seconds in which the threads of a program that is done with its turn fall asleep


class Program:
    """A process that has made its piece of work and does it once a turn."""

    def __init__(self, make, arguments, threads):
        self.here, there = get_context("spawn").Pipe()
        self.process = get_context("spawn").Process(target=serve, args=(there, make, arguments, threads), daemon=False)
        self.process.start()
        there.close()
        self.answer()  # it is ready

    def answer(self):
        """Wait for its answer; a program that failed says why."""
        try:
            kind, value = self.here.recv()
        except EOFError:
            raise RuntimeError(f"the program ended by itself, exit code {self.process.exitcode}") from None
        if kind == "error":
            raise RuntimeError(value)
        return value

    def turn(self):
        """Let it work once; return (seconds, its peak memory so far in bytes)."""
        time.sleep(PAUSE)
        self.here.send("work")
        return self.answer()

    def close(self):
        with contextlib.suppress(OSError):
            self.here.send("end")
        self.process.join()


def serve(pipe, make, arguments, threads):
    """What the process does."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads, "blas")
    try:
        make = pkgutil.resolve_name(make)
        before = resident_bytes()  # the interpreter and what was imported; the work comes on top
        work = make(*arguments)
        pipe.send(("ready", None))
        while pipe.recv() == "work":
            seconds = work()
            pipe.send(("done", (seconds, peak_resident_bytes() - before)))
    except EOFError:  # whoever asked is gone
        return
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))


def in_turns(programs, repeat, threads):
    """Run {name: (make, arguments)} A B A B; return {name: (seconds of each turn, peak bytes)} and {name: why not}."""
    running, failed, results = {}, {}, {}
    try:
        for name, (make, arguments) in programs.items():
            try:
                running[name] = Program(make, arguments, threads)
                running[name].turn()  # does not count
                results[name] = ([], 0)
            except RuntimeError as error:
                failed[name] = str(error).splitlines()[0][:200]
                results.pop(name, None)
        for _ in range(repeat):
            for name, (seconds, _) in results.items():
                second, peak = running[name].turn()
                results[name] = ([*seconds, second], peak)
    finally:
        for program in running.values():
            program.close()
    return results, failed


def apart(function, *arguments):
    """Return function(*arguments), computed in a process of its own; the function is named as a program is."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, function, arguments).result()


def call(function, arguments):
    return pkgutil.resolve_name(function)(*arguments)
