from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def real_lists() -> Path:
    folder = REPOSITORY.parent / "shared/data/splits"
    if not folder.is_dir():
        pytest.skip(f"the public ImageNet-LT and iNaturalist lists are not in {folder}")
    return folder


@pytest.fixture(scope="session")
def write_image():
    def write(path: Path, seed: int = 0, size: tuple[int, int] = (100, 80), mode: str = "RGB", **options) -> Path:
        """A smooth random picture, so that scaling and JPEG compression change it little."""
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, **options)
        return path

    return write
