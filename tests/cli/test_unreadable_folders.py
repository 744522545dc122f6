"""Folders whose files vanish, change or are closed while a command reads them."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from webhook.cli.main import run

FAULTS: dict[str, tuple[str, str, int]] = {
    "a folder vanishes": ("scandir", "sub", errno.ENOENT),
    "a folder is closed": ("scandir", "sub", errno.EACCES),
    "a folder becomes a file": ("scandir", "sub", errno.ENOTDIR),
    "a file vanishes before its kind is known": ("lstat", "a.yaml", errno.ENOENT),
    "a file vanishes while its kind is read": ("stat", "a.yaml", errno.ENOENT),
    "the files of a folder are closed": ("lstat", "a.yaml", errno.EACCES),
    "a file vanishes before it is read": ("open", "a.yaml", errno.ENOENT),
    "a file becomes a folder": ("open", "a.yaml", errno.EISDIR),
    "a disk fails": ("open", "a.yaml", errno.EIO),
}
COMMANDS = [
    ["check"],
    ["explain", "-f"],
    ["lint"],
    ["rightsize", "-f"],
    ["test"],
    ["policy", "lint"],
    ["policy", "diff", "policies"],
    ["check", "workload.yaml", "--policies"],
    ["check", "workload.yaml", "--cluster"],
    ["audit", "--cluster"],
]


@pytest.fixture(params=list(FAULTS.values()), ids=list(FAULTS))
def broken_path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Let one call to the system fail for a path in a folder; return the path and the reason."""
    call, name, number = request.param
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    path, module, function = (
        tmp_path / name,
        io if call == "open" else os,
        call.removeprefix("l") if call == "lstat" else call,
    )
    original = getattr(module, function)

    def fail_for_path(file: Any, *arguments: Any, **options: Any) -> Any:
        follows = options.get("follow_symlinks", True)
        if file in (path, str(path)) and follows == (call != "lstat"):
            raise OSError(number, os.strerror(number), str(path))
        return original(file, *arguments, **options)

    monkeypatch.setattr(module, function, fail_for_path)
    return path, os.strerror(number)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_what_cannot_be_read_in_a_folder_is_told_once(
    arguments: list[str], broken_path: tuple[Path, str], rightslice: Run
) -> None:
    path, reason = broken_path
    ended = rightslice(*arguments, str(path.parent))
    text = ended.out + ended.err
    assert ended.code == 2
    assert text.count(str(path)) == 1, text
    assert reason.lower() in text.lower(), text


def test_closed_folder_above_the_current_one_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(sys, "argv", ["rightslice", "check", "pod.yaml"])
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {Path.cwd() / '.rightslice.yaml'}: cannot be used: Permission denied\n"
