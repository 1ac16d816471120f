"""Request serving on replicas: routers, batching policies, the compiled engine."""
