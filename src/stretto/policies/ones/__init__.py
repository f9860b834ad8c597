"""ONES: batch sizes and GPUs of all jobs at once, by evolving whole schedules."""
