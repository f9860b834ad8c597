"""Workers as jobs of Slurm: one small job for each, so that growing touches none of the others."""
