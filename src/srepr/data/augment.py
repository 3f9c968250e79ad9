"""Batch augmentation as functions of uniform draws, and image decoding that crops and resizes in one step.

There is no random state here: the caller passes the uniform numbers, so an augmented image depends only on (seed,
epoch, index).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.special import betaincinv
from torch import Tensor

from srepr.data.image import absence, as_rgb, open_image
from srepr.errors import InputError

Draws = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]

CROP_TRIES = 10
CROP_DRAWS = 2 * CROP_TRIES + 2


def pad_crop_flip(images: Tensor, draws: Draws, *, padding: int, flip: bool) -> Tensor:
    """Zero-pad [B, C, H, W], crop at a random position, and flip with probability 1/2; draws [B, 3].

    >>> image = torch.arange(9).reshape(1, 1, 3, 3)
    >>> pad_crop_flip(image, np.array([[0.5, 0.9, 0.9]]), padding=1, flip=True)[0, 0]
    tensor([[1, 2, 0],
            [4, 5, 0],
            [7, 8, 0]])
    """
    batch, channels, height, width = images.shape
    chance = torch.from_numpy(draws).to(images.device)
    top, left = (chance[:, :2] * (2 * padding + 1)).long().T[:, :, None]
    mirrored = (chance[:, 2:] < 0.5) & flip
    across = torch.arange(width, device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.where(mirrored, across.flip(0), across)
    places = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    padded = F.pad(images, (padding, padding, padding, padding)).flatten(2)
    return padded.gather(2, places.view(batch, 1, -1).expand(-1, channels, -1)).view_as(images)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Convert uint8 [B, C, H, W] to (x / 255 - mean) / std in float32, channels_last for faster convolutions."""
    centre, spread = torch.tensor(mean, device=images.device), torch.tensor(std, device=images.device)
    batch, channels, height, width = images.shape
    # Whole rows of pixels at once: a broadcast over three channels is too short to be vectorised.
    rows = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).reshape(batch, height, -1).float()
    rows = rows.mul_((1 / (255 * spread)).repeat(width)).sub_((centre / spread).repeat(width))
    return rows.view(batch, height, width, channels).permute(0, 3, 1, 2)


def mixup_weights(alpha: float, draws: Draws) -> Tensor:
    """Beta(alpha, alpha) weights in float32 from uniform draws of the same shape, by the inverse CDF."""
    if not alpha > 0:
        raise InputError(f"mixup with alpha {alpha:g}: alpha must be positive. Leave it out to disable mixup")
    return torch.from_numpy(np.asarray(betaincinv(alpha, alpha, draws), dtype=np.float32))


def mixup(inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mix inputs [B, ...] and targets [B, K] with a neighbour's: weight * own + (1 - weight) * neighbour's.

    The neighbour of position p is p XOR 1; the last example of an odd batch is its own neighbour.

    >>> inputs, targets = mixup(torch.tensor([[0.0], [8.0]]), torch.eye(2), torch.tensor([0.75, 0.5]))
    >>> inputs.tolist(), targets.tolist()
    ([[2.0], [4.0]], [[0.75, 0.25], [0.5, 0.5]])
    """
    partner = (torch.arange(len(inputs), device=inputs.device) ^ 1).clamp_(max=len(inputs) - 1)

    def mixed(values: Tensor) -> Tensor:
        share = weights.to(values).view(-1, *[1] * (values.ndim - 1))
        return torch.lerp(values[partner], values, share)

    return mixed(inputs), mixed(targets)


def random_resized_crop_box(
    width: int,
    height: int,
    draws: Draws,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """Random crop box with an area fraction in `scale` and a log-uniform aspect in `ratio` (Szegedy et al. 2015).

    `draws` are CROP_DRAWS uniforms: area and aspect for ten tries, then the position. If no try fits, the result is
    the largest centred box with an aspect in `ratio`.

    >>> random_resized_crop_box(100, 80, np.full(CROP_DRAWS, 0.5))
    (17.0, 7.0, 83.0, 73.0)
    """
    tries = draws[: 2 * CROP_TRIES].reshape(CROP_TRIES, 2)
    area = width * height * (scale[0] + tries[:, 0] * (scale[1] - scale[0]))
    aspect = ratio[0] * (ratio[1] / ratio[0]) ** tries[:, 1]
    widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fitting = np.flatnonzero((widths >= 1) & (heights >= 1) & (widths <= width) & (heights <= height))
    if not len(fitting):
        w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
        left, top = (width - w) / 2, (height - h) / 2
        return left, top, left + w, top + h
    w, h = int(widths[fitting[0]]), int(heights[fitting[0]])
    left, top = math.floor(draws[-2] * (width - w + 1)), math.floor(draws[-1] * (height - h + 1))
    return float(left), float(top), float(left + w), float(top + h)


def central_box(width: int, height: int, fraction: float = 224 / 256) -> Box:
    """Centred square with `fraction` of the shorter side. The default equals resizing to 256 and cropping to 224.

    >>> central_box(512, 256)
    (144.0, 16.0, 368.0, 240.0)
    """
    side = fraction * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def decode(path: str | Path, size: int, choose_box: Callable[[int, int], Box]) -> Image.Image:
    """Read an image file as RGB and resize the box chosen from its (width, height) to size x size.

    A JPEG is decoded at 1/2, 1/4 or 1/8 scale if the box keeps `size` pixels: several times faster. `srepr.data.image`
    says how pixels become RGB. EXIF orientation is ignored, as in standard pipelines.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Image.new("L", (640, 480), 255).save(f"{folder}/white.jpg")
    ...     image = decode(f"{folder}/white.jpg", 32, central_box)
    >>> image.size, image.getpixel((0, 0))
    ((32, 32), (255, 255, 255))
    """
    try:
        with open_image(path) as image:
            width, height = image.size
            box = choose_box(width, height)
            enough = math.ceil(width * size / (box[2] - box[0])), math.ceil(height * size / (box[3] - box[1]))
            draft = image.draft(image.mode, enough)
            if draft is not None:
                shrunk = draft[1][2] / width
                box = (box[0] * shrunk, box[1] * shrunk, box[2] * shrunk, box[3] * shrunk)
            scaled: Image.Image = as_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)
            return scaled
    except FileNotFoundError:
        raise InputError(f"{path} {absence(path)}. Restore it, or skip it with `skip_bad_images`") from None
    except Exception as error:  # decoders raise almost anything on broken bytes
        reason = f"cannot be decoded: {str(error).rstrip('.')}"
        raise InputError(f"{path} {reason}. Remove it, or skip it with `skip_bad_images`") from error
