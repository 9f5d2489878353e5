"""Faults on demand: a failing network, a held lock, a lost lease."""
