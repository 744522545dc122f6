"""The API client, against scripted HTTP servers on a real socket."""
