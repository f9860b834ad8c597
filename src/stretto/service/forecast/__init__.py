"""Why does a job wait, and what would become of it if things were otherwise?"""
