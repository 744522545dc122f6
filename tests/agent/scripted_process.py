"""The node agent on a scripted machine: four GPUs in two bridged pairs, with a bad GPU and a broken link.

    python -m tests.agent.scripted_process FLAGS NAMESPACE POD

FLAGS are those of the agent as JSON. Its kubelet reports that the pod has the first GPU.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import msgspec

from tests.agent.kubelet import Kubelet, serve_kubelet
from tests.agent.library import Library, install_library
from tests.agent.recorded import bridged, pci
from webhook.cli.processes.agent import AgentFlags, run_agent

GPUS = 4


def scripted_machine() -> Library:
    """Return the machine."""
    library = bridged((0, 1), (2, 3), count=GPUS)
    library.cards[3].remap_failed = True
    library.cards[0].links[0] = (False, library.cards[0].links[0][1])
    return library


async def serve_until_the_end(socket: Path, kubelet: Kubelet) -> None:
    """Serve a kubelet until the process ends."""
    async with serve_kubelet(kubelet, socket):
        await asyncio.Event().wait()


def main() -> None:
    """Run the agent."""
    flags, namespace, pod = sys.argv[1:4]
    socket, kubelet = Path(msgspec.json.decode(flags, type=AgentFlags).socket), Kubelet()
    kubelet.pods = [(namespace, pod, {"nvidia.com/gpu": [f"GPU-{pci(0)}"]})]
    threading.Thread(target=lambda: asyncio.run(serve_until_the_end(socket, kubelet)), daemon=True).start()
    with install_library(scripted_machine()):
        run_agent()


if __name__ == "__main__":
    main()
