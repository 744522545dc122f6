"""A real control plane, for tests, measures and people: etcd, API server, controllers, scheduler and kwok."""
