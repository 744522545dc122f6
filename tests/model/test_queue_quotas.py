"""Free quota of ClusterQueues: what they and the others of their cohort leave of it."""

from __future__ import annotations

import pytest

from webhook.model.pods import ObjectMeta
from webhook.model.quantity import NANO
from webhook.model.queue_quotas import (
    ClusterQueue,
    ClusterQueueSpec,
    ClusterQueueStatus,
    Cohort,
    CohortSpec,
    CohortTree,
    FlavorQuotas,
    FlavorReservation,
    FlavorResource,
    ReservedResource,
    ResourceGroup,
)


def groups(nominal: int, borrowing: int | None = None, lending: int | None = None) -> tuple[ResourceGroup, ...]:
    """Return a quota of GPUs."""
    limits = [None if each is None else str(each) for each in (borrowing, lending)]
    return (ResourceGroup(("gpu",), (FlavorQuotas("f", (FlavorResource("gpu", str(nominal), *limits),)),)),)


def queue(
    nominal: int, used: int = 0, cohort: str = "all", borrowing: int | None = None, lending: int | None = None
) -> ClusterQueue:
    """Return a ClusterQueue with quota for GPUs, and those that are reserved in it."""
    reserved = (FlavorReservation("f", (ReservedResource("gpu", str(used)),)),)
    spec = ClusterQueueSpec(groups(nominal, borrowing, lending), cohort_name=cohort)
    return ClusterQueue(ObjectMeta(name=f"{nominal}-{used}"), spec, ClusterQueueStatus(reserved))


def cohort(
    name: str, nominal: int = 0, parent: str = "", borrowing: int | None = None, lending: int | None = None
) -> Cohort:
    """Return a Cohort with quota for GPUs."""
    return Cohort(ObjectMeta(name=name), CohortSpec(groups(nominal, borrowing, lending), parent))


FREE: dict[str, tuple[int, tuple[ClusterQueue, ...], tuple[Cohort, ...]]] = {
    "its own, without a cohort": (3, (queue(4, 1, cohort=""), queue(0, 4)), ()),
    "none, if others have borrowed all": (0, (queue(4), queue(0, 4)), ()),
    "what others have left": (3, (queue(4), queue(2, 3)), ()),
    "what others lend as well": (6, (queue(4), queue(2)), ()),
    "what it does not lend": (1, (queue(4, lending=3), queue(0, 3)), ()),
    "not what others do not lend": (4, (queue(4), queue(5, lending=0)), ()),
    "not what others use of what they do not lend": (4, (queue(4), queue(5, 5, lending=0)), ()),
    "up to its limit of borrowing": (5, (queue(4, borrowing=1), queue(9)), ()),
    "quota of its Cohort": (7, (queue(4), queue(0, 4)), (cohort("all", 7),)),
    "quota of a Cohort above": (7, (queue(4), queue(0, 4)), (cohort("all", parent="top"), cohort("top", 7))),
    "nothing that another branch has borrowed": (
        0,
        (queue(4), queue(0, 4, cohort="b")),
        (cohort("all", parent="top"), cohort("b", parent="top")),
    ),
    "what its branch does not lend": (
        2,
        (queue(4), queue(0, 2, cohort="b")),
        (cohort("all", parent="top", lending=2), cohort("b", parent="top")),
    ),
    "what its branch may borrow": (
        5,
        (queue(4),),
        (cohort("all", parent="top", borrowing=1), cohort("top", 9)),
    ),
    "nothing in a cycle of cohorts": (0, (queue(4),), (cohort("all", parent="b"), cohort("b", parent="all"))),
}


@pytest.mark.parametrize(("free", "queues", "cohorts"), FREE.values(), ids=FREE)
def test_a_queue_may_use_now(free: int, queues: tuple[ClusterQueue, ...], cohorts: tuple[Cohort, ...]) -> None:
    assert CohortTree(queues, cohorts).free_quota(queues[0], "f", "gpu") == free * NANO
