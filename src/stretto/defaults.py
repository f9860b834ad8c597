"""What is taken where nobody has chosen; in a module that imports nothing, since every command reads it."""

POLICY = "stretto"  # docs/decisions/0018-stretto.md says what it has earned that by, and when to take another
