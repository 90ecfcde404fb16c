"""Judges recorded episodes: runs them again and compares bit for bit."""
