"""The order in which the processes of pytest-xdist get test files.

Tests on a control plane wait half of their time, and most others compute. So one process gets the others first, while
the rest get those on a control plane: together they use both cores during the whole run, and one process less starts a
control plane.
"""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import LoadFileScheduling

CLUSTER = "tests/cluster/"
ONE_SETUP = re.compile(r"tests/(cluster/\w+|release)/")
"""Folders whose files share an installation or a build, which each process would make again."""


class MixedScheduling(LoadFileScheduling):  # type: ignore[misc]  # the package has no types
    """Gives whole files to processes, in their order; of folders with one set-up for all, the whole folder."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        takes_cluster = self.nodes.index(node) > 0
        wanted = [unit for unit in self.workqueue if unit.startswith(CLUSTER) == takes_cluster]
        if wanted:
            self.workqueue.move_to_end(wanted[0], last=False)
        super()._assign_work_unit(node)


def unit_of(nodeid: str) -> str:
    """Return the file, or the folder with one set-up, whose tests run in one process."""
    folder = ONE_SETUP.match(nodeid)
    return folder[0] if folder else nodeid.partition("::")[0]
