"""Figures of ONES (SC 2021), made again: schedules, speeds by batch, predicted progress, cost of a switch."""
