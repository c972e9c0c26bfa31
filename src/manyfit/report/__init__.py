"""Every claim that is made of runs and models, from what is on disk."""
