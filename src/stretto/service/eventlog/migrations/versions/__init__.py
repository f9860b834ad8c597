"""The changes of the schema, by number."""
