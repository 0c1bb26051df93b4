"""The byte count of a bounded cache, and waiting for room."""

import os
import threading
import time

import pytest

from cl.data.cache import Cache


def test_files_removed_by_others_are_counted_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("cl.data.cache.PATIENCE", 0.1)
    small = Cache(tmp_path / "small", 1000)
    for name in ("a", "b", "c"):
        os.close(small.open(f"{name}.piece", 300, lambda: bytes(300)))
    (small.folder / "b.piece").unlink()
    os.close(small.open("d.piece", 300, lambda: bytes(300)))
    assert {path.name for path in small.folder.glob("*.piece")} == {"a.piece", "c.piece", "d.piece"}
    os.close(small.open("a.piece", 300, lambda: bytes(300)))
    os.close(small.open("e.piece", 300, lambda: bytes(300)))
    assert {path.name for path in small.folder.glob("*.piece")} == {"a.piece", "d.piece", "e.piece"}
    with pytest.raises(ValueError, match="limited to 1000 bytes .*: increase CL_CACHE_GB"):
        small.open("f.piece", 990, lambda: bytes(990))
    assert not (small.folder / "f.piece.partial").exists()


def test_a_fetch_waits_for_room_that_others_have_reserved(tmp_path) -> None:
    small, go = Cache(tmp_path / "small", 1000), threading.Event()

    def slow() -> bytes:
        go.wait()
        return bytes(700)

    holder, passer = (
        threading.Thread(target=small.fill, args=("a.piece", 700, slow), kwargs={"wait": wait}, daemon=True)
        for wait in (True, False)
    )
    holder.start()
    while [path.stat().st_size for path in small.folder.glob("*.partial")] != [700]:
        time.sleep(0.001)
    passer.start()
    passer.join(10)
    assert not passer.is_alive()
    with pytest.raises(ValueError, match="full of files in use"):
        small.fill("b.piece", 700, lambda: bytes(700), wait=False)
    threading.Timer(0.2, go.set).start()
    os.close(small.open("b.piece", 700, lambda: bytes(700)))
    holder.join()
    assert [path.name for path in small.folder.glob("*.piece")] == ["b.piece"]
