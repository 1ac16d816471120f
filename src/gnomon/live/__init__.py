"""A simulated deployment that answers requests: the engine of `gnomon simulate`, driven by a clock and by clients."""
