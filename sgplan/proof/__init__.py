"""`sgplan verify`: two runs of one script, plain and under a plan, compared moment by moment."""
