"""Which machines there are: cluster files, and the clusters of the papers by name."""

from stretto.clusters.built_in import BuiltIn, built_in_clusters
from stretto.clusters.files import read_cluster, read_cluster_file, write_cluster
from stretto.clusters.parse import ClusterFile, Lender

__all__ = [
    "BuiltIn",
    "ClusterFile",
    "Lender",
    "built_in_clusters",
    "read_cluster",
    "read_cluster_file",
    "write_cluster",
]
