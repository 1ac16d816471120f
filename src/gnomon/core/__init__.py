"""What every layer stands on: errors, registries, configuration, random streams, compilation, processes, files."""
