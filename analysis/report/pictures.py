"""Figures as data URIs, for a page that loads nothing.

A PNG with a palette of 128 colours looks the same and is a third of what analysis.draw writes; as
base64 it is less than half of that, and a third of the same figure as SVG, where text is outlines.
"""
from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

COLORS = 128


@dataclass(frozen=True)
class Picture:
    """A figure's PNG; sizes in its own pixels."""

    path: Path
    uri: str
    width: int
    height: int


def picture(path: Path) -> Picture:
    """Raises OSError for a file that is absent, cut short, or no picture."""
    try:
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    except (UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise OSError(f"{path.name} is not a picture: {error}") from None
    content = io.BytesIO()
    few.save(content, "PNG", optimize=True)
    uri = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    return Picture(path, uri, few.width, few.height)
