"""How every figure looks: one palette and marker per technique, sizes, footer, saving.

Colours are Okabe and Ito's, distinguishable with colour-blindness; markers and line styles tell
the techniques apart in black and white. A technique looks the same in every figure.
"""
from __future__ import annotations

import io
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import LogLocator  # noqa: E402

from analysis.results import FOOTER_ATTRIBUTES, Curve, Results  # noqa: E402

ONE_COLUMN_IN, TWO_COLUMNS_IN = 3.35, 7.0  # widths in a two-column paper
PNG_DPI = 200
# How far the twin of a device was checked against what others measured of whole runs: by the
# profile's name, in the footer of every figure but the check's own.
CHECKED = {"A10-24G": ("caraserve/a10g", "the A10's twin was checked against S-LoRA's own runs "
                       "only: MBGMV, one device, pinned copies, up to saturation (caraserve/a10g)")}
GREY, RED = "#7f7f7f", "#b00020"
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

plt.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": 7.5, "axes.labelsize": 7.5, "axes.titlesize": 7.5,
    "legend.fontsize": 6.8, "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": "#dddddd", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "lines.linewidth": 1.2, "lines.markersize": 4, "errorbar.capsize": 2, "legend.frameon": False,
    "pdf.fonttype": 42, "ps.fonttype": 42, "savefig.dpi": PNG_DPI, "figure.dpi": PNG_DPI,
})


@dataclass(frozen=True)
class Look:
    """How a technique is drawn; `hatch` for bars, `hollow` for a named variant of another one."""

    label: str
    color: str
    marker: str
    line: str | tuple
    hatch: str = ""
    hollow: bool = False


LOOKS = {
    "merged-only": Look("Merged-only", ORANGE, "s", "--", "//"),
    "unmerged-only": Look("Unmerged-only", BLUE, "^", "-.", "\\\\"),
    "dlora": Look("dLoRA", VERMILION, "o", "-"),
    "dlora-artifact": Look("dLoRA (artifact's rules)", "#eba673", "o", (0, (1, 1)), "..", True),
    "slora": Look("S-LoRA", GREEN, "D", (0, (5, 1)), "xx"),
    "punica": Look("Punica", PURPLE, "v", (0, (3, 1, 1, 1)), "++"),
    "vllm-uniform": Look("vLLM", BLACK, "X", ":", "--"),
    "peft": Look("PEFT", SKY, "P", (0, (3, 1, 1, 1, 1, 1)), "oo"),
    "caraserve": Look("CaraServe", VERMILION, "h", "-", "**"),
    "cached": Look("Cached", BLACK, "s", (0, (1, 1)), ".."),
    "ondmd": Look("On demand", SKY, "^", "--", "xx"),
    "rank-aware": Look("Rank-aware", VERMILION, "P", "-"),
    "most-idle": Look("Most idle", BLUE, "s", "--", "//"),
    "random": Look("Random", GREEN, "^", "-.", "\\\\"),
    "proposed": Look("Proposed", VERMILION, "*", "-"),
    "proposed-fast": Look("ProposedFast", ORANGE, "*", "--"),
    "proposed-lat": Look("ProposedLat", BLUE, "*", "--"),
    "maxbase": Look("MaxBase", SKY, "d", ":"),
    "maxbase*": Look("MaxBase*", PURPLE, "d", "-."),
    "dlora-proactive": Look("dLoRA proactive", BLACK, "d", ":"),
    "first-fit": Look("First fit", PURPLE, "<", ":", "++"),
    "rr": Look("RR", BLUE, "v", ":", "\\\\"),
    "proactive": Look("Proactive", GREEN, "s", "--", "//"),
    "optimum": Look("Optimum: one type, merged", "#9a9a9a", "_", "--"),
    "muxserve": Look("MuxServe", VERMILION, "p", "-", "OO"),
    "infinilora": Look("InfiniLoRA", VERMILION, ">", "-", "||"),
}
SPARE = [Look("", color, marker, line) for color, marker, line in [
    (SKY, "<", ":"), (PURPLE, "*", "--"), (GREEN, "d", "-."), (BLACK, "p", (0, (5, 1))),
    (ORANGE, "h", "-"), (BLUE, ">", (0, (1, 1)))]]


def plain(text: object) -> str:
    """Text that came from a spec, for matplotlib: a $ is a dollar, not the start of a formula."""
    return str(text).replace("$", r"\$")


def look(technique: str) -> Look:
    """The technique's look, also for a variant named "technique (what differs)"; an unlisted name
    gets a spare one that depends on the name alone."""
    base = technique.split(" (")[0]
    if base in LOOKS:
        return LOOKS[base]
    spare = SPARE[sum(technique.encode()) % len(SPARE)]
    return Look(plain(technique), spare.color, spare.marker, spare.line)


def draw_curve(axes: Axes, curve: Curve, label: str | None = None, scale: float = 1.0) -> None:
    """The mean over seeds with error bars (95 % CI); a red x marks values from INVALID points."""
    style = look(curve.technique)
    axes.errorbar(curve.x, curve.mean * scale, yerr=_bars(curve) * scale, color=style.color,
                  marker=style.marker, linestyle=style.line, label=label or style.label,
                  markerfacecolor="white" if style.hollow else style.color,
                  elinewidth=0.8, zorder=3)
    mark_invalid(axes, curve.x[curve.invalid], curve.mean[curve.invalid] * scale)


def _bars(curve: Curve) -> np.ndarray:
    return np.nan_to_num(curve.half_width, nan=0.0)


def mark_invalid(axes: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Red crosses over values that come from INVALID points."""
    if len(x):
        axes.plot(x, y, linestyle="none", marker="x", color=RED, markersize=8,
                  markeredgewidth=1.5, zorder=6)


def draw_published(axes: Axes, technique: str, x: np.ndarray, y: np.ndarray) -> None:
    """Published points: grey and hollow, with the technique's marker and a thin line."""
    axes.plot(x, y, color="#b0b0b0", marker=look(technique).marker, markerfacecolor="white",
              markeredgecolor=GREY, linestyle=look(technique).line, linewidth=0.7, markersize=4,
              markeredgewidth=0.7, zorder=2)


def published_handle(label: str = "published (artifact)") -> plt.Line2D:
    """A legend entry for everything that draw_published draws."""
    return plt.Line2D([], [], color="#b0b0b0", marker="o", markerfacecolor="white",
                      markeredgecolor=GREY, linewidth=0.7, markersize=4, label=label)


def limit_line(axes: Axes, value: float, label: str) -> plt.Line2D:
    """A thin grey line across at a latency limit; returns its legend entry."""
    return axes.axhline(value, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1,
                        label=label)


def log_axes(axes: Axes, x: list[float]) -> None:
    """Logarithmic in both directions, plain numbers at the ticks; just wide enough for `x`."""
    axes.set(xscale="log", yscale="log", xlim=(min(x) / 1.3, max(x) * 1.3))
    if max(x) < 50 * min(x):
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")


def category_axis(axes: Axes, values: list, label: str) -> None:
    """A log-2 axis with a tick at each value when they are powers of two, a plain one otherwise."""
    numbers = [value for value in values if isinstance(value, (int, float)) and value > 0]
    if len(numbers) == len(values) > 1 and all(np.log2(value) % 1 == 0 for value in numbers):
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [f"{value:g}" for value in numbers])
        axes.minorticks_off()
    elif len(numbers) == len(values):
        axes.set_xticks(numbers if len(numbers) <= 12 else axes.get_xticks())
    axes.set_xlabel(label)


def scale_y(axes: Axes) -> None:
    """From zero upwards; logarithmic where the curves span more than a factor of 20."""
    drawn = np.concatenate([np.ravel(line.get_ydata()) for line in axes.get_lines()
                            if line.get_linestyle() != "None"]).astype(float)
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if drawn.size and drawn.max() > 20 * drawn.min():
        axes.set_yscale("log")
        axes.set_ylim(drawn.min() / 2, drawn.max() * 2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)


def panel_label(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontweight="bold")


def cell_table(axes: Axes, rows: list[list[str]], heads: list[str], widths: list[float],
               red: list[bool], grey: list[bool] | None = None) -> None:
    """A table in place of the panel; some rows' text in red, others' background grey."""
    axes.axis("off")
    table = axes.table(rows, colLabels=heads, loc="upper center", cellLoc="center",
                       colWidths=widths)
    table.auto_set_font_size(False)
    table.set_fontsize(6.5)
    for (row, _), cell in table.get_celld().items():
        cell.set_linewidth(0.3)
        if row > 0 and red[row - 1]:
            cell.get_text().set_color(RED)
        if row > 0 and grey and grey[row - 1]:
            cell.set_facecolor("#eeeeee")


def version(results: Results) -> str:
    """The servelab version that ran the points, from the results; empty when not recorded."""
    found = results.attributes.get("version", "")
    return found or str(results.point(0).context().get("servelab", ""))


def footer_text(results: Results, note: str = "") -> str:
    """What the figure came from: backend, hardware, model, trace, seeds, version."""
    parts = [f"{name}: {plain(results.attributes.get(name) or 'not recorded')}"
             for name in FOOTER_ATTRIBUTES]
    hardware = str(results.attributes.get("hardware")).split(", ")
    parts += [text for name, (figure, text) in CHECKED.items()
              if any(one.startswith(name) for one in hardware)
              and "twin" in str(results.attributes.get("backend"))
              and results.attributes.get("figure") != figure]
    count = len(results.seeds)
    parts.append(f"{count} seed{'s' if count != 1 else ''}" + (f", {note}" if note else ""))
    parts.append(f"servelab {version(results)}".strip())
    return " · ".join(parts)


def finish(figure: Figure, results: Results, handles: list | None = None, columns: int = 0,
           note: str = "error bars: 95 % CI over seeds") -> None:
    """Adds the legend above the panels, the footer below, and a banner when points are INVALID."""
    width_in, height_in = figure.get_size_inches()
    lines = textwrap.wrap(footer_text(results, note), int(width_in * 25))
    figure.text(0.5, 0.03 / height_in, "\n".join(lines), ha="center", va="bottom",
                fontsize=5.2, color="#555555", linespacing=1.1)
    bottom_in = 0.08 + 0.095 * len(lines)
    if results.invalid_count:
        figure.text(0.5, bottom_in / height_in, f"INVALID: {results.invalid_count} of "
                    f"{len(results.columns['key'])} points (x where drawn)", ha="center",
                    va="bottom", fontsize=8, fontweight="bold", color=RED)
        bottom_in += 0.18
    figure.set_layout_engine("constrained", rect=(0, bottom_in / height_in, 1,
                                                  1 - bottom_in / height_in),
                             h_pad=0.03, w_pad=0.05)
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=columns or len(handles),
                      columnspacing=1.2, handlelength=2.6)


def settle(figure: Figure) -> None:
    """Lays the panels out for good. The layout's solver leaves the last bits of their places to
    chance, which now and then shows in the sixth decimal of a PDF: they are rounded away."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(np.round(axes.get_position(original=True).bounds, 7))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes name.pdf and name.png into the folder, both or neither; the same input gives the
    same bytes. Closes the figure and returns the paths."""
    settle(figure)
    metadata = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
    pictures = {}
    try:
        for kind, entries in metadata.items():
            picture = io.BytesIO()
            figure.savefig(picture, format=kind, metadata=entries)
            pictures[f"{name}.{kind}"] = picture.getvalue()
    finally:
        plt.close(figure)
    return write_files(folder, pictures)


def write_files(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    """Writes files by name into the folder, all or none of them, each whole."""
    parts = {name: folder / f".{name}.part" for name in contents}
    try:
        for name, content in contents.items():
            with parts[name].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for name, part in parts.items():
            os.replace(part, folder / name)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return [folder / name for name in contents]


def write_text(folder: Path, name: str, text: str) -> Path:
    """Writes a text file beside the pictures, whole or not at all."""
    return write_files(folder, {name: text.encode()})[0]
