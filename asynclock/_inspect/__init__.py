"""What the nodes hold, read from outside: for the command line and the dashboard, never for locks.

`survey` scans the keys of all nodes, `Monitor` compares one survey with the next. Each primitive
declares its keys (`_primitives/base.py`).
"""
