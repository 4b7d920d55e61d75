"""What a method is given and what it hands back: the running search."""
