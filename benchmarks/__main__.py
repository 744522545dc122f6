"""Run every benchmark of this folder, each in a process of its own: `make bench`.

A benchmark is a module here that can be run by itself (`python -m benchmarks.decide`): one that ends in
`if __name__ == "__main__":`. It prints its figures and exits with 0 where its bounds hold. What needs a control
plane is left out: `make bench-cluster`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MARK = '\nif __name__ == "__main__":'


def names() -> list[str]:
    """The benchmarks of this folder, by module name."""
    files = (file for file in sorted(HERE.glob("*.py")) if file.name not in ("__main__.py", "cluster.py"))
    return [file.stem for file in files if MARK in file.read_text(encoding="utf-8")]


def main() -> int:
    """Run all of them. The exit code is 1 if any of them failed."""
    failed = []
    for name in names():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"Not within bounds: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
