"""The data sets that `podrun data` knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set."""

    name: str
    size: int
    """Size in bytes."""
    digest: str
    """Digest as published with the file: `sha256:...` or `md5:...`."""


@dataclass(frozen=True)
class DataSet:
    """A data set on a server."""

    title: str
    base: str
    """URL of the folder with its files, with a trailing slash."""
    files: tuple[RemoteFile, ...]
    source: str
    """Name of the data source that reads it: `data.name` of train.yaml."""
    path: str = ""
    """Path of the data below the data set's folder, for `data.path`; empty: the folder itself."""

    @property
    def size(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(file.size for file in self.files)


DATA_SETS = {
    "tinyshakespeare": DataSet(
        "Plays of Shakespeare, as one text",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
        (RemoteFile("input.txt", 1115394, "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
        source="text",
        path="input.txt",
    ),
    "mnist": DataSet(
        "Handwritten digits: 70 000 images of 28x28, 10 classes",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            RemoteFile("train-images-idx3-ubyte.gz", 9912422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            RemoteFile("train-labels-idx1-ubyte.gz", 28881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
            RemoteFile("t10k-images-idx3-ubyte.gz", 1648877, "md5:9fb629c4189551a2d022fa330f9573f3"),
            RemoteFile("t10k-labels-idx1-ubyte.gz", 4542, "md5:ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        source="idx",
    ),
    "fashion-mnist": DataSet(
        "Clothes: 70 000 images of 28x28, 10 classes",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        (
            RemoteFile("train-images-idx3-ubyte.gz", 26421880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            RemoteFile("train-labels-idx1-ubyte.gz", 29515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
            RemoteFile("t10k-images-idx3-ubyte.gz", 4422102, "md5:bef4ecab320f06d8554ea6380940ec79"),
            RemoteFile("t10k-labels-idx1-ubyte.gz", 5148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        source="idx",
    ),
}

INCLUDED = {
    "python_source": "The sources of Python's standard library, as text",
    "digits": "Handwritten digits of scikit-learn: 1797 images of 8x8, 10 classes",
    "make_classification": "Clusters in many dimensions, made by scikit-learn",
    "sine": "Noisy values of a function, made by podrun",
}
"""Data sources that need no download, by `data.name` in train.yaml."""
