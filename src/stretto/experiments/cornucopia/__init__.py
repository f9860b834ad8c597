"""Figures and tables of Cornucopia."""
