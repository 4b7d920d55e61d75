"""A graph, a schedule and what is between them as arrays: the forms that the methods work on."""
