"""How do others speak with the service? HTTP: jobs, the cluster, and the channel of workers."""
