"""What the nodes hold, read from outside: for the command line and the dashboard, never for locks.

`survey` scans the keys of all nodes, `Monitor` compares one survey with the next. `layout` finds
what each primitive declares of its keys (`_primitives/kind.py`).
"""
