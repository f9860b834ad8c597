"""AFS, apathetic future share: GPUs one by one, by shortness and by efficiency, or by gain alone."""

from stretto.policies.afs.policy import Afs

__all__ = ["Afs"]
