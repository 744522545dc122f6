"""The site of docs/: hooks of MkDocs, the pictures of its diagrams, and tests of both."""
