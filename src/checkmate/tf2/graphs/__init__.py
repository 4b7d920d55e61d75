"""A training step of TensorFlow: traced, and captured as a `checkmate.Graph`."""
