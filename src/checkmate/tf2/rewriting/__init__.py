"""What TensorFlow's own optimizer makes of a graph, made beforehand, so that no schedule changes it."""
