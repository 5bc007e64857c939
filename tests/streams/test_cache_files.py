"""Cache files: complete or absent, bounded, refused if another user could have written them."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.errors import InputError
from continual_petl.streams.encoding.cache_files import CacheFiles

CONTENT = b"0123456789" * 10


@pytest.fixture
def files(tmp_path: Path) -> CacheFiles:
    made = CacheFiles(tmp_path / "cache" / "tokens", 1000)
    made.write("a", CONTENT)
    assert made.read("a") == CONTENT
    return made


def _path(files: CacheFiles, key: str = "a") -> Path:
    return files.folder / f"{key}.cache"


def test_empty_cache_is_a_miss(files: CacheFiles) -> None:
    assert files.read("b") is None
    assert CacheFiles(files.folder / "none").read("a") is None
    assert not files.notices


def test_cache_is_private_to_the_owner(files: CacheFiles) -> None:
    assert files.folder.stat().st_mode & 0o077 == 0
    assert _path(files).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("at", [0, 40, -1])
def test_flipped_bit_is_reported_and_the_file_removed(files: CacheFiles, at: int) -> None:
    content = bytearray(_path(files).read_bytes())
    content[at] ^= 1
    _path(files).write_bytes(content)
    assert files.read("a") is None
    assert "a.cache was not used, since its checksum does not match; it was removed" in files.notices[0]
    assert not _path(files).exists()


@pytest.mark.parametrize("content", [b"", b"short", CONTENT * 100])
def test_a_file_of_another_size_is_refused(files: CacheFiles, content: bytes) -> None:
    _path(files).write_bytes(content)
    assert files.read("a") is None
    assert "its checksum does not match" in files.notices[0]


def test_a_file_under_another_key_is_refused(files: CacheFiles) -> None:
    os.rename(_path(files), _path(files, "b"))
    assert files.read("b") is None
    assert files.notices


def _shared(path: Path) -> None:
    path.chmod(0o666)


def _link(path: Path) -> None:
    os.rename(path, path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("change", [_shared, _link, _pipe])
def test_file_writable_by_others_is_refused(files: CacheFiles, change: Callable[[Path], None]) -> None:
    change(_path(files))
    assert files.read("a") is None
    assert "was not used, since" in files.notices[0]
    assert not _path(files).is_symlink()


def test_a_file_of_another_user_is_refused(files: CacheFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert files.read("a") is None
    assert "another user owns it" in files.notices[0]


def test_least_recently_used_files_are_removed_first(files: CacheFiles) -> None:
    for number, key in enumerate("bcdefg"):
        files.write(key, CONTENT)
        os.utime(_path(files, key), (number + 1, number + 1))
    os.utime(_path(files), (0, 0))
    assert files.read("a") == CONTENT  # now the most recently used
    files.write("h", CONTENT)
    assert sorted(path.name for path in files.folder.iterdir()) == [f"{key}.cache" for key in "acdefgh"]


def test_size_limit_is_respected(files: CacheFiles) -> None:
    for number in range(20):
        files.write(str(number), CONTENT)
        assert sum(path.stat().st_size for path in files.folder.iterdir()) <= 1000
    files.write("large", CONTENT * 10)
    assert files.read("large") is None
    assert "is limited to 1000 bytes (CONTINUAL_PETL_CACHE_BYTES), but one split needs 1032" in files.notices[0]


def test_old_half_written_files_are_removed(files: CacheFiles) -> None:
    old, young = files.folder / "x.part", files.folder / "y.part"
    for path in (old, young):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    files.write("b", CONTENT)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize("call", ["os.replace", "tempfile.mkstemp"])
def test_full_disk_only_disables_the_cache(files: CacheFiles, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"continual_petl.streams.encoding.cache_files.{call}", full)
        files.write("b", CONTENT)
    assert [path.name for path in files.folder.iterdir()] == ["a.cache"]
    assert "cannot be written to (No space left on device), so its content is computed again" in files.notices[0]


def test_file_instead_of_the_folder_only_disables_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    files = CacheFiles(tmp_path / "cache" / "tokens")
    assert files.read("a") is None
    files.write("a", CONTENT)
    assert len(files.notices) == 2


def test_removed_folder_only_disables_the_cache(files: CacheFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replaced(one: str, other: Path) -> None:
        real(one, other)
        shutil.rmtree(files.folder)

    with monkeypatch.context() as patch:
        patch.setattr("continual_petl.streams.encoding.cache_files.os.replace", replaced)
        files.write("b", CONTENT)
    assert "cannot be written to (No such file or directory)" in files.notices[0]
    assert files.read("b") is None


def test_unremovable_file_is_not_reported_as_removed(files: CacheFiles) -> None:
    _path(files, "b").mkdir()
    assert files.read("b") is None
    assert "it could not be removed either" in files.notices[0]


def test_concurrent_writers_and_readers_see_complete_files(tmp_path: Path) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        files = CacheFiles(tmp_path, 600)
        for turn in range(30):
            key = str((number + turn) % 7)
            files.write(key, key.encode() * 100)
            found = files.read(key)
            wrong.extend([found] if found not in (None, key.encode() * 100) else [])
        wrong.extend(files.notices)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cache_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place() -> Path | None:
        files = CacheFiles.usual("tokens")
        return None if files is None else files.folder

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CONTINUAL_PETL_CACHE")
    assert place() == tmp_path / ".cache" / "continual-petl" / "tokens"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert place() == tmp_path / ".cache" / "continual-petl" / "tokens"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert place() == tmp_path / "xdg" / "continual-petl" / "tokens"
    monkeypatch.setenv("CONTINUAL_PETL_CACHE", str(tmp_path / "mine"))
    assert place() == tmp_path / "mine" / "tokens"
    for off in ("off", "OFF", ""):
        monkeypatch.setenv("CONTINUAL_PETL_CACHE", off)
        assert place() is None


def test_unknown_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_CACHE", "~nobody-of-this-name/tokens")
    with pytest.raises(
        InputError, match="CONTINUAL_PETL_CACHE: got '~nobody-of-this-name/tokens', but that user has no"
    ):
        CacheFiles.usual("tokens")


def test_size_limit_is_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_CACHE", str(tmp_path))
    monkeypatch.setenv("CONTINUAL_PETL_CACHE_BYTES", "5000")
    files = CacheFiles.usual("tokens")
    assert files is not None
    assert files.max_bytes == 5000
    monkeypatch.setenv("CONTINUAL_PETL_CACHE_BYTES", "0")
    assert CacheFiles.usual("tokens") is None
    for wrong in ("5 GB", "-1", "1e9"):
        monkeypatch.setenv("CONTINUAL_PETL_CACHE_BYTES", wrong)
        with pytest.raises(InputError, match=r"CONTINUAL_PETL_CACHE_BYTES: got .*; it must be a number of bytes"):
            CacheFiles.usual("tokens")
