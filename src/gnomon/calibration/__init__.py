"""Learning a real server: constants fitted to what it left behind, and why a simulation differs from it."""
