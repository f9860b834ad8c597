"""The service with a certificate of its own, by an authority that the tests make."""
