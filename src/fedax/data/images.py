"""Decodes images to pixels, in a few kinds that differ by dtype and shape."""

from __future__ import annotations

from typing import Any

import numpy as np

# Pillow's modes that hold numbers as they are: 8 bits; 16 bits; whole numbers; floating point.
_KEPT = {"L", "LA", "RGB", "RGBA", "I", "F"}
# What the other modes mean. A palette is in `pixels_of`.
_CONVERTED = {
    "1": "L", "CMYK": "RGB", "YCbCr": "RGB", "HSV": "RGB", "RGBX": "RGB", "La": "LA",
    "RGBa": "RGBA", "PA": "RGBA",
}
_ORIENTATION = 0x0112


class ColourError(ValueError):
    """An image has a colour mode that fedax does not read; the message is a phrase."""


def pixels_of(image: Any) -> np.ndarray:
    """The pixels of an opened Pillow image.

    Palettes become RGB or, with transparency, RGBA; 1-bit images become 0 and 255; CMYK and other
    colour spaces become RGB. An orientation tag is applied.

    Args:
      image: as `PIL.Image.open` gives it.

    Returns:
      [height, width] of uint8 (grey), uint16, int32 or float32, or uint8 [height, width, channels]
      with 2 (grey, alpha), 3 (RGB) or 4 (RGBA).

    Raises:
      ColourError: if its colours cannot be converted to RGB.

    Example:
      >>> from PIL import Image
      >>> image = Image.new("P", (1, 1))
      >>> image.putpalette([10, 20, 30])
      >>> pixels_of(image).tolist()
      [[[10, 20, 30]]]
    """
    if image.getexif().get(_ORIENTATION, 1) != 1:
        from PIL import ImageOps  # noqa: PLC0415 - few images are turned

        image = ImageOps.exif_transpose(image)
    mode = image.mode
    if mode.startswith("I;16"):
        return np.asarray(image).astype(np.uint16)
    if mode in _KEPT:
        return np.asarray(image)
    if mode == "P":
        return np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB"))
    if mode not in _CONVERTED:
        raise ColourError(
            f"has the colour mode {mode}, which fedax does not read. Convert it to RGB."
        )
    return np.asarray(image.convert(_CONVERTED[mode]))


def kind_of_pixels(pixels: np.ndarray) -> str:
    """What an image is, in words.

    Example:
      >>> kind_of_pixels(np.zeros((28, 20, 3), np.uint8))
      'RGB uint8[28, 20, 3]'
    """
    channels = {2: "grey with alpha", 3: "RGB", 4: "RGBA"}
    name = "grey" if pixels.ndim == 2 else channels[pixels.shape[2]]
    return f"{name} {pixels.dtype}{list(pixels.shape)}"
