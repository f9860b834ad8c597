"""A Kubernetes operator: `ElasticJob` resources become jobs of a service, and show what becomes of them."""
