"""Measures a model on this machine: every figure beside the limit that it runs into, and beside its peers.

A suite measures cases; each case has entrants (kaminari and its peers), which take turns. A figure is a
median with its spread, and stands beside a floor: the time that the machine's measured limits leave.
"""
