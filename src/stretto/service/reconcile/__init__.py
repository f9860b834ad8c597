"""What should run, what does run, and what is the next step from one to the other?"""
