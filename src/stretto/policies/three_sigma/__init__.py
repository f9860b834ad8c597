"""3Sigma: deadlines under uncertainty, with distributions of runtimes instead of numbers."""
