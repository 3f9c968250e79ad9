"""A made-up ImageNet-LT through every command: its real list format, and the images that the real one has."""

import numpy as np
import pytest
from PIL import Image

SYNSETS = ("n01440764", "n01443537", "n01484850")


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """Three classes of 10, 5 and 2 images, in many sizes and modes; one of the first class is truncated."""
    monkeypatch.setattr("srepr.data.imagenet_lt.CLASSES", len(SYNSETS))
    chance = np.random.default_rng(0)
    kinds = [
        *({"size": (500, 375)}, {"size": (33, 500)}, {"size": (1, 1)}, {"mode": "L"}, {"mode": "CMYK"}),
        *({"exif": 6}, {"size": (1200, 900)}, {"progressive": True}, {"png": True}, {}),
    ]

    def write(name, size=(64, 48), mode="RGB", exif=None, png=False, progressive=False):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = chance.integers(0, 256, (size[1], size[0], 3), np.uint8)
        image = Image.fromarray(pixels).convert(mode)
        turned = Image.Exif()
        turned[0x0112] = exif or 1
        options = {} if png else {"exif": turned, "progressive": progressive}
        image.save(path, "PNG" if png else "JPEG", **options)  # ImageNet has a PNG with the name of a JPEG

    parts = {"train": (10, 5, 2), "val": (1, 1, 1), "test": (3, 3, 3)}
    for part, counts in parts.items():
        lines = []
        for label, (synset, count) in enumerate(zip(SYNSETS, counts, strict=True)):
            for number in range(count):
                folder = "val" if part == "test" else "train"
                name = f"{folder}/{synset}/{synset}_{part}{number}.JPEG"
                write(name, **kinds[number % len(kinds)])
                lines.append(f"{name} {label}\n")
        (tmp_path / f"ImageNet_LT_{part}.txt").write_text("".join(lines))
    broken = tmp_path / "train" / SYNSETS[0] / f"{SYNSETS[0]}_train6.JPEG"
    broken.write_bytes(broken.read_bytes()[:20_000])
    return tmp_path, broken


def test_imagenet_lt_goes_through_every_command(srepr, imagenet, tmp_path_factory):
    root, broken = imagenet
    run = tmp_path_factory.mktemp("runs") / "run"
    complaint = f"{broken} cannot be decoded"
    assert srepr("data", "check", "imagenet-lt", "--data-dir", root).complaint.startswith(complaint)
    words = ["train", "imagenet-lt", "--data-dir", root, "--network", "resnet8", "--image-size", 72, "--epochs", 1]
    words += ["--batch-size", 4, "--workers", 0, "--protocol", "holdout"]
    assert srepr(*words, "--out", run.with_name("bad")).complaint.startswith(complaint)
    answer = srepr(*words, "--skip-bad-images", "--out", run)
    assert (answer.code, f"skipped 1 bad images ({broken})" in answer.err) == (0, True)
    where = ["--data-dir", root, "--workers", 0]
    assert srepr("data", "show", "imagenet-lt", "--data-dir", root, "--skip-bad-images").code == 0
    assert srepr("retrain", run, "--method", "la", "srepr", "--samples", 2, *where).code == 0
    assert srepr("evaluate", run, *where).code == 0
    assert srepr("analyze", run, "--samples", 2, *where).code == 0
    assert srepr("report", run, "-o", run / "page.html", *where).code == 0
    assert srepr("export", run, "--format", "safetensors", "-o", run / "model").code == 0
    answer = srepr("predict", run, root / "val", "--workers", 0, "-o", run / "out.csv")
    assert answer.code == 0
    rows = (run / "out.csv").read_text().splitlines()[1:]
    assert len(rows) == 9
    assert {row.split(",")[1] for row in rows} <= set(SYNSETS)
    assert srepr("predict", run, root / "train", "--workers", 0).complaint.startswith(complaint)
    same = srepr("predict", run / "model.safetensors", root / "val", "--workers", 0)
    assert same.out.splitlines() == (run / "out.csv").read_text().splitlines()
