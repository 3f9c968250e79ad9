import hashlib
import io
import os
import re
import tarfile
import threading
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from srepr.data.cifar_files import LAYOUTS
from srepr.data.download import get
from srepr.errors import InputError

FILES = {"train.bin": b"train" * 40_000, "test.bin": b"test" * 9_000}


def archive_of(members):
    """A .tar.gz of (name, content) pairs and of ready-made TarInfo objects."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=0) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


GOOD = archive_of(
    [("cifar-100-binary/readme.txt", b"hello"), *((f"cifar-100-binary/{n}", c) for n, c in FILES.items())]
)


class Server(ThreadingHTTPServer):
    """Serves `content`; may ignore Range, hang up after `cut` bytes, lie about the length, or never end."""

    content, ranges, cut, status, length, endless = GOOD, True, None, 200, None, False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_port}/cifar-100-binary.tar.gz"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if server.status != 200 or start >= len(server.content):
            self.send_error(server.status if server.status != 200 else 416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if not server.endless:
            self.send_header("Content-Length", server.length or str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.end_headers()
        self.wfile.write(body[: server.cut])
        with suppress(OSError):  # until the other side hangs up
            while server.endless:
                self.wfile.write(bytes(1 << 16))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def official(monkeypatch):
    """Makes an archive the official one."""

    def make(content=GOOD):
        layout = replace(LAYOUTS["cifar100-lt"], md5=hashlib.md5(content).hexdigest(), size=len(content))
        monkeypatch.setitem(LAYOUTS, "cifar100-lt", layout)

    make()
    return make


def assert_complete(folder):
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_download_ends_with_the_files_and_nothing_else(server, official, tmp_path):
    seen = []
    folder = get("cifar100-lt", tmp_path / "new", url=server.url, progress=lambda *sizes: seen.append(sizes))
    assert folder == tmp_path / "new/cifar-100-binary"
    assert_complete(folder)
    assert seen[-1] == (len(GOOD), len(GOOD))
    assert seen == sorted(seen)


def test_what_is_there_is_not_fetched_again_unless_forced(server, official, tmp_path):
    get("cifar100-lt", tmp_path, url=server.url)
    get("cifar100-lt", tmp_path, url=server.url)
    assert len(server.asked) == 1
    (tmp_path / "cifar-100-binary/train.bin").write_bytes(b"")
    get("cifar100-lt", tmp_path, url=server.url, force=True)
    assert len(server.asked) == 2
    assert_complete(tmp_path / "cifar-100-binary")


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(server, official, tmp_path, ranges):
    server.cut = 100_000
    with pytest.raises(InputError, match=r"was interrupted after 100,000 of [\d,]+ bytes. Run the same command"):
        get("cifar100-lt", tmp_path, url=server.url)
    assert not (tmp_path / "cifar-100-binary").exists()
    server.cut, server.ranges = None, ranges
    get("cifar100-lt", tmp_path, url=server.url)
    assert server.asked == [None, "bytes=100000-"]
    assert_complete(tmp_path / "cifar-100-binary")


def test_a_download_that_was_complete_already_is_only_unpacked(server, official, tmp_path):
    (tmp_path / "cifar-100-binary.tar.gz.partial").write_bytes(GOOD)
    get("cifar100-lt", tmp_path, url=server.url)
    assert_complete(tmp_path / "cifar-100-binary")


def test_a_wrong_archive_is_deleted(server, official, tmp_path):
    server.content = archive_of([("cifar-100-binary/train.bin", b"other")])
    with pytest.raises(InputError, match="not the official archive"):
        get("cifar100-lt", tmp_path, url=server.url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../escaped", "/tmp/srepr-escaped", "cifar-100-binary/../../escaped", "other/x.bin"])
def test_only_the_expected_names_are_written(server, official, tmp_path, name):
    server.content = archive_of([(name, b"attack"), *((f"cifar-100-binary/{n}", c) for n, c in FILES.items())])
    official(server.content)
    get("cifar100-lt", tmp_path / "a/b", url=server.url)
    assert_complete(tmp_path / "a/b/cifar-100-binary")
    assert {path.name for path in tmp_path.rglob("*")} == {"a", "b", "cifar-100-binary", *FILES}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_link_in_the_place_of_a_file_is_refused(server, official, tmp_path, kind):
    link = tarfile.TarInfo("cifar-100-binary/train.bin")
    link.type, link.linkname = kind, "/etc/passwd"
    server.content = archive_of([link, ("cifar-100-binary/test.bin", b"test")])
    official(server.content)
    with pytest.raises(InputError, match="is not a regular file"):
        get("cifar100-lt", tmp_path, url=server.url)
    assert not (tmp_path / "cifar-100-binary/train.bin").exists()


def test_a_file_that_is_too_large_is_refused(server, official, tmp_path, monkeypatch):
    monkeypatch.setattr("srepr.data.download._LARGEST_FILE", 100)
    with pytest.raises(InputError, match="or is too large"):
        get("cifar100-lt", tmp_path, url=server.url)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive_of([("cifar-100-binary/train.bin", b"train")]), r"has no test\.bin"),
        (b"no archive", "cannot be unpacked"),
        (GOOD[:150_000], "cannot be unpacked"),
    ],
)
def test_an_archive_that_is_not_whole_leaves_no_file_under_its_name(server, official, tmp_path, content, message):
    server.content = content
    official(content)
    with pytest.raises(InputError, match=message):
        get("cifar100-lt", tmp_path, url=server.url)
    assert not list(tmp_path.rglob("*.bin"))


@pytest.mark.parametrize("place", ["data", "data/cifar-100-binary", "data/cifar-100-binary.tar.gz.partial"])
def test_what_stands_in_the_way_is_named(srepr, server, official, tmp_path, place):
    """A file in the place of a folder, a pipe in the place of a file."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / place)
    complaint = srepr("data", "get", "cifar100-lt", "--data-dir", tmp_path / "data", "--url", server.url).complaint
    fix = "is a pipe. Pass a regular file" if place.endswith("partial") else ": File exists. It is no folder: choose"
    assert complaint.startswith(str(tmp_path / place))
    assert fix in complaint


def test_a_full_disk_is_named_and_the_download_goes_on(srepr, server, official, tmp_path, disk_full):
    words = ("data", "get", "cifar100-lt", "--data-dir", tmp_path, "--url", server.url)
    with disk_full(100_000):
        complaint = srepr(*words).complaint
    assert complaint == f"{tmp_path / 'cifar-100-binary.tar.gz.partial'}: File too large. Free space or fix access."
    assert srepr(*words).code == 0
    assert_complete(tmp_path / "cifar-100-binary")


def test_what_the_server_says_is_passed_on(server, official, tmp_path):
    server.status = 404
    with pytest.raises(InputError, match="answers 404 Not Found"):
        get("cifar100-lt", tmp_path, url=server.url)


def test_a_server_that_is_not_there_is_an_input_error(official, tmp_path):
    with pytest.raises(InputError, match=r"was interrupted: .*refused"):
        get("cifar100-lt", tmp_path, url="http://127.0.0.1:9/archive.tar.gz")
    with pytest.raises(InputError, match="must start with https"):
        get("cifar100-lt", tmp_path, url="file:///etc/passwd")


def test_other_data_sets_say_where_they_come_from(tmp_path):
    with pytest.raises(InputError, match=r"imagenet-lt cannot be downloaded automatically: ImageNet's train/"):
        get("imagenet-lt", tmp_path)
    with pytest.raises(
        InputError, match=r"mnist is not a data set that can be fetched. Known: cifar10-lt, cifar100-lt"
    ):
        get("mnist", tmp_path)


@pytest.mark.parametrize("length", ["abc", "-1", "1e9", "9" * 5000])
def test_a_length_that_is_no_number_is_not_believed(server, official, tmp_path, length):
    server.length, server.protocol_version = length, "HTTP/1.0"
    try:
        assert_complete(get("cifar100-lt", tmp_path, url=server.url))
    except InputError as error:  # some lengths end the answer too early
        assert "download" in str(error)  # noqa: PT017


def test_a_download_without_an_end_stops_at_the_size_of_the_archive(server, official, tmp_path):
    server.endless = True
    with pytest.raises(InputError, match=rf"sends more than the {len(GOOD):,} bytes of the official archive"):
        get("cifar100-lt", tmp_path, url=server.url)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= len(GOOD)


def test_an_archive_that_was_unpacked_goes(server, official, tmp_path):
    get("cifar100-lt", tmp_path, url=server.url)
    (tmp_path / "cifar-100-binary.tar.gz.partial").write_bytes(GOOD)  # killed before it was deleted
    assert_complete(get("cifar100-lt", tmp_path, url=server.url))
    assert len(server.asked) == 1


def test_what_was_left_of_something_larger_is_thrown_away(server, official, tmp_path):
    (tmp_path / "cifar-100-binary.tar.gz.partial").write_bytes(bytes(len(GOOD) + 1))
    assert_complete(get("cifar100-lt", tmp_path, url=server.url))
    assert server.asked == [None]


@pytest.mark.parametrize(
    "url", ["http://[", "http://a b/", "http://" + "a" * 300 + "/", "http://:x/", "http://\ud800/"]
)
def test_an_address_that_is_none_is_one_line(tmp_path, url):
    with pytest.raises(InputError, match="was interrupted"):
        get("cifar100-lt", tmp_path, url=url)
