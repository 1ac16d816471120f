"""Every request is prefilled by a prefill replica."""

from __future__ import annotations

from gnomon.serving.deciders import Fleet, decider


@decider("always", always_elsewhere=True)
def always(fleet: Fleet, request_id: int) -> bool:
    """Yes."""
    return True
