"""Gavel: time fractions by a linear programme, realised in rounds."""
