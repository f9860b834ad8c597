"""For authors of policies and backends: tiny clusters and snapshots, and the promises that each keeps."""
