"""Fetch a data set: download with resume, checksum, unpack. Files get their final name only when complete."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from gzip import BadGzipFile
from http.client import HTTPException
from pathlib import Path

from srepr.data.cifar_files import LAYOUTS, Layout
from srepr.data.sources import catalogue
from srepr.errors import InputError, check
from srepr.storage.files import naming
from srepr.storage.outside import check_regular

Progress = Callable[[int, int | None], None]
"""Called with the bytes downloaded so far and the total, which is None if the server does not send it."""

_CHUNK = 1 << 18
_LARGEST_FILE = 200_000_000


def get(
    name: str,
    data_dir: str | Path,
    *,
    force: bool = False,
    url: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download "cifar10-lt" or "cifar100-lt" into `data_dir`, resuming a partial download, and return the folder.

    `url` is a mirror of the official archive. `force` downloads again even if the files exist.

    >>> get("digits-lt", ".")
    Traceback (most recent call last):
    srepr.errors.InputError: digits-lt cannot be downloaded automatically: comes with scikit-learn
    """
    if name not in LAYOUTS:
        known = {entry.name: f"cannot be downloaded automatically: {entry.how_to_get}" for entry in catalogue()}
        raise InputError(
            f"{name} {known.get(name, 'is not a data set that can be fetched. Known: ' + ', '.join(LAYOUTS))}"
        )
    layout = LAYOUTS[name]
    folder = Path(data_dir) / layout.folder
    archive = Path(data_dir) / f"{layout.folder}.tar.gz.partial"
    if not force and all((folder / file).is_file() for file in (*layout.train, *layout.test)):
        archive.unlink(missing_ok=True)  # a command that was cut short has left it
        return folder
    archive.parent.mkdir(parents=True, exist_ok=True)
    _download(url or layout.url, archive, layout.size, progress)
    _verify(archive, layout.md5)
    _unpack(archive, folder, layout)
    archive.unlink()
    return folder


def _download(url: str, archive: Path, size: int, progress: Progress | None) -> None:
    if not url.startswith(("https://", "http://")):
        raise InputError(f"{url} is not a download URL. It must start with https:// or http://")
    done = 0
    if os.path.lexists(archive):
        check_regular(archive, archive.lstat())
        done = archive.stat().st_size
    if done > size:  # what is there is something else
        archive.unlink()
        done = 0
    mirror = "Try again, or pass a mirror with `url`"
    try:
        request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            if response.status != 206:
                done = 0  # the server cannot resume and sends everything
            total = None if response.length is None else done + response.length
            with archive.open("ab" if done else "wb") as out:
                while chunk := response.read(_CHUNK):
                    done += len(chunk)
                    check(done <= size, f"{url} sends more than the {size:,} bytes of the official archive. {mirror}")
                    with naming(archive):
                        out.write(chunk)
                        out.flush()
                    if progress:
                        progress(done, total)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:
            return  # nothing left to send; the checksum decides if the file is whole
        raise InputError(f"{url} answers {error.code} {error.reason}. {mirror}") from error
    except InputError:
        raise
    except (OSError, HTTPException, ValueError) as error:  # a malformed address or answer is a ValueError
        if isinstance(error, OSError) and error.filename is not None:  # the fault of the disk
            raise
        raise InputError(f"the download of {url} was interrupted: {error}. Run the same command to resume") from error
    if total is not None and done < total:
        raise InputError(
            f"the download of {url} was interrupted after {done:,} of {total:,} bytes. Run the same command to resume"
        )


def _verify(archive: Path, md5: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with archive.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != md5:
        archive.unlink()
        raise InputError(
            f"what was downloaded is not the official archive (md5 {digest.hexdigest()}, not {md5}), and is deleted. "
            "Run the same command again, or pass a mirror with `url`"
        )


def _unpack(archive: Path, folder: Path, layout: Layout) -> None:
    """Extract the expected files only; nothing else is written."""
    wanted = {f"{layout.folder}/{file}": folder / file for file in (*layout.train, *layout.test)}
    folder.mkdir(parents=True, exist_ok=True)
    unpacked = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in wanted:
                    continue
                if not member.isreg() or member.size > _LARGEST_FILE:
                    raise InputError(
                        f"{member.name} in the archive is not a regular file, or is too large. Download it again"
                    )
                partial = wanted[member.name].with_suffix(".partial")
                partial.unlink(missing_ok=True)  # it may be a link to another place
                content = tar.extractfile(member)
                assert content is not None
                with naming(partial), partial.open("wb") as out:
                    shutil.copyfileobj(content, out)
                    out.flush()
                    os.fsync(out.fileno())
                unpacked[partial] = wanted[member.name]
    except (tarfile.TarError, EOFError, zlib.error, BadGzipFile) as error:
        raise InputError(f"{archive} cannot be unpacked: {error}. Delete it and fetch it again") from error
    missing = set(wanted.values()) - set(unpacked.values())
    if missing:
        raise InputError(f"the archive has no {min(missing).name}. Download the official file")
    for partial, path in unpacked.items():
        partial.replace(path)
