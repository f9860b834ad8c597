"""The documentation as a site: `make docs` gathers pages, makes the reference by the code, and builds it."""
