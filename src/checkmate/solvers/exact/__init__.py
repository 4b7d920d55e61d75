"""The proven optimum of small graphs."""
