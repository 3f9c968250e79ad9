"""What a data set of many photos costs, from numbers that do not need it: `docs/scale.md` is derived from them.

Decoding: processor time of one core on JPEGs as large as those of ImageNet and of iNaturalist. Files: bytes of a
network, a posterior, a checkpoint and the features. Memory: what the backward pass of a training step keeps, counted
on torch's meta device, which computes nothing.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks import Table
from srepr.data.examples import FileExamples
from srepr.data.sampling import chunks
from srepr.data.workers import batches
from srepr.models import resnet50

PHOTOS = {"ImageNet-LT": ((500, 375), 110_000), "iNaturalist-2018": ((800, 600), 280_000)}
"""Typical width and height, and bytes of a file: 138 GB / 1.28 M images and 120 GB / 0.44 M images."""
SETS = {"ImageNet-LT": (1000, 115_846, 50_000), "iNaturalist-2018": (8142, 437_513, 24_426)}
"""Classes, training and test images."""
IMAGES, SIZE, LENGTH, ARRAYS = 64, 224, 2048, 11


def photo(chance: np.random.Generator, size: tuple[int, int], bytes_: int, path: Path) -> None:
    """A picture with the spectrum of photos, saved at the quality that gives about that many bytes."""
    width, height = size
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)) + 1 / width
    noise = np.fft.fft2(chance.normal(size=(3, height, width))) / frequency
    pixels = np.fft.ifft2(noise).real
    pixels = 128 + 50 * (pixels - pixels.mean()) / pixels.std()
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
    for quality in range(98, 30, -4):
        image.save(path, quality=quality)
        if path.stat().st_size <= bytes_:
            break


def decoding(name: str) -> dict[str, str | float]:
    """Images per second of processor time, for training and for evaluation, and the bytes of a file."""
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        names = tuple(f"{number}.jpg" for number in range(IMAGES))
        for file in names:
            photo(chance, *PHOTOS[name], Path(folder) / file)
        examples = FileExamples(Path(folder), names, np.zeros(IMAGES, np.int64), ("a",), size=SIZE)
        rates = []
        for view in ((0, 0), None):
            times = []
            for _ in range(3):
                begin = time.process_time()
                for _ in batches(examples, chunks(IMAGES, 32), view=view):
                    pass
                times.append(time.process_time() - begin)
            rates.append(IMAGES / min(times))
        size = np.mean([(Path(folder) / file).stat().st_size for file in names])
    width, height = PHOTOS[name][0]
    row: dict[str, str | float] = {"files like those of": name, "pixels": f"{width} x {height}", "kB": size / 1000}
    return row | {"training, images/s of a core": rates[0], "evaluation, images/s of a core": rates[1]}


def files(name: str) -> dict[str, str | float]:
    """Bytes on disk of a run with ResNet-50."""
    classes, train, test = SETS[name]
    with torch.device("meta"):
        network = resnet50(classes)
    parameters = sum(map(Tensor.numel, network.parameters()))
    buffers = sum(map(Tensor.numel, network.buffers()))
    return {
        "": name,
        "parameters, M": parameters / 1e6,
        "network, MB": 4 * (parameters + buffers) / 1e6,
        "posterior, MB": 8 * parameters / 1e6,
        "checkpoint, MB": (16 * parameters + 4 * buffers) / 1e6,
        "training features, GB": ARRAYS * train * LENGTH * 2 / 1e9,
        "test features, GB": test * LENGTH * 4 / 1e9,
        "teachers in memory, GB": train * classes * 8 / 1e9,
    }


def kept_for_backward(batch: int, dtype: torch.dtype) -> int:
    """Bytes that a training step of ResNet-50 keeps for its backward pass, without the weights."""
    with torch.device("meta"):
        network, images = resnet50(1000).to(dtype), torch.zeros(batch, 3, SIZE, SIZE, dtype=dtype)
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage  # the same numbers may be kept by two layers
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = network(images)
    del outputs
    return sum(storage.nbytes() for storage in kept.values())


def measure() -> list[Table]:
    """The three tables."""
    memory: list[dict[str, str | float]] = []
    for dtype in (torch.float32, torch.bfloat16):
        each = (kept_for_backward(4, dtype) - kept_for_backward(2, dtype)) / 2
        memory.append({"numbers": str(dtype), "MB an image": each / 1e6, "GB for 256": 256 * each / 1e9})
    return [
        Table(
            title="Decoding photos to 224 pixels",
            how=f"Processor time for {IMAGES} made-up JPEGs with the spectrum of photos; the best of three.",
            rows=[decoding(name) for name in PHOTOS],
            verdicts=[],
        ),
        Table(
            title="Bytes of a run with ResNet-50",
            how="Training features: of the averaged network and ten draws, float16. Test features: float32. Teachers:"
            " of the exact solution with distillation.",
            rows=[files(name) for name in SETS],
            verdicts=[],
        ),
        Table(
            title="Memory of a training step of ResNet-50 at 224 pixels",
            how="What is kept for the backward pass, without weights, gradients and momentum.",
            rows=memory,
            verdicts=[],
        ),
    ]


if __name__ == "__main__":
    for table in measure():
        print(table.markdown())
