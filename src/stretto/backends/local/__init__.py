"""Workers as processes of this machine, or of several, each with an agent."""
