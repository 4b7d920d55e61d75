"""Keras: `prepare`, `fit`, and what a model does that no plan covers."""
