"""Policies outside the simulator: on recorded snapshots, and on a cluster of real actors."""
