"""What ops, calls and variables hold, in bytes."""
