"""PyTorch itself: what it does not document, and what it does otherwise while it traces and trains under a plan."""
