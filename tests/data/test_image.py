"""Every kind of pixel becomes RGB over its full range, or is refused by name."""

import os
import socket

import numpy as np
import pytest
from PIL import Image

from srepr.data.augment import central_box, decode
from srepr.data.files import why_bad
from srepr.data.image import LARGEST_IMAGE, as_rgb
from srepr.errors import InputError

EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
REFUSED = ("I", "F", "LAB", "La", "RGBa")


@pytest.mark.parametrize("mode", [*EIGHT_BITS, *SIXTEEN_BITS])
def test_black_grey_and_white_stay_what_they_are(mode):
    pixels = {}
    for name, level in (("black", 0), ("grey", 160), ("white", 255)):
        image = Image.new("L", (2, 2), level)
        if mode in SIXTEEN_BITS:
            image = Image.new(mode, (2, 2), level * 257)
        elif mode in ("PA", "HSV", "RGBX"):
            image = image.convert("P").convert("PA") if mode == "PA" else image.convert("RGB").convert(mode)
        else:
            image = image.convert(mode)
        pixels[name] = as_rgb(image).getpixel((0, 0))
    assert pixels["black"] == (0, 0, 0)
    assert pixels["white"] == (255, 255, 255)
    assert mode == "1" or max(abs(channel - 160) for channel in pixels["grey"]) <= 2


@pytest.mark.parametrize("mode", REFUSED)
def test_pixels_without_a_range_are_refused_by_name(mode):
    with pytest.raises(InputError, match=f"its pixels are {mode}: "):
        as_rgb(Image.new(mode, (2, 2)))


def test_there_is_no_other_kind_of_pixel():
    assert {*EIGHT_BITS, *SIXTEEN_BITS, *REFUSED} >= set(Image.MODES)


@pytest.mark.parametrize("name", ["ramp.png", "ramp.tif", "ramp.pgm"])
def test_a_file_of_16_bits_is_read_over_its_full_range(tmp_path, name):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)
    Image.fromarray(np.tile(ramp, (256, 1))).save(tmp_path / name)
    row = np.asarray(decode(tmp_path / name, 256, lambda width, height: (0, 0, width, height)))[0, :, 0]
    assert np.abs(row.astype(int) - np.arange(256)).max() <= 1


def test_white_may_be_zero_and_the_transparent_level_is_white(tmp_path):
    levels = np.array([[0, 65535]], np.uint16).repeat(2, 0)
    Image.fromarray(levels).save(tmp_path / "inverted.tif", tiffinfo={262: 0})
    Image.fromarray(levels).save(tmp_path / "seen through.png", transparency=0)
    whole = lambda width, height: (0, 0, width, height)  # noqa: E731
    assert np.asarray(decode(tmp_path / "inverted.tif", 2, whole))[0, :, 0].tolist() == [255, 0]
    assert np.asarray(decode(tmp_path / "seen through.png", 2, whole))[0, :, 0].tolist() == [255, 255]


@pytest.mark.parametrize(("name", "mode"), [("depth.tif", "F"), ("depth.tif", "I"), ("depth.pfm", "F")])
def test_numbers_without_a_range_are_refused_in_every_way(tmp_path, name, mode):
    Image.new(mode, (16, 16)).save(tmp_path / name)
    assert f"its pixels are {mode}" in why_bad(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} cannot be decoded: its pixels are {mode}"):
        decode(tmp_path / name, 8, central_box)


def test_a_tiff_file_of_signed_pixels_is_refused(tmp_path):
    Image.new("L", (16, 16), 128).save(tmp_path / "depth.tif", tiffinfo={339: 2})
    with pytest.raises(InputError, match=r"depth.tif cannot be decoded: its pixels may be negative"):
        decode(tmp_path / "depth.tif", 8, central_box)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    side = int(LARGEST_IMAGE**0.5) + 1
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    assert "pixels, more than" in why_bad(tmp_path / "bomb.png")
    with pytest.raises(InputError, match=r"pixels, more than .*Scale it down"):
        decode(tmp_path / "bomb.png", 32, central_box)


def test_a_large_jpeg_is_decoded_at_a_smaller_scale_unless_it_is_progressive(tmp_path):
    side = int(LARGEST_IMAGE**0.5) + 1
    image = Image.new("L", (side, side), 200)
    image.save(tmp_path / "large.jpg")
    assert decode(tmp_path / "large.jpg", 32, central_box).getpixel((0, 0)) == (200, 200, 200)
    image.save(tmp_path / "bomb.jpg", progressive=True)
    assert "pixels, more than" in why_bad(tmp_path / "bomb.jpg")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    (tmp_path / "folder.jpg").mkdir()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket.jpg"))
        for kind in ("pipe", "device", "folder", "socket"):
            assert f"is a {kind}" in why_bad(tmp_path / f"{kind}.jpg")
            with pytest.raises(InputError, match=f"is a {kind}"):
                decode(tmp_path / f"{kind}.jpg", 32, central_box)


def test_a_format_that_starts_programs_is_not_opened(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "page.eps")
    (tmp_path / "page.eps").rename(tmp_path / "page.jpg")
    assert "no image in a format" in why_bad(tmp_path / "page.jpg")
