"""Node and GPU selection: GPU topology, MIG layouts, scoring strategies, and the order of nodes."""
