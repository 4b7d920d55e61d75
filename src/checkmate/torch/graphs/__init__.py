"""One graph of PyTorch: captured as a `checkmate.Graph`, and emitted as functions that run a schedule of it."""
