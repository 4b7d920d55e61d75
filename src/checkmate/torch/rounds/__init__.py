"""Rounds of graphs, forward and backward, that share one budget: what is known of them, and the plan they run under."""
