"""The command line before a command runs: its first screen, its version, names that it does not know."""

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

import numpy_minimind as nm
from numpy_minimind.cli import FIRST_SCREEN, build_parser, main
from numpy_minimind.commands import gradcheck, params


def stopped(arguments, capsys):
    """Run what argparse ends; return (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return exit_.value.code, *capsys.readouterr()


# -- the first screen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["numpy_minimind", "numpy_minimind.cli"])
def test_without_a_command_it_says_what_one_can_do_first(module):
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", FIRST_SCREEN)
    assert max(map(len, FIRST_SCREEN.splitlines())) < 80  # a terminal as it opens


def test_what_the_first_screen_shows_can_be_typed(capsys):
    lines = [shlex.split(line) for line in FIRST_SCREEN.splitlines() if line.startswith("  ")]
    ours = [words[3:] for words in lines if words[:3] == ["python", "-m", "numpy_minimind"]]
    assert [words[0] for words in ours] == ["train", "gradcheck", "params", "chat"]
    args = [build_parser().parse_args(words) for words in ours]
    assert params.render(params.run(args[2])).startswith("parameters")
    assert args[1].brief
    gradcheck.select(args[1].layer)


# -- the version -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_with_what_it_runs_on(flag, capsys):
    code, out, err = stopped([flag], capsys)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"numpy_minimind {nm.__version__} \(NumPy {np.__version__}, Python 3\.\d+\.\d+\S*\)\n", out)


# -- names that are not known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message", "program"),
    [
        ("trian", "unknown command: 'trian' (choose from", ""),
        ("trian --out x", "; did you mean train?", ""),
        ("show_labels x", "; did you mean show-labels?", ""),
        ("Gradcheck", "; did you mean gradcheck?", ""),
        ("help", "; did you mean --help?", ""),
        ("--verison", "unrecognized arguments: --verison; did you mean --version?", ""),
        ("train --stpes 3", "unrecognized arguments: --stpes 3; did you mean --steps?", " train"),
        ("train -steps 3", "; did you mean --steps?", " train"),
        ("train --batch_size=3", "; did you mean --batch-size?", " train"),
        ("train --device cdua", "invalid choice: 'cdua' (choose from", " train"),
        ("train --device cdua", "; did you mean cuda?", " train"),
        ("train --steps many", "argument --steps: invalid int value: 'many'", " train"),
        ("generate m --promt hi", "unrecognized arguments: --promt; did you mean --prompt?", " generate"),
        ("generate m --max 3", "the following arguments are required: --prompt", " generate"),
        ("bench trian", "; did you mean train?", " bench"),
        ("bench train --repaet 3", "; did you mean --repeat?", " bench train"),
    ],
)
def test_a_name_that_is_not_known(arguments, message, program, capsys):
    code, out, err = stopped(arguments.split(), capsys)
    usage, *_, error, advice = err.splitlines()
    assert (code, out) == (2, "")
    assert usage.startswith(f"usage: python -m numpy_minimind{program} ")
    assert error.startswith("error: ") and message in error
    assert advice == f"python -m numpy_minimind{program} --help tells more"


@pytest.mark.parametrize("arguments", ["fly", "runs/toy", "generate m --prompt hi there", "params tiny --zzz"])
def test_nothing_is_guessed_where_nothing_is_near(arguments, capsys):
    code, _, err = stopped(arguments.split(), capsys)
    assert code == 2 and "did you mean" not in err
