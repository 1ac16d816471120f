"""Request serving on replicas: routers, batching policies, the compiled engine."""

import gnomon.moved  # noqa: F401  # Old names of its modules.
