"""The API server's client, against scripted servers that speak HTTP at a real socket."""
