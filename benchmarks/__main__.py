"""Run every benchmark of this folder, each in its own process: `make bench`.

A benchmark is a module that ends in `if __name__ == "__main__":` (`python -m benchmarks.decide`). It prints its
figures and exits with 0 if it is within its bounds. Three are not included: `make bench-cluster` and `make bench-dra`
need a control plane, and `make soak` takes hours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXCLUDED = ("__main__.py", "cluster.py", "device_replay.py", "soak.py")
HERE = Path(__file__).parent
MARK = '\nif __name__ == "__main__":'


def names() -> list[str]:
    """Return the benchmarks of this folder by module name."""
    files = (file for file in sorted(HERE.glob("*.py")) if file.name not in EXCLUDED)
    return [file.stem for file in files if MARK in file.read_text(encoding="utf-8")]


def main() -> int:
    """Run all benchmarks; return 1 if any failed."""
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
