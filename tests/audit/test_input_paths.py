"""Input paths that are not regular files are reported, and never waited for."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from webhook.audit.object_files import SkippedDocument, document_files, read_content, read_objects

POD = "apiVersion: v1\nkind: Pod\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "notes.txt").write_text("no manifest")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.json").write_text("{}")
    return tmp_path


def names(folder: Path, files: list[str]) -> list[str]:
    return [str(Path(file).relative_to(folder)) for file in files]


def skipped(path: Path) -> list[tuple[str, str, bool]]:
    found = read_objects([str(path)])
    return [
        (each.location.file, each.reason, each.invalid)
        for each in found
        if isinstance(each, SkippedDocument) and not each.reason.startswith("not a Kubernetes object")
    ]


LINKS = {
    "round.yaml": ("round.yaml", "a symlink loop"),
    "round": ("round", "a symlink loop"),
    "gone.yaml": ("nothing.yaml", "a broken symlink"),
    "up": (".", "a symlink to a folder: these are not followed, name the folder itself"),
    "null.yaml": ("/dev/null", "a symlink to a special file"),
}


@pytest.mark.parametrize("link", LINKS)
def test_skipped_symlink_has_a_reason(folder: Path, link: str) -> None:
    target, reason = LINKS[link]
    (folder / link).symlink_to(target)
    assert names(folder, document_files(str(folder))) == ["a.yaml", "sub/b.json"]
    assert skipped(folder) == [(str(folder / link), reason, False)]


def test_pipe_in_a_folder_is_skipped_with_a_reason(folder: Path) -> None:
    os.mkfifo(folder / "p.yaml")
    assert skipped(folder) == [(str(folder / "p.yaml"), "not a regular file", False)]


def test_symlinks_to_files_and_hidden_files_are_not_reported(folder: Path) -> None:
    (folder / "c.yaml").symlink_to("a.yaml")
    (folder / ".#a.yaml").symlink_to("somebody@edits")
    assert names(folder, document_files(str(folder))) == ["a.yaml", "c.yaml", "sub/b.json"]
    assert skipped(folder) == []
    assert skipped(folder / "a.yaml") == []


def test_named_pipe_is_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.yaml")
    with pytest.raises(OSError, match=r"a pipe, not a file\. Pass its content on standard input, as -"):
        read_content(str(tmp_path / "p.yaml"), 100)


def test_device_is_rejected() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_content("/dev/zero", 100)


def test_pipe_from_the_shell_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, POD.encode())
    os.close(writing)
    assert read_content(f"/dev/fd/{reading}", 100) == POD.encode()
    os.close(reading)


def test_at_most_the_given_number_of_bytes_is_read(folder: Path) -> None:
    assert read_content(str(folder / "a.yaml"), 10) == POD.encode()[:10]


def test_socket_in_a_folder_is_skipped_with_a_reason(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s.yaml"))
    assert skipped(folder) == [(str(folder / "s.yaml"), "not a regular file", False)]
