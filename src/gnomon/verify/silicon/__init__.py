"""Real servers: the measured deployments inside the package aiconfigurator-core, simulated one by one."""
