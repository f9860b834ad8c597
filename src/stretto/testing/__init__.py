"""For authors of policies: tiny clusters and snapshots, and the promises that every policy keeps."""
