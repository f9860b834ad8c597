"""Tables and figures of UniSched (TPDS 2024), made again."""
