"""Which resources does the interface have? A file of routes for each."""
