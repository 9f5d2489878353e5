"""`asynclock doctor`: finds what is wrong with the nodes, why it matters, and what fixes it."""
