"""Ranking of nodes: filters, scores, gangs, reservations, preemption and simulation."""
