"""`asynclock run`: runs a command only while a lock is held."""
