"""How a client walks through its examples and trains on them.

Everything here happens on one client, independent of cohorts, servers and rounds.
"""
