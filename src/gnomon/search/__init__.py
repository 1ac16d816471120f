"""The best deployment for a model, a workload and an SLO."""
