"""Where workers really run: a backend starts, stops, lists and shows workers, and decides nothing."""
