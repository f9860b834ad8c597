"""ElasticFlow: as many GPUs as deadlines need, the rest where it costs least GPU time."""

from stretto.policies.elasticflow.policy import ElasticFlow

__all__ = ["ElasticFlow"]
