"""Proven lower bounds on the cost, or the peak, of every schedule of a graph."""
