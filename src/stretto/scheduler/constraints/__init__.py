"""What holds whatever the policy is? What it may see, what jobs have at most, what is taken back."""
