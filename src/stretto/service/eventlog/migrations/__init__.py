"""How the schema came to be what it is: one file in `versions` for each change, in alembic's form."""
