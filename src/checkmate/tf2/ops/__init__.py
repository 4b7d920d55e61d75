"""Ops and nodes of TensorFlow's graphs: what they are, their order and their arithmetic."""
