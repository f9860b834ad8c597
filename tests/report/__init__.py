"""The report, on made comparisons."""
