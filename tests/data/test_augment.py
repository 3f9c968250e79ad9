from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from srepr.data.augment import (
    CROP_DRAWS,
    central_box,
    decode,
    mixup,
    mixup_weights,
    normalise,
    pad_crop_flip,
    random_resized_crop_box,
)
from srepr.data.randomness import uniforms
from srepr.errors import InputError

whole = partial(central_box, fraction=1.0)


@given(
    st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.booleans()
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pad_crop_flip_is_what_a_loop_over_images_does(dtype, batch, channels, height, width, padding, flip):
    images = torch.randint(1, 256, (batch, channels, height, width)).to(dtype)
    draws = uniforms(batch, padding, np.arange(batch), 3)
    for image, (u, v, w), result in zip(
        images.numpy(), draws, pad_crop_flip(images, draws, padding=padding, flip=flip).numpy(), strict=True
    ):
        padded = np.pad(image, [(0, 0), (padding, padding), (padding, padding)])
        top, left = int(u * (2 * padding + 1)), int(v * (2 * padding + 1))
        crop = padded[:, top : top + height, left : left + width]
        assert (result == (crop[:, :, ::-1] if flip and w < 0.5 else crop)).all()


def test_every_place_and_both_directions_are_as_likely():
    """A single white pixel, padded by one, lands on or off each place of a 3 x 3 image 9 ways, mirrored or not."""
    images = torch.arange(9, dtype=torch.uint8).reshape(1, 1, 3, 3).expand(18_000, 1, 3, 3)
    views = pad_crop_flip(images, uniforms(0, 0, np.arange(18_000), 3), padding=1, flip=True)
    kinds, times = torch.unique(views.flatten(1), dim=0, return_counts=True)
    assert len(kinds) == 18
    assert stats.chisquare(times.numpy()).pvalue > 0.01


@pytest.mark.parametrize("channels", [1, 3])
def test_normalise_is_the_formula_in_double_precision(channels):
    images = torch.randint(0, 256, (3, channels, 5, 4), dtype=torch.uint8)
    mean, std = (0.4914, 0.4822, 0.4465)[:channels], (0.2023, 0.1994, 0.2010)[:channels]
    expected = (images.numpy() / 255 - np.reshape(mean, (-1, 1, 1))) / np.reshape(std, (-1, 1, 1))
    result = normalise(images, mean, std)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_weights_have_the_beta_distribution(alpha):
    weights = mixup_weights(alpha, uniforms(0, 0, np.arange(5000), 1)[:, 0]).numpy()
    assert stats.kstest(weights, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_mixup_weights_need_a_positive_alpha():
    with pytest.raises(InputError, match="alpha must be positive"):
        mixup_weights(0.0, np.array([0.5]))


@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_mixup_pairs_neighbours_and_a_last_odd_one_with_itself(batch):
    inputs, targets = torch.randn(batch, 3, 4, 4), torch.eye(batch)
    weights = torch.rand(batch)
    mixed, soft = mixup(inputs, targets, weights)
    for p in range(batch):
        q = min(p ^ 1, batch - 1)
        torch.testing.assert_close(mixed[p], weights[p] * inputs[p] + (1 - weights[p]) * inputs[q])
        torch.testing.assert_close(soft[p], weights[p] * targets[p] + (1 - weights[p]) * targets[q])
    torch.testing.assert_close(soft.sum(1), torch.ones(batch))


def test_mixup_with_weight_one_changes_nothing():
    inputs, targets = torch.randn(4, 7), torch.eye(4)
    mixed, soft = mixup(inputs, targets, torch.ones(4))
    assert torch.equal(mixed, inputs)
    assert torch.equal(soft, targets)


@given(st.integers(1, 600), st.integers(1, 600), st.integers(0, 10**6))
def test_a_random_crop_lies_inside_and_keeps_its_bounds(width, height, seed):
    left, top, right, bottom = random_resized_crop_box(width, height, uniforms(seed, 0, [0], CROP_DRAWS)[0])
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    if min(width, height) > 50 and max(width, height) < 2 * min(width, height):
        assert 0.9 * 3 / 4 < (right - left) / (bottom - top) < 1.1 * 4 / 3
        assert (right - left) * (bottom - top) > 0.9 * 0.08 * width * height


def test_area_and_place_of_a_crop_are_uniform_and_its_aspect_log_uniform():
    """With areas up to a half the first try always fits, so the laws are not bent by rejection."""
    draws = uniforms(0, 0, np.arange(3000), CROP_DRAWS)
    boxes = np.array([random_resized_crop_box(4000, 4000, row, scale=(0.1, 0.5)) for row in draws])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert stats.kstest(wide * high / 4000**2, stats.uniform(0.1, 0.4).cdf).pvalue > 0.01
    assert stats.kstest(np.log(wide / high), stats.uniform(np.log(3 / 4), 2 * np.log(4 / 3)).cdf).pvalue > 0.01
    assert stats.kstest(boxes[:, 0] / (4000 - wide), "uniform").pvalue > 0.01
    assert stats.kstest(boxes[:, 1] / (4000 - high), "uniform").pvalue > 0.01


def test_where_no_crop_fits_the_largest_centred_one_is_taken():
    ones = np.full(CROP_DRAWS, 0.99)
    assert random_resized_crop_box(1000, 30, ones) == (480, 0, 520, 30)
    assert random_resized_crop_box(30, 1000, ones) == (0, 480, 30, 520)


def test_evaluation_is_resizing_to_256_and_cropping_224(tmp_path, write_image):
    path = write_image(tmp_path / "a.png", size=(600, 400))
    usual = Image.open(path).resize((384, 256), Image.Resampling.BILINEAR).crop((80, 16, 304, 240))
    difference = np.asarray(decode(path, 224, central_box), dtype=int) - np.asarray(usual, dtype=int)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("size", [32, 96, 224])
def test_decoding_a_jpeg_small_is_close_to_decoding_it_whole(tmp_path, write_image, size):
    path = write_image(tmp_path / "a.jpg", size=(1213, 907), quality=95)
    box = (100.0, 50.0, 1000.0, 850.0)
    expected = Image.open(path).resize((size, size), Image.Resampling.BILINEAR, box)
    difference = np.asarray(decode(path, size, lambda *_: box), dtype=int) - np.asarray(expected, dtype=int)
    assert np.abs(difference).mean() < 1
    assert np.abs(difference).max() < 12


@pytest.mark.parametrize(("box", "shrink"), [((0, 0, 800, 800), 8), ((0, 0, 799, 799), 4), ((5, 5, 150, 150), 1)])
def test_a_jpeg_is_decoded_as_small_as_the_box_allows(tmp_path, write_image, monkeypatch, box, shrink):
    resized = []

    def spy(image, size, resample, box):
        resized.append((image.width, box[2] - box[0]))
        return image

    path = write_image(tmp_path / "a.jpg", size=(1600, 1200))
    monkeypatch.setattr(Image.Image, "resize", spy)
    decode(path, 100, lambda *_: box)
    assert resized == [(1600 / shrink, (box[2] - box[0]) / shrink)]
    assert resized[0][1] >= 100


@pytest.mark.parametrize(
    ("mode", "name"), [("L", "a.jpg"), ("CMYK", "a.jpg"), ("P", "a.gif"), ("RGBA", "a.png"), ("1", "a.png")]
)
def test_every_kind_of_image_becomes_rgb(tmp_path, write_image, mode, name):
    path = write_image(tmp_path / name, size=(64, 48), mode=mode)
    image = decode(path, 16, whole)
    assert (image.mode, image.size) == ("RGB", (16, 16))
    usual = Image.open(path).convert("RGB").crop((8, 0, 56, 48)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(usual, dtype=int)).mean() < 6


TRANSPARENT = {
    "RGBA": {},
    "LA": {},
    "P": {"transparency": 0},  # one entry of the palette
    "PA": {"transparency": bytes([0, 255])},  # an opacity for each entry: Pillow warns if it is dropped
    "RGB": {"transparency": (0, 0, 0)},
    "L": {"transparency": 0},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", TRANSPARENT)
def test_transparent_pixels_become_white(tmp_path, mode):
    """A grey square on nothing; the colour of what cannot be seen is black."""
    icon = Image.new("LA", (48, 48), (0, 0))
    icon.paste((100, 255), (16, 16, 32, 32))
    if mode[0] == "P":
        saved = Image.new("P", icon.size, 0)
        saved.putpalette([0, 0, 0, 100, 100, 100])
        saved.paste(1, (16, 16, 32, 32))
    else:
        saved = icon.convert(mode)
    saved.save(tmp_path / "icon.png", **TRANSPARENT[mode])
    seen = decode(tmp_path / "icon.png", 48, whole)
    assert (seen.getpixel((4, 4)), seen.getpixel((24, 24))) == ((255, 255, 255), (100, 100, 100))


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    Image.new("RGBA", (8, 8), (255, 0, 0, 51)).save(tmp_path / "a.png")  # a fifth of red
    assert decode(tmp_path / "a.png", 8, whole).getpixel((0, 0)) == (255, 204, 204)


def test_the_exif_orientation_is_ignored(tmp_path, write_image):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = write_image(tmp_path / "turned.jpg", size=(64, 64), exif=exif)
    plain = write_image(tmp_path / "plain.jpg", size=(64, 64))
    assert (np.asarray(decode(turned, 32, whole)) == np.asarray(decode(plain, 32, whole))).all()


def test_an_image_of_one_pixel(tmp_path, write_image):
    path = write_image(tmp_path / "a.png", size=(1, 1))
    assert decode(path, 8, partial(random_resized_crop_box, draws=np.full(CROP_DRAWS, 0.1))).size == (8, 8)


def test_a_broken_file_is_named(tmp_path, write_image):
    cut = write_image(tmp_path / "cut.jpg", size=(200, 200))
    cut.write_bytes(cut.read_bytes()[:600])
    text = tmp_path / "text.png"
    text.write_text("not an image")
    for path in (cut, text):
        with pytest.raises(InputError, match=rf"{path.name} cannot be decoded: .*`skip_bad_images`") as error:
            decode(path, 8, whole)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=r"gone\.jpg does not exist"):
        decode(tmp_path / "gone.jpg", 8, whole)
