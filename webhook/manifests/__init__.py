"""What an API server is told about Rightslice: which requests it sends, and what it refuses by itself. Values only."""
