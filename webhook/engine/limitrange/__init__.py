"""LimitRange: what the API server's LimitRanger makes of a pod, before and after our change.

`chain` is the whole way from a manifest to the verdict; `limited`, a manifest's pod as a webhook sees it. `given_in`
finds the GPUs that nobody asked for, and `take_out` takes them out again. `obstacle` says what would refuse a change,
`too_small` where smaller amounts would be refused; `range_remarks`, everything that refuses a shape.
"""

from webhook.engine.limitrange.bounds import Refusal, said_by
from webhook.engine.limitrange.chain import Chain, Verdict, arrived, chain, verdict
from webhook.engine.limitrange.defaulting import LIMIT_RANGER_NOTE, note_of
from webhook.engine.limitrange.first_pass import limited, limited_pod
from webhook.engine.limitrange.glance import passes
from webhook.engine.limitrange.holding import Holders
from webhook.engine.limitrange.injected import NOBODY, Given, Injected, given_in
from webhook.engine.limitrange.standing import (
    final_amounts,
    injected_remarks,
    obstacle,
    range_remarks,
    take_out,
    too_small,
)

__all__ = [
    "LIMIT_RANGER_NOTE",
    "NOBODY",
    "Chain",
    "Given",
    "Holders",
    "Injected",
    "Refusal",
    "Verdict",
    "arrived",
    "chain",
    "final_amounts",
    "given_in",
    "injected_remarks",
    "limited",
    "limited_pod",
    "note_of",
    "obstacle",
    "passes",
    "range_remarks",
    "said_by",
    "take_out",
    "too_small",
    "verdict",
]
