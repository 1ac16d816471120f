"""The data that checks are held against, fetched from a server on this machine."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gnomon.core.errors import DataError, UnknownNameError
from gnomon.verify import datasets


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A data set of two files, and a server that has them."""
    public = tmp_path / "public"
    (public / "a").mkdir(parents=True)
    contents = {"a/one.csv": b"1,2\n", "two.csv": b"3,4\n"}
    for path, content in contents.items():
        (public / path).write_bytes(content)
    made = datasets.Dataset(
        title="Two files", **{"for": "nothing"}, licence="MIT", source="here", base="http://127.0.0.1:1/", into="set",
        how="Write them yourself.", files={path: hashlib.sha256(c).hexdigest() for path, c in contents.items()},
    )  # fmt: skip
    monkeypatch.setattr(datasets, "datasets", lambda: {"two": made})

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(public)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_missing_is_fetched_once(mirror, tmp_path):
    written = datasets.fetch("two", tmp_path / "data", base=mirror)
    assert [path.read_bytes() for path in written] == [b"1,2\n", b"3,4\n"]
    assert datasets.fetch("two", tmp_path / "data", base=mirror) == []
    (tmp_path / "data" / "set" / "two.csv").write_bytes(b"damaged")
    assert [path.name for path in datasets.fetch("two", tmp_path / "data", base=mirror)] == ["two.csv"]


def test_another_file_is_refused_and_not_written(mirror, tmp_path):
    (tmp_path / "public" / "two.csv").write_bytes(b"other")
    with pytest.raises(DataError, match="not the one"):
        datasets.fetch("two", tmp_path / "data", base=mirror)
    assert not (tmp_path / "data" / "set" / "two.csv").exists()


def test_without_a_network_it_says_what_to_do(mirror, tmp_path):
    with pytest.raises(DataError, match=r"cannot be fetched.*\n?.*Write them yourself"):
        datasets.fetch("two", tmp_path / "data")
    with pytest.raises(DataError, match="404"):
        datasets.fetch("two", tmp_path / "data", base=f"{mirror}/nowhere")


def test_every_set_says_where_it_is_and_how_to_get_it():
    for name, one in datasets.datasets().items():
        assert one.licence and one.how and one.source, name
        assert all(len(digest) == 64 for digest in one.files.values()), name
    with pytest.raises(UnknownNameError, match="vidur-profiling"):
        datasets.fetch("vidur-profilin", Path("nowhere"))
    with pytest.raises(DataError, match="nothing to fetch"):
        datasets.fetch("silicon", Path("nowhere"))


def test_the_command_lists_them(cli, tmp_path):
    result = cli("verify", "fetch", "--out", str(tmp_path))
    assert "vidur-profiling" in result.output and "0 of " in result.output
    assert "nothing to fetch" in cli("verify", "fetch", "silicon", code=2).output
