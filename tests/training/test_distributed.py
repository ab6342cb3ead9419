"""Several processes: the gradients of one, the same bits on every rank, and an end that all of them reach.

The runs are real ones, of `mpiexec` and mpi4py, on this machine: what each rank does in them is in mpi_worker.py.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numpy_minimind import backend
from numpy_minimind.checkpoint.resume import load_resume
from numpy_minimind.threads import Threads
from numpy_minimind.training.distributed import DistributedGradients, Ranks, connect, launched
from numpy_minimind.training.parallel import ThreadedGradients
from tests.helpers import assert_close, gradients_of, model_of
from tests.training.mpi_worker import CASES, ROWS, batch_of

pytestmark = pytest.mark.mpi

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec (pip install mpich)"
)
TESTS = Path(__file__).parents[1]
# Open MPI refuses to run as root, and more processes than processors, unless it is told.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
ENVIRONMENT = {**os.environ, **OPEN_MPI, "PYTHONIOENCODING": "utf-8"}
ENVIRONMENT["PYTHONPATH"] = str(TESTS.parent)
TRAIN = [
    "-m", "numpy_minimind", "train", "--preset", "tiny", "--set", "num_hidden_layers=1", "--batch-size", "4",
    "--seq-len", "48", "--log-every", "2", "--eval-every", "5",
]  # fmt: skip


def start(ranks, *arguments):
    """Start `mpiexec -n ranks python ...`."""
    return subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), sys.executable, "-u", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT,
    )


def finish(process, code=0):
    """Wait for it; return (stdout, stderr)."""
    try:
        out, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, (process.returncode, out, errors)
    return out, errors


def work(ranks, what, folder, code=0):
    return finish(start(ranks, TESTS / "training" / "mpi_worker.py", what, folder), code)


def train(ranks, *flags, code=0):
    return finish(start(ranks, *TRAIN, *flags), code)


def resume(ranks, *flags, code=0):
    return finish(start(ranks, "-m", "numpy_minimind", "train", "--resume", *flags), code)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small text file to train on."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"line {i}: the quick brown fox {i * i}.\n" for i in range(400)), encoding="utf-8")
    return path


def assert_same_run(a, b):
    """Bit for bit: weights, moments, counters, generator state."""
    (arrays_a, state_a), (arrays_b, state_b) = (load_resume(folder / "resume.safetensors") for folder in (a, b))
    assert arrays_a.keys() == arrays_b.keys()
    assert all(arrays_a[name].tobytes() == arrays_b[name].tobytes() for name in arrays_a)
    assert state_a["trainer"] == state_b["trainer"]


# -- gradients ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def computed(request, tmp_path_factory):
    """Return (number of ranks, folder of what each computed)."""
    folder = tmp_path_factory.mktemp("gradients")
    work(request.param, "gradients", folder)
    return request.param, folder


def by_hand(case, dtype, n, ranks, threads):
    """One process: the sum over the parts, each a call of the model's own, by the rule of micro-batches."""
    batch, model = batch_of(np.random.default_rng(5)), model_of(np.dtype(dtype).type, **CASES[case])
    n = batch.n_tokens if n is None else n
    parts = []
    for rows in np.split(np.arange(ROWS), [rank * ROWS // ranks for rank in range(1, ranks)]):
        threads_here = min(threads, len(rows))
        for some in np.split(rows, [i * len(rows) // threads_here for i in range(1, threads_here)]):
            parts.append(model.loss_and_grad_shifted(*(array[some] for array in batch), n))
    return np.sum(np.array(parts), axis=0), gradients_of(model)


@needs_mpi
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_any_number_of_ranks_gives_the_gradient_of_one(computed, case, threads, dtype, tolerance):
    ranks, folder = computed
    cut = (ranks, threads) if case == "auxiliary" else (1, 1)  # of the cross-entropy the cut is not seen
    numbers, right = by_hand(case, dtype, None, *cut)
    _, more = by_hand(case, dtype, 50, *cut)
    with np.load(folder / f"{case}-{dtype}-{threads}-0.npz") as found:
        assert_close(found["numbers"], numbers, tolerance)
        both = {f"twice.{name}": right[name] + more[name] for name in right}  # added to those that were there
        for gradients in (right, both):
            ours = {name: found[name] for name in gradients}
            if dtype == "float64":
                assert_close(ours, gradients, tolerance)
            else:  # of the whole: one small tensor of one process is up to 5e-6 of its own size from float64
                assert_close(*(np.concatenate([a.ravel() for a in g.values()]) for g in (ours, gradients)), tolerance)


@needs_mpi
@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_the_same_bits(computed, case):
    ranks, folder = computed
    for dtype in ("float64", "float32"):
        for threads in (1, 2):
            files = [(folder / f"{case}-{dtype}-{threads}-{rank}.npz").read_bytes() for rank in range(ranks)]
            assert files == [files[0]] * ranks


@needs_mpi
def test_the_same_number_of_ranks_gives_the_same_bits(computed, tmp_path):
    ranks, folder = computed
    work(ranks, "gradients", tmp_path)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


@needs_mpi
def test_weights_that_differed_are_shared_and_stay_equal_at_every_step(tmp_path):
    work(3, "training", tmp_path)
    first, *others = (json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(3))
    assert len(set(first)) == 9  # it moves
    assert others == [first, first]


def test_a_batch_with_fewer_rows_than_ranks_is_refused():
    ranks = Ranks()
    ranks.size = ROWS + 1
    batch, model = batch_of(np.random.default_rng(5)), model_of()
    with pytest.raises(ValueError, match="a batch of 5 rows cannot be shared by 6 processes: each needs one"):
        DistributedGradients(ThreadedGradients(model, Threads(1)), model, ranks)(batch, batch.n_tokens)


# -- launchers, libraries, devices -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "2"}, (2, 4)),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (0, 1)),  # of a batch script, which nobody started eight times
        ({"SLURM_NTASKS": "8", "PMIX_RANK": "7"}, (7, 8)),
    ],
)
def test_the_launcher_is_recognised(environment, expected):
    assert launched(environment) == expected


def without_launcher(monkeypatch):
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_on_its_own_needs_no_mpi(monkeypatch):
    without_launcher(monkeypatch)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    ranks, array = connect(), np.arange(3.0)
    assert (ranks.rank, ranks.size, str(ranks)) == (0, 1, "1")
    assert ranks.agree(None) is None and ranks.agree(2) == 2 and ranks.threads() >= 1
    ranks.all_reduce(array)
    ranks.require_same("text", "a")
    assert array.tolist() == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        ranks.run_on_rank_0(lambda: 1 / 0)


def test_without_mpi4py_the_error_names_the_extra(monkeypatch):
    without_launcher(monkeypatch)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"2 processes .* mpi4py \(pip install .*\[mpi\]'\) and an MPI library"):
        connect()


@needs_mpi
def test_a_launcher_of_another_mpi_is_found_out(tmp_path, text):
    environment = {**ENVIRONMENT, "MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}  # but started alone
    done = subprocess.run(
        [sys.executable, *TRAIN, "--corpus", str(text), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=120,
    )
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert "2 processes were started, but the MPI library" in done.stderr
    assert "counts 1: use the mpiexec that belongs to this library" in done.stderr


class Elsewhere(np.ndarray):
    """An array of another device, as far as this test needs one."""

    def get(self):
        return self.view(np.ndarray).copy()


@pytest.mark.parametrize("kinds", ["mpi,system,cuda", "mpi,system", None])
def test_an_array_on_a_gpu_goes_to_mpi_itself_or_by_way_of_the_host(kinds, monkeypatch):
    monkeypatch.setattr(backend, "_MODULES", dict(backend._MODULES))
    synchronized, summed = [], []
    stream = SimpleNamespace(synchronize=lambda: synchronized.append(True))
    cuda = SimpleNamespace(get_current_stream=lambda: stream)
    backend.register(Elsewhere, SimpleNamespace(asarray=lambda a: a.view(Elsewhere), cuda=cuda))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(IN_PLACE="in place")))

    class Comm:
        rank, size = 0, 2

        def Dup(self):
            return self

        def Get_info(self):
            return {} if kinds is None else {"mpi_memory_alloc_kinds": kinds}

        def Allreduce(self, send, array):
            assert send == "in place"
            summed.append(type(array))
            array *= 2

    array = np.arange(3.0).view(Elsewhere)
    Ranks(Comm()).all_reduce(array)
    assert array.tolist() == [0, 2, 4]
    direct = kinds is not None and "cuda" in kinds
    assert summed == [Elsewhere if direct else np.ndarray] and synchronized == [True] * direct


# -- agreements and errors ---------------------------------------------------------------------------------------


@needs_mpi
def test_what_some_ranks_know_reaches_all(tmp_path):
    out, _ = work(3, "agreements", tmp_path)
    assert out == "only rank 0 says this\n"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
@needs_mpi
def test_an_error_of_one_rank_ends_all_and_says_whose_it_is(tmp_path):
    out, errors = work(2, "failure", tmp_path, code=2)
    assert not out and errors.count("error: rank 1 of 2 ends them all: this machine has no such file\n") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
@needs_mpi
def test_an_unexpected_error_comes_with_its_traceback(tmp_path):
    _, errors = work(2, "bug", tmp_path, code=2)
    assert "Traceback" in errors and "error: rank 0 of 2 ends them all: 'nobody thought of this'\n" in errors


# -- the train command -------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_mpi
def test_a_run_of_two_processes_resumes_exactly_and_one_process_may_go_on_with_a_warning(tmp_path, text):
    flags = ["--corpus", text, "--steps", 10, "--accumulate", 2]
    out, errors = train(2, *flags, "--out", tmp_path / "whole")
    assert out.count("parameters, vocabulary") == out.count("step     10") == out.count("everything is in") == 1
    assert not errors
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "metrics.jsonl", "summary.json", "loss.png", "model", "resume.safetensors",
    }  # fmt: skip
    lines = (tmp_path / "whole/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 4, 5, 6, 8, 10]

    train(2, *flags, "--out", tmp_path / "parts", "--stop-after", 5)
    shutil.copytree(tmp_path / "parts", tmp_path / "one")
    _, errors = resume(2, "--out", tmp_path / "parts")
    assert not errors
    assert_same_run(tmp_path / "whole", tmp_path / "parts")

    _, errors = resume(1, "--out", tmp_path / "one")
    assert errors.startswith("warning: processes was 2 (") and "and is 1: the result may differ" in errors
    arrays, state = load_resume(tmp_path / "whole/resume.safetensors")
    other, other_state = load_resume(tmp_path / "one/resume.safetensors")
    assert state["trainer"] == other_state["trainer"]
    weights = {name: array for name, array in arrays.items() if name.startswith("model.")}
    assert_close({name: other[name] for name in weights}, weights, 1e-5)  # five steps after the same five


@needs_mpi
def test_an_error_of_all_ranks_is_told_once(tmp_path, text):
    out, errors = train(3, "--corpus", text, "--batch-size", 2, "--out", tmp_path / "run", code=2)
    assert not out
    assert errors.startswith("error: --batch-size 2 is less than the 3 processes that were started: each needs a row\n")
    assert errors.count("error:") == 1
    assert not (tmp_path / "run").exists()


@needs_mpi
def test_a_folder_in_use_is_refused_by_rank_0_for_all(tmp_path, text):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    _, errors = train(2, "--corpus", text, "--out", tmp_path, code=2)
    assert errors.count("is already in use") == 1 and errors.startswith("error: ")


@pytest.mark.slow
@needs_mpi
def test_a_loss_that_is_not_finite_ends_all_ranks_with_the_last_good_checkpoint(tmp_path, text):
    flags = ["--corpus", text, "--steps", 8, "--lr", "1e39", "--warmup", 0]
    _, errors = train(2, *flags, "--out", tmp_path / "run", code=1)
    assert errors.startswith("error: the loss became nan") and errors.count("error:") == 1
    assert "the last good checkpoint, of step 0, is in" in errors
    assert load_resume(tmp_path / "run/resume.safetensors")[1]["trainer"]["t"] == 0


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_ranks_at_one_step(tmp_path, text, number, code):
    if "Open MPI" in subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, encoding="utf-8").stdout:
        pytest.skip("Open MPI's mpiexec passes no signal on: it kills")
    process = start(2, *TRAIN, "--corpus", text, "--steps", 5000, "--out", tmp_path / "run")
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(number)
    out, errors = finish(process, code)
    step = load_resume(tmp_path / "run/resume.safetensors")[1]["trainer"]["t"]
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert 1 <= step < 5000 and f"stopped by {name} after step {step} of 5000" in out
    assert errors.count("Ctrl-C again stops at once") == 1
    resume(2, "--out", tmp_path / "run", "--stop-after", step + 2)
    train(2, "--corpus", text, "--steps", 5000, "--out", tmp_path / "whole", "--stop-after", step + 2)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def pid_of_rank(rank, process):
    """Find a rank among the descendants of mpiexec."""
    found = [process.pid]
    for pid in found:
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
    for pid in found[1:]:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"numpy_minimind" in words and b"-n" not in words:  # a word of its own: any folder may be called so
            values = dict(v.partition(b"=")[::2] for v in variables)
            if launched({k.decode(): v.decode(errors="replace") for k, v in values.items()})[0] == rank:
                return pid
    raise AssertionError(f"no rank {rank}")


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_the_run_and_the_last_checkpoint_is_whole(tmp_path, text, rank):
    out = tmp_path / "run"
    process = start(2, *TRAIN, "--corpus", text, "--steps", 5000, "--save-every", 4, "--out", out)
    for _ in range(6):
        process.stdout.readline()
    os.kill(pid_of_rank(rank, process), signal.SIGKILL)
    began = time.monotonic()
    process.communicate(timeout=60)
    assert process.returncode != 0 and time.monotonic() - began < 30
    step = load_resume(out / "resume.safetensors")[1]["trainer"]["t"]
    assert step >= 4 and step % 4 == 0
    resume(2, "--out", out, "--stop-after", step + 2)


@needs_mpi
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the ranks in /proc")
def test_a_signal_to_one_rank_stops_all(tmp_path, text):
    process = start(2, *TRAIN, "--corpus", text, "--steps", 5000, "--out", tmp_path / "run")
    for _ in range(5):
        process.stdout.readline()
    os.kill(pid_of_rank(1, process), signal.SIGTERM)
    out, _ = finish(process, 143)
    step = load_resume(tmp_path / "run/resume.safetensors")[1]["trainer"]["t"]
    assert f"stopped by SIGTERM after step {step} of 5000" in out
