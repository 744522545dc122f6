"""Start a control plane for manual tests and measurements.

python -m tests.cluster up            # prints its KUBECONFIG, and runs until Ctrl-C
python -m tests.cluster up --nodes    # with the nodes of the example cluster, simulated by kwok
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.cluster.nodes import add_nodes, demo_nodes
from tests.cluster.plane import Plane
from tests.controlplane.build import control_plane, wanted_version
from tests.controlplane.build_cache import print_message
from tests.controlplane.errors import BuildError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description="A control plane on this machine.")
    parser.add_argument("command", choices=["up"], help="start it, print its KUBECONFIG, and run until Ctrl-C")
    parser.add_argument("--nodes", action="store_true", help="with the nodes of the example cluster")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also if a shell started this in the background
    try:
        programs = control_plane(wanted_version())
        with tempfile.TemporaryDirectory(prefix="plane-") as folder, Plane(programs, Path(folder)) as plane:
            if arguments.nodes:
                add_nodes(plane, demo_nodes())
            print(f"export KUBECONFIG={plane.kubeconfig} PATH={programs['kubectl'].parent}:$PATH", flush=True)  # noqa: T201  # this is its output
            print_message("Press Ctrl-C to stop it.")
            signal.pause()
    except BuildError as error:
        print_message(str(error))
        return 1
    except KeyboardInterrupt:
        print_message("Stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
