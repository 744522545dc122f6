"""Certificate authority and serving certificate: created, rotated and distributed by the replicas."""
