"""Ops of the graphs that PyTorch hands over: what they are, what they cost, and what they may reuse."""
