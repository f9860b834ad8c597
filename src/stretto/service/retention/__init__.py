"""How long is kept what is known of a job, what it wrote, and what it saved?"""
