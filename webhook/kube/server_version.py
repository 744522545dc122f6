"""The version of the API server, which decides how it completes pods."""

from __future__ import annotations

import re

from webhook.errors import ApiError
from webhook.kube.api import ObjectReader


async def read_api_minor(api: ObjectReader) -> int:
    """Return the minor version of the API server; 0 if it tells none.

    Managed clusters write a plus sign after it.
    """
    try:
        version = await api.get("/version")
    except ApiError:
        return 0
    digits = re.match(r"[0-9]{1,4}", str(version.get("minor")), re.ASCII)
    return int(digits[0]) if digits else 0
