"""`decide` and its eight steps. Pure: what a step needs is an argument, what it found is a value."""
