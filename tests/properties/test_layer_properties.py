"""Every layer at sizes, masks, positions and numbers that nobody chose: right gradients, and the contract.

Gradients and contract at chosen points are in `tests/checking/test_cases.py` and `tests/layers/test_contract.py`; here
Hypothesis draws the sizes, and when something fails it looks for the smallest case that fails.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, reject

from numpy_minimind.checking import check_layer, complex_step_check
from numpy_minimind.checking.contract import infer
from numpy_minimind.checking.gradcheck import strided_copy
from numpy_minimind.checking.layers import CASES
from numpy_minimind.checking.points import MARGIN, Point, routers, routing_margin
from numpy_minimind.checking.probe import as_gradients, outputs
from numpy_minimind.checking.report import WRONG, GradReport
from numpy_minimind.layer import Layer
from numpy_minimind.trees import map_arrays
from tests.helpers import arrays, cast, gradients_of
from tests.properties.drawn_layers import EDGES, Case, near, of_profile, part, strategies_of

pytestmark = pytest.mark.usefixtures("backend")

SMALL = strategies_of(3)
LARGER = strategies_of(7)

each_layer = pytest.mark.parametrize("name", SMALL)


def holds(prop: Callable[[Case], None], name: str, strategies: dict[str, Any] = SMALL, share: float = 1.0) -> None:
    """Try a property on the edges of a layer, and on drawn cases."""
    tried = of_profile(share)(given(case=strategies[name])(prop))
    for case in EDGES.get(name, ()):
        tried = example(case=case)(tried)
    tried()


def everything(layer: Layer, inputs: Any, dy: list[Any]) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Outputs, gradients of inputs, gradients of parameters, from zero."""
    layer.zero_grad()
    y, saved = layer.forward(*inputs)
    dx = as_gradients(layer.backward(*dy, saved))
    return outputs(y), dx, {name: g.copy() for name, g in gradients_of(layer).items()}


def cotangents(case: Case, y: Any) -> list[np.ndarray]:
    """Read-only, and one for all rows: strides of 0."""
    rng = np.random.default_rng([case.seed, 8])
    return [np.broadcast_to(rng.normal(size=np.shape(o)[-1:]), np.shape(o)) for o in outputs(y)]


def test_every_layer_is_drawn_or_has_a_point():
    assert SMALL.keys() == LARGER.keys() == CASES.keys() - {"model"} >= EDGES.keys()


# -- gradients -------------------------------------------------------------------------------------------------


def by_complex_step(case: Case, point: Point) -> tuple[bool, GradReport]:
    """Whether all tensors agree with the complex step, which subtracts nothing and so resolves everything."""
    options = {k: v for k, v in point.options.items() if k not in ("smallest_scale", "strided")}
    report = complex_step_check(point.layer, *point.inputs, rng=case.seed, name=repr(case), **options)
    # A gradient that is what is left of larger terms has fewer digits of its own.
    wrong = [r for r in report.failed if r.verdict != WRONG or not r.max_error <= 1e-12 * max(1.0, r.max_analytic)]
    return not report.faults and not wrong, report


def well_routed(case: Case) -> Point:
    """The point, unless its routing is a near tie, where there is no derivative."""
    point = case.point()
    _, saved = point.layer.forward(*point.inputs)
    assume(routing_margin(routers(saved)) > MARGIN)
    return point


def gradients_are_right(case: Case) -> None:
    """All tensors against central differences, and the protocol; on strided inputs for every second seed."""
    point = well_routed(case)
    options = {"strided": bool(case.seed % 2), **point.options}
    report = check_layer(point.layer, *point.inputs, rng=case.seed, name=repr(case), **options)
    assert not report.faults, str(report)
    if not report.ok:
        # Nobody chose this point: a gradient may vanish here, or bend within a step. The complex step knows.
        right, exact = by_complex_step(case, point)
        assert right, f"{report}\n{exact}"
        reject()


def gradients_are_exact(case: Case) -> None:
    """All tensors against the complex step."""
    right, report = by_complex_step(case, well_routed(case))
    assert right, str(report)


@pytest.mark.quick_on_host
@each_layer
def test_gradients_are_those_of_central_differences(name):
    holds(gradients_are_right, name, share=0.4)


@pytest.mark.slow
@each_layer
def test_gradients_are_those_of_central_differences_at_larger_sizes(name):
    holds(gradients_are_right, name, LARGER, share=0.4)


@pytest.mark.quick_on_host
@each_layer
def test_gradients_are_those_of_the_complex_step(name):
    holds(gradients_are_exact, name, share=0.4)


# -- the contract ----------------------------------------------------------------------------------------------


def layout_does_not_matter(case: Case) -> None:
    """Strided inputs and a read-only, broadcast cotangent give what contiguous arrays give."""
    point = case.point()
    dy = cotangents(case, point.layer.forward(*point.inputs)[0])
    right = everything(point.layer, point.inputs, [np.array(d) for d in dy])
    found = everything(point.layer, map_arrays(point.inputs, strided_copy), dy)
    for a, b in zip(arrays(found), arrays(right), strict=True):
        near(a, b)


@pytest.mark.quick_on_host
@each_layer
def test_layout_of_inputs_and_cotangents_does_not_matter(name):
    holds(layout_does_not_matter, name)


def the_dtype_stays(case: Case) -> None:
    """float32 in, float32 out, saved and accumulated; and no number that float64 does not have, too."""
    point = case.point()
    layer, inputs = point.layer.astype(np.float32), cast(point.inputs, np.float32)
    y, saved = layer.forward(*inputs)
    dx = layer.backward(*(np.asarray(d, np.float32) for d in cotangents(case, y)), saved)
    everywhere = [outputs(y), saved, dx, gradients_of(layer), infer(layer, inputs)]
    floats = [a for a in arrays(everywhere) if a.dtype.kind == "f"]
    assert {a.dtype for a in floats} == {np.dtype(np.float32)}
    assert all(np.isfinite(a).all() for a in floats)


@each_layer
def test_float32_stays_float32(name):
    holds(the_dtype_stays, name)


def halves_make_the_whole(case: Case) -> None:
    """Rows of a batch know nothing of each other: outputs stand side by side, gradients of weights add up."""
    point = case.of_sums().point()
    layer = point.layer
    dy = [np.array(d) for d in cotangents(case, layer.forward(*point.inputs)[0])]
    if len(dy) == 2:
        dy[1] = np.zeros(())  # the auxiliary loss is a product of two means: it does not split
    y, dx, gradients = everything(layer, point.inputs, dy)
    cut = case.seed % (case.B + 1)  # a part may be empty
    parts = [
        everything(layer, part(point, rows), [d[rows] if d.ndim else d for d in dy])
        for rows in (slice(0, cut), slice(cut, case.B))
        if rows.start < rows.stop
    ]
    if y[0].ndim:
        near(np.concatenate([p[0][0] for p in parts]), y[0])
    else:
        near(sum(p[0][0] for p in parts), y[0])
    for i, whole in enumerate(dx):
        near(np.concatenate([p[1][i] for p in parts]), whole)
    for name, whole in gradients.items():
        near(sum(p[2][name] for p in parts), whole)


@pytest.mark.quick_on_host
@each_layer
def test_two_halves_of_a_batch_make_the_whole(name):
    holds(halves_make_the_whole, name)


def state_comes_back(case: Case) -> None:
    """A layer of other numbers that loads the state computes the same bits."""
    point, other = case.point(), type(case)(**{**vars(case), "seed": case.seed + 1}).point()
    other.layer.load_state_dict({name: a.copy() for name, a in point.layer.state_dict().items()})
    one, two = (outputs(layer.forward(*point.inputs)[0]) for layer in (point.layer, other.layer))
    assert [np.asarray(a).tobytes() for a in one] == [np.asarray(a).tobytes() for a in two]


@each_layer
def test_the_state_dict_comes_back(name):
    holds(state_comes_back, name, share=0.25)
