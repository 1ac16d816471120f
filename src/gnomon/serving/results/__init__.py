"""What is made of a run's records afterwards: latencies, metrics, the summary, explanations, intervals, energy."""
