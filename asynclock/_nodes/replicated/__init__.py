"""Groups of a primary and its replicas: who is primary, what the replicas have."""
