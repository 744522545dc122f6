"""HTTP: connections with bounds and deadlines, TLS, health and draining, for every process that serves."""
