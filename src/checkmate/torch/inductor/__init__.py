"""`inner="inductor"`: the passes of a planned step run as kernels that PyTorch's own compiler makes of them."""
