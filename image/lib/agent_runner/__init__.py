"""PID 1 of the agent's container: starts turns and terminals, spools what they print, serves any number of clients.

Standard library only, Python 3.9 or newer. Runs with the agent's own uid, so what it reports is the agent's word;
what the host relies on (limits, the outcome's basis) the host enforces again from outside.
"""

PROTOCOL = 1
VERSION = "1.0"
