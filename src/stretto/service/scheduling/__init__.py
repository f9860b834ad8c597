"""What is known of the jobs, when is the policy asked, and what was decided?"""
