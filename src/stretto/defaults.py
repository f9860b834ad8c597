"""Values of options that are left out. It imports nothing, since every command reads it."""

POLICY = "stretto"  # docs/decisions/0018-stretto.md: why; docs/choosing-a-policy.md: when to take another
