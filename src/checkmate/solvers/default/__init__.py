"""The default method, `auto`: bounds and heuristics together until the schedule is proven near-optimal."""
