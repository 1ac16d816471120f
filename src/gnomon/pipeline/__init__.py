"""Pipeline-parallel training: schedules as data, execution with contention."""
