"""The CIFAR files: names, record sizes, checksums, classes. Only constants, so the import is fast."""

from __future__ import annotations

from dataclasses import dataclass

PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Files of one data set, as binary files and as Python pickles."""

    url: str
    md5: str
    """md5 of the binary archive at `url`."""
    size: int
    """Bytes of that archive."""
    folder: str
    train: dict[str, str]
    """Binary training files and their md5."""
    test: dict[str, str]
    label_bytes: int
    """Bytes before the pixels of each record; the last one is the class."""
    pickle_folder: str
    pickle_train: dict[str, str]
    pickle_test: dict[str, str]
    pickle_labels: str
    class_names: tuple[str, ...]


CIFAR10 = Layout(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    size=170_052_171,
    folder="cifar-10-batches-bin",
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
    label_bytes=1,
    pickle_folder="cifar-10-batches-py",
    pickle_train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    pickle_test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    pickle_labels="labels",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)

CIFAR100 = Layout(
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    size=168_513_733,
    folder="cifar-100-binary",
    train={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
    test={"test.bin": "4499cfba6c016c1be1438163640a0898"},
    label_bytes=2,
    pickle_folder="cifar-100-python",
    pickle_train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    pickle_test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    pickle_labels="fine_labels",
    class_names=tuple(
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
        castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
        elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
        man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
        pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
        tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """.split()  # noqa: SIM905  (a list of a hundred quoted words is harder to read)
    ),
)

LAYOUTS = {"cifar10-lt": CIFAR10, "cifar100-lt": CIFAR100}
