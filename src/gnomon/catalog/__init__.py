"""Facts: devices, links, nodes, models and their prices."""
