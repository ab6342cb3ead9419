"""Pictures: the loss of a run, what attention looks at, what the checks found. The only importer of matplotlib."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numpy_minimind import fonts
from numpy_minimind.files import replacing
from numpy_minimind.messages import needs_extra

INK, SOFT, TRAIN, HELD_OUT, ORACLE, FLOOR = "#1f2430", "#8b93a7", "#9db7d5", "#1f5fa8", "#c2571a", "#2f8f5b"


def figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a (figure, axes) that draws to files only: no display, no global state, nothing to close.

    Raises
    ------
    ImportError
        Naming the extra to install, when matplotlib is absent.
    """
    with needs_extra("train", "pictures need matplotlib"):
        _import_matplotlib()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    fig = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(fig)
    ax = fig.add_subplot()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(SOFT)
    ax.tick_params(colors=INK, labelsize=9)
    return fig, ax


def _import_matplotlib() -> None:
    """Import it though MPLBACKEND may name a backend that is not there, which it refuses: a file needs none.

    Whoever draws to a screen in this process still gets the backend of the variable, if it is one.
    """
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = backend


def save(fig: Any, path: str | Path) -> Path:
    """Write the figure as PNG, whole or not at all.

    Every text gets fonts that have its characters; which of them none has, a line says.
    """
    _choose_fonts(fig)
    with replacing(path) as temporary:
        fig.savefig(temporary, format="png", facecolor="white")
    return Path(path)


def _choose_fonts(fig: Any) -> None:
    """Give each text fonts that have its characters, put a stand-in where none has, and say so below."""
    from matplotlib import font_manager
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    axes = [axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    labels = {axis: [label.get_text() for label in axis.get_ticklabels()] for axis in axes}  # writes them, too
    # Mathematics is only what a formatter of matplotlib's own writes: in all other texts "$" is a dollar.
    numbers = {axis for axis in axes if not isinstance(axis.get_major_formatter(), FuncFormatter)}
    mathematics = {label for axis in numbers for label in axis.get_ticklabels(which="both")}
    families, stand_ins = fonts.choose("".join(text.get_text() for text in fig.findobj(Text)), font_manager)
    lacking = [f"U+{ord(character):04X}" for character, stand_in in stand_ins.items() if stand_in]
    if lacking:
        more = [f"and {len(lacking) - 8} more"] if len(lacking) > 8 else []
        line = f"{fonts.STAND_IN} no glyph here for: {', '.join(lacking[:8] + more)}"
        write = fig.suptitle if fig.legends else fig.supxlabel  # a legend of the figure lies below
        write(textwrap.fill(line, int(15 * fig.get_figwidth())), x=0.01, ha="left", color=INK, fontsize=7)
    instead = str.maketrans(stand_ins)
    for axis, texts in labels.items():  # their formatter would write them again as they were
        if stand_ins.keys() & set("".join(texts)):
            axis.set_ticks(axis.get_ticklocs(), [text.translate(instead) for text in texts])
    for text in fig.findobj(Text):
        text.set(text=text.get_text().translate(instead), parse_math=text in mathematics, usetex=False)
        if text.get_text().isascii():
            text.set(family=fonts.LATIN)
        else:
            text.set(family=families, weight="normal")  # our font has no other


def _title(ax: Any, text: str) -> None:
    ax.set_title(" ".join(text.split()), color=INK, fontsize=11, loc="left")  # on one line


def _shortened(text: str, columns: int) -> str:
    """Cut the middle out of a text wider than so many columns, of which a Chinese character takes two."""
    if _columns(text) <= columns:
        return text
    kept = [text[:columns], text[-columns:]]
    while sum(map(_columns, kept)) > columns - 1:
        kept = [kept[0][:-1], kept[1]] if _columns(kept[0]) > _columns(kept[1]) else [kept[0], kept[1][1:]]
    return "\u2026".join(kept)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def loss_curve(
    path: str | Path,
    metrics: Sequence[dict[str, Any]],
    *,
    title: str,
    entropy_floor: float | None = None,
    oracle_loss: float | None = None,
) -> Path:
    """Draw training and held-out loss against the step, with the lines that no model can go below.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    metrics : sequence of dict
        With `step`, `ce_loss` and, where there was an evaluation, `val_loss`; nats a token.
    title : str
    entropy_floor, oracle_loss : float, optional
        Nats a token.
    """
    fig, ax = figure(7.2, 4.2)
    # A loss of 0, and none at all, have no place on a logarithmic axis.
    trained = [(m["step"], m["ce_loss"]) for m in metrics if m.get("ce_loss")]
    held = [(m["step"], m["val_loss"]) for m in metrics if m.get("val_loss")]
    ax.plot([step for step, _ in trained], [loss for _, loss in trained], color=TRAIN, lw=1.4, label="training")
    if held:
        ax.plot(*zip(*held), color=HELD_OUT, lw=1.6, marker="o", ms=4, label=f"held out (last {held[-1][1]:.3f})")
    if oracle_loss is not None:
        ax.axhline(oracle_loss, color=ORACLE, lw=1.2, ls="--", label=f"the grammar itself ({oracle_loss:.3f})")
    if entropy_floor is not None:
        ax.axhline(entropy_floor, color=FLOOR, lw=1.2, ls=":", label=f"entropy floor ({entropy_floor:.3f})")
    _title(ax, _shortened(title, 60))
    ax.set_xlabel("step", color=INK, fontsize=9)
    ax.set_ylabel("loss (nats a token)", color=INK, fontsize=9)
    drawn = [loss for _, loss in trained + held] + [v for v in (oracle_loss, entropy_floor) if v]
    if drawn:
        ax.set_yscale("log")
        _plain_log_ticks(ax, drawn)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(axis="y", color="#e6e9f0", lw=0.8)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    return save(fig, path)


def _plain_log_ticks(ax: Any, values: Sequence[float]) -> None:
    """Write 0.5, 1, 2, 5 on a logarithmic axis instead of powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    low, high = min(values) * 0.93, max(values) * 1.05
    ticks = [m * 10.0**e for e in range(-4, 4) for m in (1, 1.5, 2, 3, 4, 5, 7) if low <= m * 10.0**e <= high]
    if len(ticks) < 3:  # a short run: the loss has hardly moved
        ticks = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
    ax.set_ylim(low, high)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def attention_map(path: str | Path, weights: np.ndarray, tokens: Sequence[str], *, title: str) -> Path:
    """Draw which key (column) each query (row) looks at.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    weights : array (T, T)
        Rows sum to one.
    tokens : sequence of str
        The T tokens, along both axes.
    title : str
    """
    fig, ax = figure(7.2, 6.6)
    image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    labels = [_shortened(_visible(token), 12) for token in tokens]
    room = 375 / max(1, len(tokens))  # points from one token to the next
    size = min(8, max(4.5, 0.8 * room))
    each = math.ceil(1.2 * size / room)  # only every so many where all of them would lie on each other
    ax.set_xticks(range(0, len(tokens), each), labels[::each], fontsize=size)
    ax.set_yticks(range(0, len(tokens), each), labels[::each], fontsize=size)
    for label in ax.get_xticklabels():  # no character is much wider than it is high
        label.set_rotation(90 if size * len(label.get_text()) > each * room else 0)
    ax.tick_params(length=0)
    ax.set_xlabel("looks at", color=INK, fontsize=9)
    ax.set_ylabel("having read up to", color=INK, fontsize=9)
    _title(ax, _shortened(title, 60))
    bar = fig.colorbar(image, ax=ax, shrink=0.6, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    return save(fig, path)


MARKS = {" ": "\u2423", "\n": "\u21b5", "\t": "\u21e5"}
JOINERS = "\u200c\u200d"


def _visible(token: str) -> str:
    """Spell a token so that one sees what is in it: spaces as marks, what cannot be seen by its number."""
    seen = [
        MARKS.get(c, c if c.isprintable() or (c in JOINERS and len(token) > 1) else f"U+{ord(c):04X}") for c in token
    ]
    alone = bool(seen) and unicodedata.combining(seen[0][0])  # an accent needs something below it
    return "".join(["\u25cc", *seen] if alone else seen) or "(empty)"


def step_parts(path: str | Path, steps: Mapping[str, Mapping[str, float]]) -> Path:
    """Draw what the time of a training step goes into, a bar for each size.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    steps : mapping from size to {part: seconds}
        The parts are `products`, `attention`, `element_wise` and `optimizer`, and add up to the step.
    """
    fig, ax = figure(7.2, 1.5 + 0.5 * len(steps))
    colours = {"products": HELD_OUT, "attention": TRAIN, "element_wise": ORACLE, "optimizer": FLOOR}
    whole = [sum(parts.values()) for parts in steps.values()]
    left = np.zeros(len(steps))
    for part, colour in colours.items():
        share = [max(parts[part], 0.0) / total for parts, total in zip(steps.values(), whole)]
        bars = ax.barh(range(len(steps)), share, left=left, color=colour, height=0.62, label=part.replace("_", "-"))
        text = [f"{s:.0%}" if s >= 0.04 else "" for s in share]
        ax.bar_label(bars, text, label_type="center", color=INK if colour == TRAIN else "white")
        left += share
    labels = [f"{size}\n{1e3 * total:,.0f} ms" for size, total in zip(steps, whole)]
    ax.set_yticks(range(len(steps)), labels, fontsize=9)
    ax.invert_yaxis()
    ax.set_xticks([])
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
    _title(ax, "What the time of a training step goes into")
    legend = {"frameon": False, "fontsize": 9, "labelcolor": INK}
    fig.legend(loc="outside lower center", ncols=4, **legend)
    return save(fig, path)


def crossover(path: str | Path, widths: Sequence[int], tokens_per_s: Mapping[str, Sequence[float]]) -> Path:
    """Draw how fast training is on two devices, by the width of the model, and where the second overtakes the first.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    widths : sequence
        Rising.
    tokens_per_s : mapping from the name of a device to a number for each width
        The CPU first.
    """
    fig, ax = figure(7.2, 4.2)
    for (device, speeds), colour in zip(tokens_per_s.items(), (TRAIN, HELD_OUT)):
        ax.loglog(widths, speeds, "o-", color=colour, linewidth=2, markersize=4, label=device)
    first, second = tokens_per_s.values()
    won = [width for width, a, b in zip(widths, first, second) if b > a]
    said = f"the GPU is faster from width {won[0]}" if won else "the CPU is faster at each of these widths"
    if won:
        ax.axvline(won[0], color=SOFT, linewidth=1, linestyle=":")
    ax.set_xticks(list(widths), [str(width) for width in widths])
    steps = [m * 10.0**e for e in range(-2, 9) for m in (1, 2, 5)]
    low = max(step for step in steps if step <= min(*first, *second))
    high = min(step for step in steps if step >= max(*first, *second))
    ticks = [step for step in steps if low <= step <= high]
    ax.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    ax.set_ylim(0.9 * low, 1.1 * high)
    ax.minorticks_off()
    ax.grid(axis="y", color="#e6e9f0", lw=0.8)
    ax.set_xlabel("width of the model", color=INK)
    ax.set_ylabel("tokens/s, training", color=INK)
    _title(ax, f"Training on CPU and GPU: {said}")
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    return save(fig, path)


# -- gradient checks -------------------------------------------------------------------------------------------------

CURVE_COLOURS = ("#1f5fa8", "#c2571a", "#2f8f5b", "#7a4fa3", "#3f9bb3", "#a8456b")
EMPTY, MISSED, NOTICED, LESSON, CONSISTENT = "#f4f5f8", "#dfe3ec", "#1f5fa8", "#e0853f", "#7a4fa3"


def step_sizes(
    path: str | Path,
    *,
    steps: Sequence[float],
    chosen: float,
    curves: Mapping[str, Sequence[float]],
    float32: tuple[str, Sequence[float]],
) -> Path:
    """Draw the error of a central difference against its step: rounding on the left, truncation on the right.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    steps : sequence of float
        In units of the tensor's rms.
    chosen : float
        The step that the checks take.
    curves : mapping from layer to errors
        Relative, one for each step.
    float32 : (layer, errors)
        The same in single precision.
    """
    fig, ax = figure(7.2, 4.6)
    ax.axvline(chosen, color=INK, lw=1, ls=":")
    ax.annotate(
        f"the step of the checks,\n{chosen * 1e6:g} millionths of the rms",
        (chosen, 0.3),
        (6, 0),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color=INK,
    )
    for (layer, errors), colour in zip(curves.items(), CURVE_COLOURS):
        ax.plot(steps, errors, color=colour, lw=1.5, label=layer)
    layer, errors = float32
    kept = [(h, e) for h, e in zip(steps, errors) if h >= 1e-8]  # below, float32 does not move at all
    ax.plot(*zip(*kept), color=SOFT, lw=1.5, ls="--", label=f"{layer} in float32")
    ax.text(1e-12, 1e-8, "rounding\ngrows as 1 / h", fontsize=9, color=INK, va="top")
    ax.text(5e-3, 1e-7, "truncation\ngrows as h\u00b2", fontsize=9, color=INK, va="top")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min(steps), max(steps))
    ax.set_ylim(1e-12, 1)
    ax.set_xlabel("step h / rms of the tensor", color=INK, fontsize=9)
    ax.set_ylabel("relative error of the difference", color=INK, fontsize=9)
    _title(ax, "Too small a step rounds, too large a step bends")
    ax.grid(color="#e6e9f0", lw=0.8)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return save(fig, path)


def error_heat_map(
    path: str | Path,
    table: Mapping[str, Mapping[str, float]],
    kinds: Sequence[str],
    *,
    title: str = "Worst relative error of analytic against numeric, log10",
    span: tuple[int, int] = (-14, -4),
) -> Path:
    """Draw the worst relative error of each layer (row) and kind of tensor (column), as a power of ten.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    table : mapping from layer to {kind: error}
    kinds : sequence of str
        The columns; those without an entry are left out.
    title : str
    span : (int, int)
        The powers of ten at the two ends of the colours.
    """
    kinds = [kind for kind in kinds if any(kind in row for row in table.values())]
    exponents = np.full((len(table), len(kinds)), np.nan)
    for i, row in enumerate(table.values()):
        for j, kind in enumerate(kinds):
            if kind in row:
                exponents[i, j] = np.log10(min(max(row[kind], 1e-16), 1.0))  # -16: equal to the last bit
    fig, ax = figure(2.2 + 0.62 * len(kinds), 1.3 + 0.36 * len(table))
    low, high = span
    image = ax.imshow(exponents, cmap="YlGnBu_r", vmin=low, vmax=high, aspect="auto")
    for i, j in np.argwhere(np.isfinite(exponents)):
        dark = exponents[i, j] < 0.55 * low + 0.45 * high
        text = "equal" if exponents[i, j] == -16 else f"{exponents[i, j]:.1f}"
        ax.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else INK)
    slanted = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if max(map(len, kinds), default=0) > 8 else {}
    ax.set_xticks(range(len(kinds)), kinds, fontsize=9, **slanted)
    ax.set_yticks(range(len(table)), [name.replace("_", " ") for name in table], fontsize=9)
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    _title(ax, title)
    bar = fig.colorbar(image, ax=ax, shrink=0.8, pad=0.02, ticks=range(low, high + 1, 2 if high - low > 5 else 1))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    return save(fig, path)


def kill_matrix(
    path: str | Path,
    cells: Mapping[str, Mapping[str, bool]],
    groups: Mapping[str, str],
    consistent: Sequence[str],
    strong: Sequence[str],
    weak: Sequence[str],
) -> Path:
    """Draw which check notices which mutant, many mutants in two panels beside each other.

    Parameters
    ----------
    path : path
        Of the PNG to write.
    cells : mapping from mutant to {column: noticed}
        A column that does not apply is absent.
    groups : mapping from mutant to layer
        A line is drawn between layers.
    consistent : sequence of str
        Mutants that are wrong in forward and backward alike.
    strong, weak : sequences of str
        The columns: the checks of the layer itself, and the weak ones.
    """
    from matplotlib.patches import Patch

    names = list(cells)
    panels = 1 if len(names) <= 40 else 2
    rows = -(-len(names) // panels)
    label = 11.0  # width of the names, in cells
    places = {c: label + j + (0.6 if c in weak else 0) for j, c in enumerate([*strong, *weak])}
    width = label + len(places) + 2
    fig, ax = figure(0.26 * width * panels, 2.1 + 0.185 * rows)
    for n, name in enumerate(names):
        left, y = n // rows * width, n % rows
        if y and groups[name] != groups[names[n - 1]]:
            ax.plot((left + 0.3, left + width - 1.4), (y - 0.5, y - 0.5), color=SOFT, lw=0.6)
        colour = CONSISTENT if name in consistent else INK
        ax.text(left + label - 0.3, y, name, ha="right", va="center", fontsize=6.5, color=colour)
        for column, x in places.items():
            ax.add_patch(_square(left + x, y, _cell_colour(cells[name].get(column), column in weak)))
    for left in np.arange(panels) * width:
        for column, x in places.items():
            place = (left + x + 0.45, -0.9)
            ax.text(*place, column, rotation=55, rotation_mode="anchor", fontsize=7, color=INK)
        for first, text in ((strong[0], "its own checks"), (weak[0], "weak checks")):
            ax.text(left + places[first] + 1.9, -6.6, text, fontsize=7.5, color=INK, weight="bold")
    ax.set_xlim(0, width * panels)
    ax.set_ylim(rows - 0.4, -7.6)
    ax.axis("off")
    handles = [
        Patch(color=NOTICED, label="notices the bug"),
        Patch(color=MISSED, label="does not: another check's task"),
        Patch(color=LESSON, label="weak check that passes on wrong code"),
        Patch(facecolor=EMPTY, edgecolor="#d5d9e3", label="does not apply"),
        Patch(color="none", label="purple name: wrong in forward and backward alike"),
    ]
    legend = fig.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8, labelcolor=INK)
    legend.get_texts()[-1].set_color(CONSISTENT)
    _title(ax, f"Which check notices which of {len(names)} bugs")
    return save(fig, path)


def _cell_colour(noticed: bool | None, is_weak: bool) -> str:
    if noticed is None:
        return EMPTY
    if noticed:
        return NOTICED
    return LESSON if is_weak else MISSED


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.06, y - 0.44), 0.88, 0.88, facecolor=colour, lw=0)
