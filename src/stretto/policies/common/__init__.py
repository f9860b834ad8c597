"""What several policies share: admitting whole requests in an order, curves of speed, estimates, pins."""
