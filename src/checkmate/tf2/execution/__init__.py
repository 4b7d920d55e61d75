"""A schedule of a captured step as TensorFlow runs it: which ops, in which order, and what may overlap."""
