"""The words of the project as frozen values: pods, nodes, offers, findings, decisions.

Nothing here decides anything, and nothing here can do I/O.
"""
