"""The distribution of test files to processes: who gets which file first, and which files stay together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.distribution import MixedScheduling, unit_of

UNITS = {
    "tests/engine/guarding/test_guard.py::test_a[b/c::d]": "tests/engine/guarding/test_guard.py",
    "tests/cluster/test_chart.py::test_a": "tests/cluster/test_chart.py",
    "tests/cluster/queues/test_charges.py::test_a[b/c]": "tests/cluster/queues/",
    "tests/release/test_image.py::test_a": "tests/release/",
}
FILES = ["tests/agent/a.py", "tests/cluster/b.py", "tests/cluster/c/d.py", "tests/cluster/c/e.py", "tests/model/f.py"]
TESTS = [f"{file}::test_{number}" for file in FILES for number in range(3)]


class RecordingNode:
    """A process that is given tests, and completes them when told."""

    shutting_down = False

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def files(self) -> list[str]:
        """Return the files that it was given, in their order."""
        return list(dict.fromkeys(TESTS[index].partition("::")[0] for index in self.given))


def start(*nodes: RecordingNode) -> MixedScheduling:
    """Return the scheduling of all tests after its first distribution."""
    config = SimpleNamespace(
        getvalue=lambda _key: ["popen"] * len(nodes), option=SimpleNamespace(loadscopereorder=False)
    )
    scheduling = MixedScheduling(config)
    for node in nodes:
        scheduling.add_node(node)
    for node in nodes:
        scheduling.add_node_collection(node, TESTS)
    scheduling.schedule()
    return scheduling


@pytest.mark.parametrize(("nodeid", "unit"), UNITS.items())
def test_tests_of_a_file_or_of_a_folder_with_one_setup_stay_together(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


def test_one_process_gets_the_files_without_a_control_plane_first_and_the_others_those_with_one() -> None:
    computing, waiting = RecordingNode("a"), RecordingNode("b")

    start(computing, waiting)

    assert computing.files[0] == "tests/agent/a.py"
    assert waiting.files[0] == "tests/cluster/b.py"


def test_every_test_is_given_once_and_a_process_takes_other_files_when_its_own_are_done() -> None:
    nodes = [RecordingNode("a"), RecordingNode("b")]
    scheduling = start(*nodes)

    done = 0
    while done < len(nodes[0].given):  # the second process does not end its first file
        scheduling.mark_test_complete(nodes[0], nodes[0].given[done])
        done += 1

    assert sorted(nodes[0].given + nodes[1].given) == list(range(len(TESTS)))
    assert nodes[0].files == ["tests/agent/a.py", "tests/model/f.py", "tests/cluster/c/d.py", "tests/cluster/c/e.py"]
    assert nodes[1].files == ["tests/cluster/b.py"]
