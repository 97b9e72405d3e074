"""The file in which a round of pruning says how its gates went, and the bounds that it counts by."""

GATES = 'gates.json'  # of a round
CLOSED, OPEN = 0.05, 0.95  # of where a gate starts: below the one it is closed, above the other open
