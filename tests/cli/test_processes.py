"""The installed commands, as processes: names, speed, color, pipes that close, and the demonstration."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import FILES, INPUTS
from tests.conftest import ROOT
from tests.cpu_timer import cpu_seconds_of_processes
from webhook.cli.main import program_name

COMMAND = [sys.executable, "-m", "webhook.cli"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM", "CI")} | {
    "PYTHONPATH": str(ROOT),
    "TERM": "xterm",
    "COLUMNS": "80",
}


def start(
    *arguments: str,
    cwd: Path = FILES,
    env: Mapping[str, str] | None = None,
    stdout: int = subprocess.PIPE,
    stdin: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command, by default in the folder of fixture files.

    It hears Ctrl-C as from a terminal: what a shell starts in the background does not, nor what that starts.
    """
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, **(env or {})},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_the_version_is_printed_fast() -> None:
    version, libraries = ["-m", "webhook.cli", "version"], ["-c", "import typer, pydantic, msgspec"]
    tries = [
        (cpu_seconds_of_processes(lambda: run_python(version)), cpu_seconds_of_processes(lambda: run_python(libraries)))
        for _ in range(3)
    ]
    controller, theirs = map(min, zip(*tries, strict=True))
    assert controller < theirs, "before what other commands need could even be imported"


def run_python(arguments: list[str]) -> None:
    out = subprocess.run([sys.executable, *arguments], capture_output=True, env=ENVIRONMENT, check=True).stdout
    assert re.fullmatch(rb"(rightslice \d+\.\d+\.\d+\n)?", out)


def test_the_version_needs_neither_typer_nor_pydantic() -> None:
    code = "import sys; sys.argv = ['rightslice', 'version']; from webhook.cli.main import run; run(); "
    code += "print(*sorted({name.split('.')[0] for name in sys.modules} & {'typer', 'pydantic', 'rich', 'msgspec'}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=ENVIRONMENT, check=True).stdout
    assert out.splitlines()[1:] == [b""]


SLOW_PACKAGES = {"aiohttp", "kubernetes", "numpy"}
NEEDED = {
    "without a cluster": ([], ""),
    "the example cluster, of which usage is estimated": (["--cluster", "demo"], "numpy"),
}


@pytest.mark.parametrize(("flags", "needed"), NEEDED.values(), ids=NEEDED)
def test_a_check_imports_no_slow_package_that_it_does_not_need(flags: list[str], needed: str) -> None:
    arguments = ["rightslice", "check", "examples/pods/01-notebook-8gb.yaml", *flags]
    code = f"import sys; sys.argv = {arguments}\n"
    code += "from webhook.cli.main import run\ntry: run()\n"
    code += f"finally: print(*sorted({SLOW_PACKAGES} & set(sys.modules)))"
    call = [sys.executable, "-c", code]
    out = subprocess.run(call, capture_output=True, env=ENVIRONMENT, cwd=ROOT, check=False).stdout

    assert b"1 object: " in out
    assert out.splitlines()[-1].decode() == needed


LEADING = {
    "a namespace": ("-n team-a lint --cluster demo", "lint --cluster demo -n team-a"),
    "a flag with an equals sign": ("--namespace=team-a lint --cluster demo", "lint --cluster demo --namespace=team-a"),
    "several, and a command of a group": (
        "--kubeconfig none --context c layout status layout",
        "layout status layout --kubeconfig none --context c",
    ),
    "arguments after --": ("-n team-a check -- cluster.yaml", "check -n team-a -- cluster.yaml"),
    "no command": ("-n team-a", "-n team-a"),
}


@pytest.mark.parametrize(("leading", "usual"), LEADING.values(), ids=LEADING)
def test_flags_of_kubectl_mean_the_same_before_the_command(leading: str, usual: str) -> None:
    first, second = (start(*call.split()) for call in (leading, usual))

    assert first.communicate() == second.communicate()
    assert first.returncode == second.returncode


@pytest.mark.parametrize(
    ("program", "want"),
    [
        ("/usr/local/bin/kubectl-rightslice", "kubectl rightslice"),
        ("/usr/bin/rightslice", "rightslice"),
        ("/x/webhook/cli/__main__.py", "rightslice"),
    ],
)
def test_help_shows_the_called_name(program: str, want: str) -> None:
    assert program_name(program) == want


def on_a_terminal(*arguments: str, **env: str) -> bytes:
    """The output on a terminal."""
    controller, theirs = pty.openpty()
    process = start(*arguments, stdout=theirs, env=env)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:
            break
        if not part:
            break
        text += part
    process.communicate()
    os.close(controller)
    return text


CHECK = ("check", "deploy/train.yaml", *INPUTS)
COLORS: dict[str, tuple[tuple[str, ...], dict[str, str], bool]] = {
    "a terminal": (CHECK, {}, True),
    "NO_COLOR": (CHECK, {"NO_COLOR": "1"}, False),
    "a dumb terminal": (CHECK, {"TERM": "dumb"}, False),
    "--no-color": ((*CHECK, "--no-color"), {}, False),
}


@pytest.mark.parametrize(("arguments", "env", "colored"), COLORS.values(), ids=COLORS)
def test_color(arguments: tuple[str, ...], env: dict[str, str], colored: bool) -> None:
    text = on_a_terminal(*arguments, **env)
    assert b"GPU-L102" in text
    assert (b"\x1b[" in text) is colored


def test_no_color_in_a_pipe() -> None:
    out, _ = start(*CHECK).communicate()
    assert b"GPU-L102" in out
    assert b"\x1b[" not in out


def test_a_closed_pipe_is_not_an_error() -> None:
    with start("explain", "--all", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_a_closed_pipe_keeps_the_exit_code(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            [*COMMAND, *CHECK], cwd=FILES, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=stream
        )
    assert process.stdout is not None
    process.stdout.close()
    assert (process.wait(600), errors.read_bytes()) == (1, b"")


def test_an_unwritable_result_is_an_error(tmp_path: Path) -> None:
    script = 'ulimit -f 0; exec "$@" > out'
    result = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "explain"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (2, b"error: stdout: cannot be written: File too large\n")


LAYOUT = ("layout", "--cluster", "demo", "--allow-drain", "--write")


def run_in_shell(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as "$@" of a shell script."""
    shell = ["sh", "-c", script, "sh", *COMMAND, *arguments]
    return subprocess.run(shell, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_files_are_written_whole_if_notes_cannot_be_printed(tmp_path: Path, stderr: str) -> None:
    result = run_in_shell(f'"$@" {stderr}', tmp_path, *LAYOUT, "out")

    assert (result.returncode, result.stderr) == (0, "")
    assert {each.name for each in (tmp_path / "out").iterdir()} == {
        *("apply.sh", "device-plugin-config.yaml", "mig-config.yaml", "policies.yaml")
    }


def test_a_result_for_a_closed_stdout_is_an_error(tmp_path: Path) -> None:
    result = run_in_shell('"$@" >&-', tmp_path, "explain")

    assert (result.returncode, result.stderr) == (2, "error: stdout: cannot be written: Bad file descriptor\n")


def test_a_plan_that_cannot_be_written_keeps_the_earlier_one(tmp_path: Path) -> None:
    assert run_in_shell('"$@"', tmp_path, *LAYOUT, "out").returncode == 0
    earlier = {each.name: each.read_text() for each in (tmp_path / "out").iterdir()}

    result = run_in_shell('ulimit -f 8; "$@"', tmp_path, *LAYOUT, "out", "--max-unavailable", "2")

    assert (result.returncode, result.stderr.splitlines()[-1]) == (
        2,
        "error: --write out: cannot be written: File too large",
    )
    assert {each.name: each.read_text() for each in (tmp_path / "out").iterdir()} == earlier


def test_ctrl_c_exits_quietly() -> None:
    with start("check", "-", *INPUTS, "-v", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"policies: ")
        assert process.stderr.readline().startswith(b"cluster: "), "its input is what it waits for next"
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait(600)) == (b"", 130)


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('apiVersion: v1\nkind: "Po\\e[2Jd"\nmetadata: {name: "größe\\u202e"}\n', encoding="utf-8")
    out, err = start("check", str(file), *INPUTS, "-o", "wide", env={"PYTHONIOENCODING": "ascii"}).communicate()
    assert b"Po\\x1b[2Jd" in out
    assert b"gr\\xf6\\xdfe" in out
    assert b"Traceback" not in err


def test_the_demonstration_runs_the_real_server() -> None:
    process = start("demo", cwd=ROOT)
    out, err = process.communicate(timeout=600)
    text = out.decode()
    assert process.returncode == 0, err.decode()
    pods = sorted(file.name for file in (ROOT / "examples/pods").glob("*.yaml"))
    assert pods
    assert all(name in text for name in pods)
    assert re.search(r"^Server at https://127\.0\.0\.1:\d+,", text)
    assert re.search(r"requests 1 GPU, gets 0\.\d+", text), "something was right-sized"
    assert re.search(r"^  deny  GPU-S101  examples/pods/\S+:\d+:\d+$", text, re.MULTILINE)
    assert re.search(r"^  /mutate \d+\.\d ms, /validate \d+\.\d ms$", text, re.MULTILINE)
    assert re.search(r"^\d+ pods: \d+ allowed .*, \d+ denied\.$", text, re.MULTILINE)
    assert re.search(r"^The allowed pods requested .* GPUs and now get .*: [1-9].* saved", text, re.MULTILINE)
    assert text.endswith("To keep a server running: make serve\n")
    assert [line for line in text.splitlines() if len(line) > 80] == []
    quoted = (
        (ROOT / "README.md").read_text().split("The first two decisions of `make run`:\n\n```\n")[1].split("```")[0]
    )
    assert re.sub(r"\d+\.\d ms", "ms", quoted) in re.sub(r"\d+\.\d ms", "ms", text)


def test_the_demonstration_reports_why_the_server_did_not_start() -> None:
    process = start("demo", cwd=ROOT, env={"RIGHTSLICE_MAX_CONNECTIONS": "none"})
    out, err = process.communicate(timeout=600)
    assert process.returncode == 3, out.decode()
    assert b"did not become ready" in err
    assert b"Traceback" not in err
