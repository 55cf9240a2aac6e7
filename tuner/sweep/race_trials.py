"""How many configs a race tries at least, for what only estimates a race and need not load numpy."""

LEAST_TRIALS = 48
"""Of a problem with a small search space; a larger one gets more (`tuner.sweep.race.FULL`)."""
