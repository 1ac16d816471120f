"""Steps of a policy: generation on the serving engine, log-probabilities, training, and who has which GPU meanwhile."""
