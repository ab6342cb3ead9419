"""Pictures: the loss curve of a run, and what attention looks at. The only importer of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

INK, SOFT, TRAIN, HELD_OUT, ORACLE, FLOOR = "#1f2430", "#8b93a7", "#9db7d5", "#1f5fa8", "#c2571a", "#2f8f5b"
# Fonts that have Chinese glyphs, where the machine has one of them.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Microsoft YaHei",
    "SimHei",
)


def figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a (figure, axes) that draws to files only: no display, no global state, nothing to close.

    Raises
    ------
    ImportError
        Naming the extra to install, when matplotlib is absent.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'numpy-minimind[train]'") from error
    fig = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(fig)
    ax = fig.add_subplot()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(SOFT)
    ax.tick_params(colors=INK, labelsize=9)
    return fig, ax


def save(fig: Any, path: str | Path) -> Path:
    """Write the figure as PNG."""
    fig.savefig(path, format="png", facecolor="white")
    return Path(path)


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
    steps = [m["step"] for m in metrics]
    losses = [m["ce_loss"] for m in metrics]
    ax.plot(steps, losses, color=TRAIN, lw=1.4, label="training")
    held = [(m["step"], m["val_loss"]) for m in metrics if m.get("val_loss") is not None]
    if held:
        ax.plot(*zip(*held), color=HELD_OUT, lw=1.6, marker="o", ms=4, label=f"held out (last {held[-1][1]:.3f})")
    if oracle_loss is not None:
        ax.axhline(oracle_loss, color=ORACLE, lw=1.2, ls="--", label=f"the grammar itself ({oracle_loss:.3f})")
    if entropy_floor is not None:
        ax.axhline(entropy_floor, color=FLOOR, lw=1.2, ls=":", label=f"entropy floor ({entropy_floor:.3f})")
    ax.set_title(title, color=INK, fontsize=11, loc="left")
    ax.set_xlabel("step", color=INK, fontsize=9)
    ax.set_ylabel("loss (nats a token)", color=INK, fontsize=9)
    ax.set_yscale("log")
    _plain_log_ticks(ax, losses + [loss for _, loss in held] + [v for v in (oracle_loss, entropy_floor) if v])
    ax.grid(axis="y", color="#e6e9f0", lw=0.8)
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    return save(fig, path)


def _plain_log_ticks(ax: Any, values: Sequence[float]) -> None:
    """Write 0.5, 1, 2, 5 on a logarithmic axis instead of powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(values) * 0.93, max(values) * 1.05
    ticks = [m * 10.0**e for e in range(-4, 4) for m in (1, 1.5, 2, 3, 4, 5, 7) if low <= m * 10.0**e <= high]
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
        The T characters, along both axes.
    title : str
    """
    from matplotlib import font_manager

    fig, ax = figure(7.2, 6.6)
    image = ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    installed = {font.name for font in font_manager.fontManager.ttflist}
    family = [name for name in CHINESE_FONTS if name in installed] + ["DejaVu Sans"]
    labels = [_visible(token) for token in tokens]
    if family == ["DejaVu Sans"]:  # no glyph for a Chinese character: name it by its place instead of an empty box
        labels = [label if label.isascii() else "\u00b7" for label in labels]
    ax.set_xticks(range(len(tokens)), labels, family=family, fontsize=8)
    ax.set_yticks(range(len(tokens)), labels, family=family, fontsize=8)
    ax.tick_params(length=0)
    ax.set_xlabel("looks at", color=INK, fontsize=9)
    ax.set_ylabel("having read up to", color=INK, fontsize=9)
    ax.set_title(title, color=INK, fontsize=11, loc="left")
    bar = fig.colorbar(image, ax=ax, shrink=0.6, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    return save(fig, path)


def _visible(token: str) -> str:
    return {" ": "\u2423", "\n": "\u21b5"}.get(token, token)
