"""Every request is prefilled by a prefill replica."""

from gnomon.serving.deciders import Fleet, decider


@decider("always", always_elsewhere=True)
def always(fleet: Fleet, request_id: int) -> bool:
    """Yes."""
    return True
