"""People's own data: folders, tables and arrays."""

import numpy as np
import pytest

from srepr.data import ArrayExamples, FileExamples, load
from srepr.errors import InputError


@pytest.fixture
def birds(tmp_path, write_image):
    """Crow 10, owl 5, wren 1."""
    for name, n in (("wren", 1), ("crow", 10), ("owl", 5)):
        for i in range(n):
            write_image(tmp_path / "birds" / name / f"{i}.PNG", i)
    (tmp_path / "birds/crow/notes.txt").write_text("no image")
    (tmp_path / "birds/crow/._0.PNG").write_text("what macOS leaves behind")
    (tmp_path / "birds/.cache").mkdir()
    return tmp_path / "birds"


def test_a_folder_of_class_folders_gives_every_part(birds):
    data = load(birds)
    assert data.class_names == ("crow", "owl", "wren")
    assert [data.train.counts.tolist(), data.validation.counts.tolist(), data.test.counts.tolist()] == [
        [7, 3, 1],
        [1, 1, 0],
        [2, 1, 0],
    ]
    assert (data.name, data.protocol) == ("birds", "holdout")
    names = [name for part in data.parts.values() for name in part.names]
    assert len(set(names)) == 16
    assert isinstance(data.train, FileExamples)


def test_the_seed_decides_what_is_held_out(birds):
    tests = [load(birds, seed=seed).test.names for seed in (0, 0, 1, 2)]
    assert tests[0] == tests[1]
    assert len(set(tests)) > 1


def test_small_images_are_kept_in_memory(birds):
    data = load(birds, image_size=32)
    assert isinstance(data.train, ArrayExamples)
    assert (data.train.shape, data.train.padding, data.train.flip) == ((3, 32, 32), 4, True)


@pytest.mark.parametrize(
    ("others", "validation", "test"), [(["test"], 2, 3), (["val"], 2, 3), (["val", "test"], 3, 3)]
)
def test_a_folder_with_parts_keeps_them(tmp_path, write_image, others, validation, test):
    for part, sizes in (("train", (12, 4)), *((name, (2, 1)) for name in others)):
        for k, n in zip("ab", sizes, strict=True):
            for i in range(n):
                write_image(tmp_path / part / k / f"{part}{i}.jpg", i)
    data = load(tmp_path)
    assert (len(data.validation), len(data.test)) == (validation, test)
    assert all(name.startswith(others[-1]) for name in data.test.names)


def test_an_empty_class_folder_is_named(birds):
    (birds / "robin").mkdir()
    with pytest.raises(InputError, match=r"birds/robin has no images"):
        load(birds)


def test_a_test_class_without_training_images_is_named(tmp_path, write_image):
    write_image(tmp_path / "train/a/1.png")
    write_image(tmp_path / "test/b/1.png")
    with pytest.raises(InputError, match=r"test/b has no training images"):
        load(tmp_path)


def test_a_folder_without_class_folders_is_explained(tmp_path, write_image):
    write_image(tmp_path / "1.png")
    with pytest.raises(InputError, match="has no class folders"):
        load(tmp_path)


def test_a_table_is_the_folder_it_describes(birds):
    rows = [f"{path.relative_to(birds)},{path.parent.name}" for path in sorted(birds.glob("*/[0-9].PNG"))]
    (birds / "birds.csv").write_text("\ufeffpath,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    table, folder = load(birds / "birds.csv"), load(birds)
    assert table.fingerprint() == folder.fingerprint()
    assert table.class_names == folder.class_names


def test_a_table_with_splits_and_numbers_for_labels(birds):
    (birds / "t.csv").write_text(
        "split,path,label\ntrain,crow/0.PNG,10\ntrain,crow/1.PNG,9\nval,crow/2.PNG,9\ntest,owl/0.PNG,10\n"
    )
    data = load(birds / "t.csv")
    assert data.class_names == ("9", "10")
    assert [part.labels.tolist() for part in data.parts.values()] == [[1, 0], [0], [1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("file,label\na,b\n", "has no column 'path'"),
        ("", "has no column 'path'"),
        ("path,label\n", "has no training rows"),
        ("path,label\na.jpg,x\n,y\n", "line 3: the path is empty"),
        ("path,label\na.jpg\n", "line 2: the label is empty"),
        ("path,label,split\na.jpg,x,\n", "line 2: the split is empty"),
        ("path,label,split\na.jpg,x,dev\n", "line 2: 'dev' is not a split"),
        ("path,label,split\na.jpg,x,train\nb.jpg,y,test\n", "class 'y' has no training rows"),
        ("path,label\ngone.jpg,x\n", r"gone\.jpg does not exist"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "t.csv")


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_vectors_are_standardised_with_the_training_part_alone(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(5, 3, (200, 4)), np.repeat([0, 1], [190, 10])
    x[:, 3] = 7.0  # never varies: must not divide by zero
    data = load(save(tmp_path / "v.npz", x=x, y=y), protocol="paper")
    values = data.train.load(np.arange(len(data.train))).numpy()
    np.testing.assert_allclose(values.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(values.std(0), [1, 1, 1, 0], atol=1e-5)
    assert abs(data.test.load(np.arange(len(data.test))).numpy()[:, :3].mean()) > 1e-4
    assert [part.counts.tolist() for part in data.parts.values()] == [[152, 8], [38, 2]]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW"])
def test_images_of_every_layout_come_out_channels_first(tmp_path, layout):
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16), dtype=np.uint8)
    x = {"NCHW": images, "NHWC": images.transpose(0, 2, 3, 1), "NHW": images[:, 0]}[layout]
    y = np.array(["owl", "crow"] * 4)
    data = load(save(tmp_path / "i.npz", x_train=x, y_train=y, x_test=x, y_test=y), protocol="paper")
    expected = images[:, :1] if layout == "NHW" else images
    assert (data.train.inputs == expected).all()
    assert (data.train.padding, data.train.flip) == (2, layout != "NHW")
    np.testing.assert_allclose(data.train.mean, expected.mean((0, 2, 3)) / 255)
    assert data.class_names == ("crow", "owl")
    assert data.train.labels.tolist() == [1, 0] * 4


X, Y = np.zeros((4, 2)), np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": X}, "holds a. It must hold x and y"),
        ({"x": X, "y": Y[:3]}, r"inputs \(4, 2\) and 3 labels"),
        ({"x": X, "y": Y - 1}, "labels in .* Pass class numbers"),
        ({"x": X, "y": Y / 2}, "labels in .* are float64"),
        ({"x": X[:0], "y": Y[:0]}, "labels in"),
        ({"x": np.zeros((4, 2, 2)), "y": Y}, r"x_train in .* is float64 \(4, 2, 2\)"),
        ({"x": np.array([[0], [1], [np.nan], [1]]), "y": Y}, "row 2 has a NaN or infinite value"),
        ({"x": X, "y": np.array([0, 0, 2, 2])}, "empty class: '1'"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, "empty class: '2'"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y}, r"test has inputs \(4, 1\)"),
        ({"x": np.array([[{}]] * 4), "y": Y}, "cannot be read"),
    ],
)
def test_what_is_wrong_with_arrays_is_named(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        load(save(tmp_path / "a.npz", **arrays))


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "a.npz").write_text("no archive")
    with pytest.raises(InputError, match=r"a\.npz cannot be read"):
        load(tmp_path / "a.npz")


def test_classes_of_one_example_stay_in_training(tmp_path):
    data = load(save(tmp_path / "v.npz", x=np.eye(3), y=np.arange(3)))
    assert data.counts.tolist() == [1, 1, 1]
    assert data.validation is None
    assert data.test is None
