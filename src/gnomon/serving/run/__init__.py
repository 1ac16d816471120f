"""From a scenario to what happened: the arrays are filled in, the compiled parts put together and run."""
