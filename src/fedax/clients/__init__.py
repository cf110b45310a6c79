"""How a client walks through its examples and trains on them.

Everything here happens on one client; nothing knows of cohorts, servers or rounds.
"""
