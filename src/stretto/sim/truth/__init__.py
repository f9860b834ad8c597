"""What jobs really do, which the world alone knows: by measured profiles, by formula, or by the clock."""
