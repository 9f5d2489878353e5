"""A Redis Cluster as one voter."""

from .node import ClusterNode

__all__ = ["ClusterNode"]
