"""`asynclock demo`: shows what the library is for, on five local Redis servers.

Part of the package and not of examples/, because `pip install "asynclock[demo]"` must bring the
store and the service processes along, and the wheel holds no examples.
"""
