"""What the nodes hold, read from outside: for the command line and the dashboard, never for locks.

`survey` scans the keys of all nodes, `Monitor` compares one survey with the next. `layout` knows
which key stands for what, `states` reads what events, latches and barriers keep.
"""
