"""A router trained inside the simulator."""
