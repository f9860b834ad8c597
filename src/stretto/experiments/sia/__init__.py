"""Tables and figures of Sia (SOSP 2023)."""
