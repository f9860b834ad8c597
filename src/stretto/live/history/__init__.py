"""How does an event come into the log, and where are the jobs that have left memory since?"""
