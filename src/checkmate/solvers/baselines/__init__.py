"""What the field did before: keep all, Chen, Griewank."""
