"""Image files from outside: which are opened, how large they may be, and how each kind of pixel becomes RGB.

8 bits or fewer   grey, palette, RGB, CMYK, YCbCr, HSV: as Pillow converts them; transparent pixels become white
16 bits, grey     the full range, 0 to 65535, becomes 0 to 255; so do the 12 bits of a TIFF file, from 0 to 4095
16 bits, colour   the upper 8 bits, which is how Pillow reads them
32 bits, float,   refused: these numbers have no range that is black to white
signed
LAB               refused: its conversion needs a colour profile
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from srepr.errors import InputError
from srepr.storage.outside import open_regular

FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "TGA", "ICO")
"""Formats that are decoded. Others of Pillow start programs (EPS) or have no pixels of their own."""
LARGEST_FILE = 1 << 30
LARGEST_IMAGE = 1 << 26
"""Pixels of a decoded image, 8192 x 8192. A JPEG that is not progressive may have more, decoded at a smaller scale."""
_CONVERTED = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"}
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
"""Tags of TIFF."""
_SIGNED = 2


@contextmanager
def open_image(path: str | Path) -> Iterator[Image.Image]:
    """An image file with pixels that become RGB; nothing of them is decoded yet.

    >>> path = getfixture("tmp_path") / "depth.tif"
    >>> Image.new("F", (4, 3)).save(path)
    >>> with open_image(path) as image:
    ...     pass
    Traceback (most recent call last):
    srepr.errors.InputError: its pixels are F: numbers without a range from black to white. Save it with 8 or 16 bits
    """
    with open_regular(path, LARGEST_FILE) as file:
        try:
            image = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            raise InputError("it is no image in a format that srepr reads") from None
        with image:
            check_mode(image)
            if image.info.get("progressive"):  # decoded in full, at whatever scale
                check_size(image)
            yield image


def check_mode(image: Image.Image) -> None:
    """Raise an InputError unless the image has pixels that become RGB."""
    if image.mode not in _CONVERTED and not _is_16_bit(image):
        why = (
            "numbers without a range from black to white. Save it with 8 or 16 bits"
            if image.mode in ("I", "F")
            else "not converted. Save it as RGB"
        )
        raise InputError(f"its pixels are {image.mode}: {why}")
    if _SIGNED in getattr(image, "tag_v2", {}).get(_SAMPLE_FORMAT, ()):  # Pillow takes those of 8 bits for unsigned
        raise InputError("its pixels may be negative: numbers without a range from black to white. Save it unsigned")


def check_size(image: Image.Image) -> None:
    """Raise an InputError if there are too many pixels to decode."""
    width, height = image.size
    if width * height > LARGEST_IMAGE:
        raise InputError(f"it has {width:,} x {height:,} pixels, more than {LARGEST_IMAGE:,}. Scale it down")


def as_rgb(image: Image.Image) -> Image.Image:
    """The image as RGB on white: what lies under transparent pixels is arbitrary, mostly black.

    >>> as_rgb(Image.new("I;16", (1, 1), 40_000)).getpixel((0, 0))
    (156, 156, 156)
    >>> as_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    check_mode(image)
    check_size(image)
    if _is_16_bit(image):
        return _eight_bits(image).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _is_16_bit(image: Image.Image) -> bool:
    """Whether the pixels are grey from 0 to 65535. Some versions of Pillow read such PNG and PGM files as 32 bits."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _eight_bits(image: Image.Image) -> Image.Image:
    tags = getattr(image, "tag_v2", {})
    (bits,) = tags.get(_BITS_PER_SAMPLE, (16,))
    grey = np.rint(np.arange(1 << 16) * (255 / ((1 << bits) - 1))).clip(0, 255).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:  # white is zero
        grey = 255 - grey
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[transparent] = 255
    return Image.fromarray(grey[np.asarray(image).clip(0, (1 << 16) - 1)])


def absence(path: str | Path) -> str:
    """How a file is missing: it does not exist, or a link leads nowhere.

    >>> absence("nowhere.jpg")
    'does not exist'
    """
    # Not those of Path, which fail on names that no file can have.
    return f"is a broken link to {os.readlink(path)}" if os.path.islink(path) else "does not exist"  # noqa: PTH114, PTH115
