"""Checkpoints: whole or refused, the last few kept, the one before used where the newest is damaged."""

from __future__ import annotations

import hashlib
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from gnomon.core.errors import DataError  # noqa: E402
from gnomon.routing import checkpoint  # noqa: E402

STATE = {"weights": torch.arange(1000.0), "update": 3, "config": "seed: 1"}


def silent(text: str) -> None:
    raise AssertionError(text)


def test_what_is_saved_is_loaded(tmp_path):
    path = checkpoint.save(tmp_path, 3, STATE, keep=2)
    found = checkpoint.load_latest(tmp_path, silent)
    assert found is not None and found[0] == path
    assert torch.equal(found[1]["weights"], STATE["weights"]) and found[1]["config"] == "seed: 1"


def test_the_last_few_are_kept_and_latest_names_the_newest(tmp_path):
    for update in (5, 10, 15, 20):
        checkpoint.save(tmp_path, update, STATE, keep=2)
    assert [path.name for path in checkpoint.found(tmp_path)] == ["update-000020.pt", "update-000015.pt"]
    assert (tmp_path / "latest").read_text() == "update-000020.pt\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "nothing half-written stays"


def test_no_checkpoint_is_no_error(tmp_path):
    assert checkpoint.load_latest(tmp_path, silent) is None


@pytest.mark.parametrize("damage", ["truncated", "changed", "emptied", "foreign"])
def test_a_damaged_one_is_refused_and_the_one_before_is_used(tmp_path, damage):
    before = checkpoint.save(tmp_path, 1, STATE, keep=3)
    newest = checkpoint.save(tmp_path, 2, STATE, keep=3)
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "changed":
        content[-20] ^= 1
    elif damage == "emptied":
        content = bytearray()
    else:
        content = bytearray(b"PK something else")
    newest.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged|not a checkpoint"):
        checkpoint.load(newest)
    heard: list[str] = []
    found = checkpoint.load_latest(tmp_path, heard.append)
    assert found is not None and found[0] == before
    assert len(heard) == 1 and str(newest) in heard[0]


def test_where_none_is_whole_it_says_so(tmp_path):
    checkpoint.save(tmp_path, 1, STATE, keep=3).write_bytes(b"")
    with pytest.raises(DataError, match="no checkpoint in this folder is whole"):
        checkpoint.load_latest(tmp_path, lambda text: None)


def test_a_checkpoint_cannot_run_code(tmp_path):
    """A pickle with a valid checksum is still only read as weights."""

    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    payload = io.BytesIO()
    torch.save({"weights": Evil()}, payload)
    digest = hashlib.sha256(payload.getvalue()).digest()
    path = tmp_path / "update-000001.pt"
    path.write_bytes(checkpoint.MARK + digest + payload.getvalue())
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.load(path)
    bare = pickle.dumps(Evil(), protocol=2)
    path.write_bytes(checkpoint.MARK + hashlib.sha256(bare).digest() + bare)
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint.load(path)
