"""Workers as pods of a Kubernetes cluster (docs: kubernetes).

api          calls of the API server, with the few fields of each object that are looked at
informer     list and watch of one kind of object, for ever, with what vanished meanwhile
inventory    nodes with their GPUs, and what other people's pods hold of them
manifests    the pod that a worker is asked for as
pods         what a pod says of its worker
log_spool    logs, kept by us, since a kubelet forgets those of pods that are deleted
backend      all of it as a `Backend`
"""
